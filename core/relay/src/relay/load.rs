//! The load: measured, told to clients that ask, and lowered by sending library clients to other helpers when it is too high
//! (PostMan §5.2). A plain client cannot be told to go elsewhere, only be cut off.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::{Conn, Time};
use spillway_wire::load::Load;

use super::{Relay, milliseconds};
use crate::clients::{Holder, Sort};
use crate::load::{Doors, Unanswered};
use crate::notice::Notice;

/// Within this time clients that are sent away are to go. One that has another helper goes at once; one that has none has
/// time to spread its return to the server.
const WITHIN: Duration = Duration::from_secs(10);

impl Relay {
    /// Whether [`measured`](Self::measured) wants to be called, before a question is answered and at the end of each turn.
    pub fn wants_measure(&self, now: Time) -> bool {
        self.load.wants_measure(now)
    }

    /// CPU time that the relay's thread has used up to now. If that is too much, library clients are sent away.
    pub fn measured(&mut self, now: Time, cpu: Duration) {
        let counters = self.services.iter().map(|service| service.counters());
        let flows = counters.flat_map(|counters| [counters.requests, counters.replies]);
        self.load.measured(now, cpu, flows, self.clients.count(), &self.memory);
        self.shed(now);
    }

    /// How loaded it is now.
    pub fn load(&self) -> Load {
        let load = self.load.load(self.turn.now, self.clients.count(), &self.memory);
        Load { draining: self.is_going, ..load }
    }

    /// A client asks how loaded it is. Returns the length of the answer; 0 for none.
    pub(super) fn answer(
        &mut self,
        now: Time,
        listener: u16,
        question: (SocketAddr, &[u8]),
        answer: &mut [u8],
    ) -> usize {
        self.turn.now = now;
        // Clients have no reason to ask at a listener that no service uses any more, or at one of plain clients.
        let Some((index, Sort::Library)) = self.listeners.user(listener) else { return 0 };
        let service = &self.services[usize::from(index)];
        let clients = self.clients.count();
        let takes = service.takes_clients(now);
        let doors = || Doors {
            room: takes.and_then(|()| self.admission.check(now, clients, &self.memory)),
            has_link: self.links.choose(service.links()).is_some(),
            is_closed: takes.is_err(),
        };
        let bytes = self.load.answer(now, question, service.config(), doors, (clients, &self.memory));
        let room = bytes.and_then(|bytes| {
            let room = answer.get_mut(..bytes.len()).ok_or(Unanswered::Malformed)?;
            room.copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        let questions = &mut self.service_mut(index).counters_mut().questions;
        match room {
            Ok(_) => questions.answered += 1,
            Err(why) => why.count(questions),
        }
        room.unwrap_or(0)
    }

    /// Sends some away, if it is time to.
    fn shed(&mut self, now: Time) {
        let clients = self.services.iter().map(|service| service.library_clients()).sum();
        let Some(shed) = self.load.shed(now, &self.memory, clients) else { return };
        let mut told = 0;
        while told < shed.count
            && let Some(conn) = self.next_to_shed(now, shed.young)
        {
            self.load.sent_away(conn.slot);
            self.say_drain(conn, milliseconds(WITHIN));
            if let Some(client) = self.clients.library_mut(conn) {
                client.sent_away();
                let service = client.service();
                self.service_mut(service).counters_mut().shed += 1;
            }
            told += 1;
        }
        if told > 0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a load is a share of what there is, some hundred percent at most; `as` saturates"
            )]
            let load_percent = (shed.load * 100.0) as u32;
            self.notices.push(Notice::Shed { clients: told, load_percent });
        }
    }

    /// The next one in turn that has been connected long enough and was not sent away before.
    fn next_to_shed(&self, now: Time, young: Duration) -> Option<Conn> {
        let may_go = |holder: &Holder| match holder {
            Holder::Library(client) => client.may_be_sent_away(now, young),
            _ => false,
        };
        let in_turn = self.clients.iter_from(self.load.next_slot()).chain(self.clients.iter());
        in_turn.filter(|(_, holder)| may_go(holder)).map(|(conn, _)| conn).next()
    }
}
