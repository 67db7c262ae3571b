//! The operator wants no relief for a service: its library clients are sent away, and nobody else comes in.
//!
//! Unlike a drain it is not the end: links stay open, plain clients that are there are served, and the word may be taken
//! back, or be over by itself.

use core::time::Duration;

use spillway_policy::{Standing, Word};
use spillway_transport::{Time, Transport};

use crate::draining::milliseconds;
use crate::relay::Relay;

impl Relay {
    /// The operator's word on a service, for ever or for a time. *off*: library clients are to go elsewhere within
    /// `within`. False where there is no service of this name.
    pub fn say<T: Transport>(
        &mut self,
        now: Time,
        name: &str,
        (word, lasts): (Word, Option<Duration>),
        within: Duration,
        out: &mut T,
    ) -> bool {
        let found = self.config.services.iter().position(|service| service.name == name);
        let Some(service) = found.filter(|service| !self.services[*service].is_gone()) else { return false };
        self.services[service].standing.say(now, word, lasts);
        self.update_listening(service, out);
        if word == Word::Off {
            for conn in self.clients_of(service) {
                self.say_drain(conn, milliseconds(within));
            }
        }
        true
    }

    /// Whether nobody is helped with this service, because the operator wants it so.
    pub(crate) fn is_off(&self, service: u16) -> bool {
        self.services[usize::from(service)].standing.at(self.now) == Word::Off
    }

    /// A word that is over has its service listen again.
    pub(crate) fn end_word<T: Transport>(&mut self, now: Time, service: usize, out: &mut T) {
        let standing = &mut self.services[service].standing;
        if standing.until().is_some_and(|until| until <= now) {
            *standing = Standing::default();
            self.update_listening(service, out);
        }
    }
}
