//! Where this server wants its sessions: with helpers, or without (PostMan §5.3).

use std::time::Duration;

use spillway_batch::{Control, Role};
use spillway_policy::Word;
use spillway_session::Placement;

use super::Links;
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

    fn send_elsewhere(&mut self, placement: Placement) -> usize {
        let misplaced = self.carried.misplaced(placement);
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
        let serial = self.carried.serial(carrier);
        self.on_carrier(carrier, serial, What::Say(control));
    }
}
