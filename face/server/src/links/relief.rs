//! Where this server wants its sessions: with helpers, or without (PostMan §5.3).

use std::time::Duration;

use spillway_batch::{Control, Role};
use spillway_policy::Word;
use spillway_policy::release::{ReleaseCounters, ReleaseNotice};
use spillway_session::Placement;
use spillway_transport::Time;

use super::Links;
use super::release::Releasing;
use crate::threads::{CarrierName, What};

impl Links {
    /// The operator's word on relief. *on*: sessions that come directly are sent to helpers; *off*: those that come through
    /// helpers are sent back; each somewhere within this time, and those that come later too. *auto*: clients decide. A
    /// session whose client knows no such way stays where it is. How many are sent elsewhere now.
    pub fn say(&mut self, word: Word, within: Duration) -> usize {
        self.placement = Placement::new(word, within);
        self.send_elsewhere(self.placement)
    }

    /// Sends sessions that are helped now back, once: this server can serve them directly again.
    pub fn release(&mut self, within: Duration) -> usize {
        self.send_elsewhere(Placement::new(Word::Off, within))
    }

    /// A decision on sending sessions back, for the log. Ask after [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn poll_release_notice(&mut self) -> Option<ReleaseNotice> {
        self.releasing.as_mut()?.poll_notice()
    }

    /// What came of [`Settings::release`](crate::Settings::release) since the beginning.
    pub fn release_counters(&self) -> ReleaseCounters {
        self.releasing.as_ref().map_or_else(ReleaseCounters::default, Releasing::counters)
    }

    /// Nothing while there are no sessions.
    pub(super) fn release_at(&self) -> Option<Time> {
        self.releasing.as_ref().filter(|_| !self.sessions.is_empty()).map(Releasing::poll_timeout)
    }

    pub(super) fn release_timeout(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(releasing) = &mut self.releasing else { return };
        let helped = self.sessions.carried_by(Role::Helper);
        let home = releasing.handle_timeout(now, self.placement.word(), helped);
        for (_, carrier, drain) in self.sessions.return_home(home) {
            self.say_on(carrier, drain);
        }
    }

    fn send_elsewhere(&mut self, placement: Placement) -> usize {
        let misplaced = self.sessions.misplaced(placement);
        for (_, carrier, drain) in &misplaced {
            self.say_on(*carrier, *drain);
        }
        misplaced.len()
    }

    /// A session is accepted on a carrier, of a link of this role.
    pub(super) fn greet(&mut self, role: Role, carrier: CarrierName, serial: u64) {
        if let Some(drain) = self.placement.drains(role) {
            self.on_carrier(carrier, serial, What::Say(drain));
        }
    }

    pub(super) fn say_on(&mut self, carrier: CarrierName, control: Control) {
        let serial = self.carriers.serial(carrier);
        self.on_carrier(carrier, serial, What::Say(control));
    }
}
