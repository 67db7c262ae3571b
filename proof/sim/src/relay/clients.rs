//! Plain clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

use crate::network::AddressBook;
use crate::oracle::Shared;
use crate::relay::script::Script;
use crate::rng::Rng;

/// First grant of a fresh connection, bytes.
const GRANT_BYTES: u64 = 32 * 1024;

pub struct Clients {
    targets: Vec<SocketAddr>,
    rng: Rng,
    oracle: Shared,
    early_ends_in_1000: u64,
    clients_max: usize,
    /// `None` until the connection is open.
    clients: BTreeMap<Conn, Option<Script>>,
    next_client: Option<Time>,
    next_work: Option<Time>,
    addresses: AddressBook,
    /// Helpers gate acknowledgements: what a client's TCP sees acknowledged must be with the server.
    pub(crate) are_gated: bool,
}

impl Clients {
    /// Clients of the helpers at `targets`, at most `clients_max` at a time.
    pub fn new(
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        clients_max: usize,
        early_ends_in_1000: u64,
        rng: Rng,
        oracle: Shared,
    ) -> Clients {
        Clients {
            targets,
            rng,
            oracle,
            early_ends_in_1000,
            clients_max,
            clients: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
            addresses,
            are_gated: false,
        }
    }

    pub fn calm_down(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        self.clients.values_mut().flatten().for_each(Script::calm_down);
    }

    /// Connections that are open or opening.
    pub fn open(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn opening(&self) -> impl Iterator<Item = Conn> + '_ {
        self.clients.iter().filter(|(_, script)| script.is_none()).map(|(conn, _)| *conn)
    }

    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Some(script)) = self.clients.get_mut(&conn) else { return };
        loop {
            let bytes = script.next_bytes(now, &mut self.rng);
            if bytes.is_empty() {
                break;
            }
            let taken = out.send(conn, &bytes);
            script.sent_bytes(taken, now, &mut self.rng);
            if taken < bytes.len() {
                break;
            }
        }
        if script.resets() {
            script.done();
            self.clients.remove(&conn);
            out.abort(conn);
            return;
        }
        if script.is_sent() {
            script.finish();
            out.finish(conn);
        }
        let read = script.reads(&mut self.rng);
        if read > 0 {
            out.grant(conn, read as u32); // at most what was granted
        }
        let waits = script.unread > 0 || script.pause > now;
        if waits && self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)));
        }
    }

    fn opened<T: Transport>(&mut self, now: Time, conn: Conn, address: SocketAddr, out: &mut T) {
        let mut script = Script::new(&mut self.rng, address, self.early_ends_in_1000, &self.oracle);
        if self.next_client.is_none() {
            // The connection attempt was in flight when the storm ended.
            script.calm_down();
        }
        self.clients.insert(conn, Some(script));
        out.grant(conn, GRANT_BYTES as u32);
        if self.are_gated {
            out.watch_acknowledged(conn, true);
        }
        self.pump(now, conn, out);
    }
}

impl Application for Clients {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let Some(address) = self.addresses.borrow().get(&conn).copied() else { return };
                self.opened(now, conn, address, out);
            }
            Event::Data { bytes, .. } => {
                if let Some(Some(script)) = self.clients.get_mut(&conn) {
                    script.received(bytes);
                }
                self.pump(now, conn, out);
            }
            Event::Room => self.pump(now, conn, out),
            Event::Finished => {
                let Some(Some(script)) = self.clients.get_mut(&conn) else { return };
                script.end_of_replies();
                if !script.finished {
                    // The server has closed: the client sends no more.
                    script.finish();
                    out.finish(conn);
                }
            }
            Event::Lost(reason) => {
                if let Some(Some(script)) = self.clients.remove(&conn) {
                    if reason == LostReason::Closed && !script.saw_end {
                        let what = format!("stream {:x}: closed without an end", script.token);
                        self.oracle.borrow_mut().violation(what);
                    }
                    script.done();
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
                self.pump(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.scale(10_000, 5_000_000)));
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
