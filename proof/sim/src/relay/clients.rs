//! The host of all plain clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

use crate::network::AddressBook;
use crate::oracle::SharedOracle;
use crate::relay::script::Script;
use crate::rng::Rng;

/// First grant of a new connection, bytes.
const FIRST_GRANT_BYTES: u64 = 32 * 1024;

pub struct Clients {
    targets: Vec<SocketAddr>,
    rng: Rng,
    oracle: SharedOracle,
    early_ends_per_1000: u64,
    clients_max: usize,
    /// The script of each client; `None` until its connection is open.
    clients: BTreeMap<Conn, Option<Script>>,
    next_client: Option<Time>,
    next_work: Option<Time>,
    addresses: AddressBook,
    /// Helpers have gates: the server must have received the bytes that are acknowledged to clients.
    pub(crate) are_gated: bool,
}

impl Clients {
    /// Clients of the helpers at `targets`, at most `clients_max` at a time.
    pub fn new(
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        clients_max: usize,
        early_ends_per_1000: u64,
        rng: Rng,
        oracle: SharedOracle,
    ) -> Clients {
        Clients {
            targets,
            rng,
            oracle,
            early_ends_per_1000,
            clients_max,
            clients: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
            addresses,
            are_gated: false,
        }
    }

    pub fn begin_calm_phase(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        self.clients.values_mut().flatten().for_each(Script::begin_calm_phase);
    }

    /// Connections that are open or opening.
    pub fn open(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn opening(&self) -> impl Iterator<Item = Conn> + '_ {
        self.clients.iter().filter(|(_, script)| script.is_none()).map(|(conn, _)| *conn)
    }

    fn advance<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Some(script)) = self.clients.get_mut(&conn) else { return };
        if !script.advance(now, conn, &mut self.rng, out) {
            self.clients.remove(&conn);
            return;
        }
        let read = script.read_some(&mut self.rng);
        if read > 0 {
            out.grant(conn, read as u32); // fits: at most the granted bytes
        }
        let waits = script.unread > 0 || script.paused_until > now;
        if waits && self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)));
        }
    }

    fn handle_opened<T: Transport>(&mut self, now: Time, conn: Conn, address: SocketAddr, out: &mut T) {
        let mut script = Script::new(&mut self.rng, address, self.early_ends_per_1000, &self.oracle);
        if self.next_client.is_none() {
            // The connection attempt was in flight when the fault phase ended.
            script.begin_calm_phase();
        }
        self.clients.insert(conn, Some(script));
        out.grant(conn, FIRST_GRANT_BYTES as u32);
        if self.are_gated {
            out.watch_acknowledged(conn, true);
        }
        self.advance(now, conn, out);
    }
}

impl Application for Clients {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let Some(address) = self.addresses.borrow().get(&conn).copied() else { return };
                self.handle_opened(now, conn, address, out);
            }
            Event::Data { bytes, .. } => {
                if let Some(Some(script)) = self.clients.get_mut(&conn) {
                    script.receive(bytes);
                }
                self.advance(now, conn, out);
            }
            Event::Room => self.advance(now, conn, out),
            Event::Finished => {
                let Some(Some(script)) = self.clients.get_mut(&conn) else { return };
                script.receive_end();
                if !script.finished {
                    // The server has closed: the client ends its requests.
                    script.finish();
                    out.finish(conn);
                }
            }
            Event::Lost(reason) => {
                if let Some(Some(script)) = self.clients.remove(&conn) {
                    if reason == LostReason::Closed && !script.saw_end {
                        let what = format!("stream {:x}: closed before the end of the replies", script.token);
                        self.oracle.borrow_mut().violation(what);
                    }
                    script.record_closed();
                }
            }
            Event::Acknowledged { through } => {
                if let Some(Some(script)) = self.clients.get(&conn) {
                    self.oracle.borrow_mut().acknowledged(script.token, through);
                }
            }
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_work.is_some_and(|at| at <= now) {
            self.next_work = None;
            for conn in self.clients.keys().copied().collect::<Vec<_>>() {
                self.advance(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.log_uniform(10_000, 5_000_000)));
            let burst = if self.rng.chance(1, 20) { 20 } else { 1 };
            for _ in 0..burst {
                if self.clients.len() < self.clients_max {
                    let target = self.rng.pick(&self.targets);
                    if let Ok(conn) = out.connect(now, target) {
                        self.clients.insert(conn, None);
                    }
                }
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        [self.next_client, self.next_work].into_iter().flatten().min()
    }
}
