//! Sending clients to other helpers when there is too much to do (PostMan §5.2). Only library clients: a plain one cannot be
//! told to go elsewhere, only be cut off.

use core::time::Duration;

use spillway_transport::{Conn, Time};

use crate::draining::milliseconds;
use crate::notice::Notice;
use crate::relay::Relay;
use crate::slots::Holder;

/// Within this time they are to go. One that has another helper goes at once; one that has none has time to spread its
/// return to the server.
const WITHIN: Duration = Duration::from_secs(10);

impl Relay {
    /// Whether clients are told that no more are taken because of the load.
    pub(crate) fn is_full(&self, now: Time) -> bool {
        let load = self.gauge.measured_load(self.memory.total());
        self.shedding.as_ref().is_some_and(|shedding| shedding.is_full(now, load))
    }

    /// Sends some away, if it is time to.
    pub(crate) fn look_at_load(&mut self, now: Time) {
        let load = self.gauge.measured_load(self.memory.total());
        let clients = self.services.iter().map(|service| service.library_clients).sum();
        let Some(shedding) = &mut self.shedding else { return };
        let count = shedding.look(now, load, clients);
        if count == 0 {
            return;
        }
        let young = shedding.settings().young;
        let mut told = 0;
        while told < count
            && let Some(conn) = self.next_to_shed(now, young)
        {
            self.say_drain(conn, milliseconds(WITHIN));
            if let Some(Holder::Library(client)) = self.slots.get_mut(conn) {
                client.sent_away = true;
                self.services[usize::from(client.service)].counters.shed += 1;
            }
            told += 1;
        }
        if told > 0 {
            self.notices.push(Notice::Shed { clients: told, load_percent: (load * 100.0) as u32 });
        }
    }

    /// The next one in turn that has been here for a while and has not been told before.
    fn next_to_shed(&mut self, now: Time, young: Duration) -> Option<Conn> {
        let may_go = |conn: &Conn| match self.slots.get(*conn) {
            Some(Holder::Library(client)) => {
                !client.sent_away && client.passage.is_some() && now.since(client.since) >= young
            }
            _ => false,
        };
        let from = self.shed_next;
        let found = self.slots.clients_from(from).chain(self.slots.clients()).find(may_go)?;
        self.shed_next = found.slot.wrapping_add(1);
        Some(found)
    }
}
