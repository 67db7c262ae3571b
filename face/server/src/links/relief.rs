//! The server's side of relief: the override and the release (PostMan §5.3).

use std::time::Duration;

use spillway_batch::{Control, Role};
use spillway_policy::Override;
use spillway_policy::release::{ReleaseCounters, ReleaseNotice};
use spillway_session::Placement;
use spillway_transport::Time;

use super::Links;
use super::release::AutomaticRelease;
use crate::threads::{CarrierName, Message};

impl Links {
    /// Sets the operator's override of relief. *on*: direct sessions are sent to helpers; *off*: helped sessions are sent
    /// back. Present sessions move at random times within `within`, and so do later ones after they are accepted.
    /// *auto*: clients decide. A session stays where it is if its client has no other route of the kind.
    /// Returns the number of sessions asked to move.
    pub fn set_override(&mut self, manual_override: Override, within: Duration) -> usize {
        self.placement = Placement::new(manual_override, within);
        self.request_moves(self.placement)
    }

    /// Sends the present helped sessions back to the server's own port, once, at random times within
    /// `within`. Later sessions are not affected. Returns how many are asked to move.
    pub fn release(&mut self, within: Duration) -> usize {
        self.request_moves(Placement::new(Override::Off, within))
    }

    /// A decision of [`Settings::release`](crate::Settings::release), for the log. Call it after
    /// [`handle_timeout`](Self::handle_timeout), until `None`.
    #[must_use]
    pub fn poll_release_notice(&mut self) -> Option<ReleaseNotice> {
        self.automatic_release.as_mut()?.poll_notice()
    }

    /// Counters of [`Settings::release`](crate::Settings::release) since the port was opened.
    pub fn release_counters(&self) -> ReleaseCounters {
        self.automatic_release.as_ref().map_or_else(ReleaseCounters::default, AutomaticRelease::counters)
    }

    /// When to call [`handle_release_timeout`](Self::handle_release_timeout); `None` while there are no
    /// sessions.
    pub(super) fn release_at(&self) -> Option<Time> {
        self.automatic_release
            .as_ref()
            .filter(|_| !self.sessions.is_empty())
            .map(AutomaticRelease::poll_timeout)
    }

    pub(super) fn handle_release_timeout(&mut self, now: Time) {
        if self.release_at().is_none_or(|at| at > now) {
            return;
        }
        let Some(release) = &mut self.automatic_release else { return };
        let helped = self.sessions.carried_by(Role::Helper);
        let returning = release.handle_timeout(now, self.placement.manual_override(), helped);
        for (_, carrier, drain) in self.sessions.ask_to_return(returning) {
            self.send_on_carrier(carrier, drain);
        }
    }

    fn request_moves(&mut self, placement: Placement) -> usize {
        let misplaced = self.sessions.misplaced_sessions(placement);
        for (_, carrier, drain) in &misplaced {
            self.send_on_carrier(*carrier, *drain);
        }
        misplaced.len()
    }

    /// Sends *drain* on the carrier of a session that was just accepted, if a link of this role is the wrong carrier.
    pub(super) fn drain_if_misplaced(&mut self, role: Role, carrier: CarrierName, serial: u64) {
        if let Some(drain) = self.placement.drain_for(role) {
            self.deliver_to_carrier(carrier, serial, Message::SendControl(drain));
        }
    }

    pub(super) fn send_on_carrier(&mut self, carrier: CarrierName, control: Control) {
        let serial = self.carriers.serial(carrier);
        self.deliver_to_carrier(carrier, serial, Message::SendControl(control));
    }
}
