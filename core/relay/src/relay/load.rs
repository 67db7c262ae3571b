//! Load measurement, replies to load queries, and shedding: library clients are sent to other helpers when the load is
//! too high (PostMan §5.2). Plain clients are not shed, because they could only be reset.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::{Conn, Time};
use spillway_wire::load::LoadReport;

use super::{Relay, milliseconds};
use crate::clients::{ClientType, ConnRole};
use crate::load::{Availability, Unanswered};
use crate::notice::Notice;

/// Deadline for clients that are shed. A client with another helper moves at once. A client without one returns to the
/// server at a random time before the deadline, so that the clients do not return all at once.
const SHED_DEADLINE: Duration = Duration::from_secs(10);

impl Relay {
    /// Whether [`measured`](Self::measured) must be called now. Check it before each load query and at the end of each
    /// turn.
    pub fn is_measurement_due(&self, now: Time) -> bool {
        self.load.is_measurement_due(now)
    }

    /// Records a measurement: `cpu` is the CPU time of the relay's thread since its start. Sheds library clients if the
    /// load is too high.
    pub fn measured(&mut self, now: Time, cpu: Duration) {
        let counters = self.services.iter().map(|service| service.counters());
        let traffic = counters.flat_map(|counters| [counters.requests, counters.replies]);
        self.load.measured(now, cpu, traffic, self.clients.count(), &self.memory);
        self.shed(now);
    }

    /// The relay's load at the time of the last event.
    pub fn load(&self) -> LoadReport {
        let load = self.load.load(self.turn.now, self.clients.count(), &self.memory);
        LoadReport { draining: self.is_draining, ..load }
    }

    /// Answers a load query. Returns the reply's length; 0 sends nothing.
    pub(super) fn answer(
        &mut self,
        now: Time,
        listener: u16,
        query: (SocketAddr, &[u8]),
        reply: &mut [u8],
    ) -> usize {
        self.turn.now = now;
        // Library clients send load queries to the listeners for their links.
        let Some((service_index, ClientType::Library)) = self.listeners.assignment(listener) else {
            return 0;
        };
        let service = &self.services[usize::from(service_index)];
        let clients = self.clients.count();
        let acceptance = service.accepts_clients(now);
        let availability = || Availability {
            admission: acceptance.and_then(|()| self.admission.check(now, clients, &self.memory)),
            has_link: self.links.choose(service.links()).is_some(),
            is_closed: acceptance.is_err(),
        };
        let bytes = self.load.answer(now, query, service.config(), availability, (clients, &self.memory));
        let length = bytes.and_then(|bytes| {
            // Does not fail: `reply` is as long as the query, and a load query is longer than its reply.
            let target = reply.get_mut(..bytes.len()).ok_or(Unanswered::Malformed)?;
            target.copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        let load_queries = &mut self.service_mut(service_index).counters_mut().load_queries;
        match length {
            Ok(_) => load_queries.answered += 1,
            Err(why) => why.count(load_queries),
        }
        length.unwrap_or(0)
    }

    /// Sends library clients to other helpers, if the load is too high.
    fn shed(&mut self, now: Time) {
        // Clients that have not authenticated, and clients that only wait for their last bytes (*lingering*), cannot be
        // shed, so they must not raise the number of clients to shed.
        let clients = || self.clients.authenticated_library_clients();
        let Some(shed) = self.load.shed(now, &self.memory, clients) else { return };
        let mut sent = 0;
        while sent < shed.count
            && let Some(conn) = self.next_to_shed(now, shed.age_min)
        {
            self.load.client_shed(conn.slot);
            self.send_drain(conn, milliseconds(SHED_DEADLINE));
            if let Some(client) = self.clients.library_mut(conn) {
                client.set_shed();
                let service = client.service();
                self.service_mut(service).counters_mut().shed += 1;
            }
            sent += 1;
        }
        if sent > 0 {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a load is a share of the capacity, a few hundred percent at most; `as` saturates"
            )]
            let load_percent = (shed.load * 100.0) as u32;
            self.notices.push(Notice::Shed { clients: sent, load_percent });
        }
    }

    /// The next client, in the order of slots, that can be shed.
    fn next_to_shed(&self, now: Time, age_min: Duration) -> Option<Conn> {
        let can_be_shed = |role: &ConnRole| match role {
            ConnRole::Library(client) => client.can_be_shed(now, age_min),
            _ => false,
        };
        let in_turn = self.clients.iter_from(self.load.next_slot()).chain(self.clients.iter());
        in_turn.filter(|(_, role)| can_be_shed(role)).map(|(conn, _)| conn).next()
    }
}
