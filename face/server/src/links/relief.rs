//! Where this server wants its sessions: with helpers, or without (PostMan §5.3).

use std::time::Duration;

use spillway_batch::{Control, Role};
use spillway_policy::Word;
use spillway_session::SessionHandle;

use super::Links;
use crate::threads::{CarrierName, What};

/// What the operator wants, and how much time clients have for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    word: Word,
    within_ms: u32,
}

impl Wanted {
    pub(super) fn word(self) -> Word {
        self.word
    }

    /// Whether a session that is carried like this is to go elsewhere, and within which time.
    fn elsewhere(self, role: Role) -> Option<u32> {
        let wrong = match self.word {
            Word::Auto => return None,
            Word::On => Role::Client,
            Word::Off => Role::Helper,
        };
        (role == wrong).then_some(self.within_ms)
    }
}

impl Links {
    /// The operator's word on relief. *on*: sessions that come directly are sent to helpers; *off*: those that come through
    /// helpers are sent back; each somewhere within this time, and those that come later too. *auto*: clients decide. A
    /// session whose client knows no such way stays where it is. How many are sent elsewhere now.
    pub fn say(&mut self, word: Word, within: Duration) -> usize {
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        self.wanted = Wanted { word, within_ms };
        self.send_elsewhere(self.wanted)
    }

    /// Sends sessions that are helped now back, once: this server can serve them directly again.
    pub fn release(&mut self, within: Duration) -> usize {
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        self.send_elsewhere(Wanted { word: Word::Off, within_ms })
    }

    fn send_elsewhere(&mut self, wanted: Wanted) -> usize {
        let sent: Vec<_> = self
            .carried
            .carriers()
            .filter_map(|(session, role, carrier)| Some((session, carrier, wanted.elsewhere(role)?)))
            .collect();
        for (_, carrier, within_ms) in &sent {
            self.say_drain(*carrier, *within_ms);
        }
        sent.len()
    }

    /// A session has come to a carrier of this role.
    pub(super) fn greet(&mut self, session: SessionHandle, role: Role) {
        if let Some(within_ms) = self.wanted.elsewhere(role)
            && let Some(carrier) = self.carried.carrier(session)
        {
            self.say_drain(carrier, within_ms);
        }
    }

    pub(super) fn say_drain(&mut self, carrier: CarrierName, deadline_ms: u32) {
        let serial = self.carried.serial(carrier);
        self.on_carrier(carrier, serial, What::Say(Control::Drain { deadline_ms }));
    }
}
