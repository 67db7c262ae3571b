//! Library clients: each opens a link to a helper, and virtual connections on it, one after the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind,
    Role, Scratch,
};
use spillway_transport::{Application, Conn, Event, Time, Transport, Unsent};

use crate::network::AddressBook;
use crate::oracle::SharedOracle;
use crate::relay::script::Script;
use crate::rng::Rng;

pub struct Library {
    targets: Vec<SocketAddr>,
    key: Key,
    rng: Rng,
    oracle: SharedOracle,
    early_ends_per_1000: u64,
    clients_max: usize,
    addresses: AddressBook,
    links: BTreeMap<Conn, Option<Link>>,
    next_client: Option<Time>,
    next_work: Option<Time>,
}

struct Link {
    address: SocketAddr,
    protocol: OpenerLink,
    unsent: Unsent,
    current: Option<(Id, Script)>,
    /// Number of virtual connections to open after the current one.
    connections_left: u32,
    finished: bool,
}

impl Library {
    /// Clients of the helpers at `targets`, at most `clients_max` at a time.
    pub fn new(
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        key: Key,
        clients_max: usize,
        early_ends_per_1000: u64,
        rng: Rng,
        oracle: SharedOracle,
    ) -> Library {
        Library {
            targets,
            key,
            rng,
            oracle,
            early_ends_per_1000,
            clients_max,
            addresses,
            links: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
        }
    }

    pub fn begin_calm_phase(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        for link in self.links.values_mut().flatten() {
            link.connections_left = 0;
            if let Some((_, script)) = &mut link.current {
                script.begin_calm_phase();
            }
        }
    }

    /// Links that are open or opening.
    pub fn open(&self) -> usize {
        self.links.len()
    }

    fn handle_opened(&mut self, now: Time, conn: Conn, address: SocketAddr) {
        let randomness = LinkRandomness::generate(|bytes| self.rng.fill(bytes));
        let window_bytes = self.rng.pick(&[1000, 64 << 10, 256 << 10]);
        let config = OpenerConfig {
            role: Role::Client,
            key: self.key.clone(),
            limits: Limits { window_bytes, ..Limits::default() },
            policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
            encryption: Encryption::Preferred,
        };
        let connections_left = self.rng.range(1, 4) as u32; // fits: at most 4
        let protocol = OpenerLink::new(&config, now, randomness);
        self.links.insert(
            conn,
            Some(Link {
                address,
                protocol,
                unsent: Unsent::default(),
                current: None,
                connections_left,
                finished: false,
            }),
        );
    }

    fn handle_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(Some(link)) = self.links.get_mut(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.protocol.unseal(now, bytes, &mut scratch);
        loop {
            match link.protocol.decompose(now, &mut input) {
                Ok(Some(event)) => handle_event(link, event),
                Ok(None) => break,
                Err(error) => {
                    self.oracle.borrow_mut().violation(format!("a library client's link failed: {error}"));
                    return self.abort(conn, out);
                }
            }
        }
        out.grant(conn, bytes.len() as u32); // fits: at most the granted bytes
        self.advance(now, conn, out);
    }

    fn abort<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.forget(conn);
        out.abort(conn);
    }

    fn forget(&mut self, conn: Conn) {
        if let Some(Some(Link { current: Some((_, script)), .. })) = self.links.remove(&conn) {
            script.record_closed();
        }
    }

    fn advance<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Some(link)) = self.links.get_mut(&conn) else { return };
        if link.protocol.is_established()
            && link.current.is_none()
            && link.connections_left > 0
            && link.protocol.connections() == 0
        {
            link.connections_left -= 1;
            if let Ok(id) = link.protocol.open(link.address, None) {
                let mut script =
                    Script::new(&mut self.rng, link.address, self.early_ends_per_1000, &self.oracle);
                if self.next_client.is_none() {
                    // The link was being opened when the fault phase ended.
                    script.begin_calm_phase();
                }
                link.current = Some((id, script));
            }
        }
        while link.protocol.poll_room().is_some() {}
        if let Some((id, script)) = &mut link.current {
            let id = *id;
            script.send_requests(now, &mut self.rng, |bytes| link.protocol.compose(id, bytes));
            if script.is_end_due() {
                script.finish();
                link.protocol.finish(id);
            }
            let read = script.read_some(&mut self.rng);
            let outcome = link.protocol.consumed(id, read as usize);
            debug_assert_eq!(outcome, Ok(()), "the client should consume only unread bytes");
            let is_reset = script.is_reset_due();
            if is_reset && self.rng.chance(1, 2) {
                return self.abort(conn, out);
            }
            if is_reset || (script.saw_end && script.finished && script.unread == 0) {
                script.record_closed();
                link.protocol.close(id, if is_reset { CloseReason::Reset } else { CloseReason::Normal });
                link.current = None;
            }
        }
        let waits =
            link.current.as_ref().is_some_and(|(_, script)| script.unread > 0 || script.paused_until > now);
        if waits && self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)));
        }
        let is_over =
            link.current.is_none() && link.connections_left == 0 && link.protocol.connections() == 0;
        if link.transmit(now, conn, out) && is_over && link.protocol.is_established() && !link.finished {
            link.finished = true;
            out.finish(conn);
        }
    }
}

impl Link {
    /// Sends the link's output. Returns whether the transport accepted all of it.
    fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) -> bool {
        let next = |spent| {
            self.protocol.recycle(spent);
            self.protocol.flush(now)
        };
        self.unsent.send_all_to(next, |bytes| out.send(conn, bytes));
        self.unsent.is_empty()
    }
}

fn handle_event(link: &mut Link, event: OpenerEvent<'_>) {
    match event {
        OpenerEvent::Data { bytes, .. } => {
            if let Some((_, script)) = &mut link.current {
                script.receive(bytes);
            }
        }
        OpenerEvent::Finished { .. } => {
            if let Some((_, script)) = &mut link.current {
                script.receive_end();
            }
        }
        OpenerEvent::Refused { .. } => {
            if let Some((_, script)) = link.current.take() {
                script.record_closed();
            }
        }
        OpenerEvent::Closed { id, reason } => {
            link.protocol.close(id, reason);
            if let Some((_, mut script)) = link.current.take() {
                if reason == CloseReason::Normal {
                    script.receive_end();
                }
                script.record_closed();
            }
        }
        OpenerEvent::Drain { .. } => link.connections_left = 0,
        OpenerEvent::Established { .. }
        | OpenerEvent::Accepted { .. }
        | OpenerEvent::Acknowledged { .. }
        | OpenerEvent::RelayedData { .. }
        | OpenerEvent::RelayedControl { .. } => {}
    }
}

impl Application for Library {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let Some(address) = self.addresses.borrow().get(&conn).copied() else { return };
                self.handle_opened(now, conn, address);
                out.grant(conn, 1 << 20);
                self.advance(now, conn, out);
            }
            Event::Data { bytes, .. } => self.handle_data(now, conn, bytes, out),
            Event::Room => self.advance(now, conn, out),
            Event::Finished => {
                let finished =
                    self.links.get(&conn).is_some_and(|link| link.as_ref().is_some_and(|link| link.finished));
                self.forget(conn);
                if !finished {
                    out.finish(conn);
                }
            }
            Event::Lost(_) => self.forget(conn),
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_work.is_some_and(|at| at <= now) {
            self.next_work = None;
            for conn in self.links.keys().copied().collect::<Vec<_>>() {
                self.advance(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.log_uniform(10_000, 10_000_000)));
            if self.links.len() < self.clients_max {
                let target = self.rng.pick(&self.targets);
                if let Ok(conn) = out.connect(now, target) {
                    self.links.insert(conn, None);
                }
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        [self.next_client, self.next_work].into_iter().flatten().min()
    }
}
