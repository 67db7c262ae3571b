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
use crate::oracle::Shared;
use crate::relay::script::Script;
use crate::rng::Rng;

pub struct Library {
    targets: Vec<SocketAddr>,
    key: Key,
    rng: Rng,
    oracle: Shared,
    early_ends_in_1000: u64,
    clients_max: usize,
    addresses: AddressBook,
    links: BTreeMap<Conn, Option<Link>>,
    next_client: Option<Time>,
    next_work: Option<Time>,
}

struct Link {
    address: SocketAddr,
    end: OpenerLink,
    unsent: Unsent,
    current: Option<(Id, Script)>,
    /// Virtual connections still to be opened.
    left: u32,
    finished: bool,
}

impl Library {
    /// Clients of the helpers at `targets`, at most `clients_max` at a time.
    pub fn new(
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        key: Key,
        clients_max: usize,
        early_ends_in_1000: u64,
        rng: Rng,
        oracle: Shared,
    ) -> Library {
        Library {
            targets,
            key,
            rng,
            oracle,
            early_ends_in_1000,
            clients_max,
            addresses,
            links: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
        }
    }

    pub fn calm_down(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        for link in self.links.values_mut().flatten() {
            link.left = 0;
            if let Some((_, script)) = &mut link.current {
                script.calm_down();
            }
        }
    }

    /// Links that are open or opening.
    pub fn open(&self) -> usize {
        self.links.len()
    }

    fn opened(&mut self, now: Time, conn: Conn, address: SocketAddr) {
        let fresh = LinkRandomness::filled(|bytes| self.rng.fill(bytes));
        let window_bytes = self.rng.pick(&[1000, 64 << 10, 256 << 10]);
        let config = OpenerConfig {
            role: Role::Client,
            key: self.key.clone(),
            limits: Limits { window_bytes, ..Limits::default() },
            policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
            encryption: Encryption::Preferred,
        };
        let left = self.rng.range(1, 4) as u32; // at most 4
        let end = OpenerLink::new(&config, now, fresh);
        self.links.insert(
            conn,
            Some(Link { address, end, unsent: Unsent::default(), current: None, left, finished: false }),
        );
    }

    fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(Some(link)) = self.links.get_mut(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.end.unseal(now, bytes, &mut scratch);
        loop {
            match link.end.decompose(now, &mut input) {
                Ok(Some(event)) => event_of(link, event),
                Ok(None) => break,
                Err(error) => {
                    self.oracle.borrow_mut().violation(format!("a library client's link failed: {error}"));
                    return self.lose(conn, out);
                }
            }
        }
        out.grant(conn, bytes.len() as u32); // at most what was granted
        self.pump(now, conn, out);
    }

    fn lose<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.forget(conn);
        out.abort(conn);
    }

    fn forget(&mut self, conn: Conn) {
        if let Some(Some(Link { current: Some((_, script)), .. })) = self.links.remove(&conn) {
            script.done();
        }
    }

    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Some(link)) = self.links.get_mut(&conn) else { return };
        if link.end.is_established() && link.current.is_none() && link.left > 0 && link.end.connections() == 0
        {
            link.left -= 1;
            if let Ok(id) = link.end.open(link.address, None) {
                let mut script =
                    Script::new(&mut self.rng, link.address, self.early_ends_in_1000, &self.oracle);
                if self.next_client.is_none() {
                    // The link was in flight when the storm ended.
                    script.calm_down();
                }
                link.current = Some((id, script));
            }
        }
        while link.end.poll_room().is_some() {}
        if let Some((id, script)) = &mut link.current {
            let id = *id;
            loop {
                let bytes = script.next_bytes(now, &mut self.rng);
                if bytes.is_empty() {
                    break;
                }
                let taken = link.end.compose(id, &bytes);
                script.sent_bytes(taken, now, &mut self.rng);
                if taken < bytes.len() {
                    break;
                }
            }
            if script.is_sent() {
                script.finish();
                link.end.finish(id);
            }
            let read = script.reads(&mut self.rng);
            let outcome = link.end.consumed(id, read as usize);
            debug_assert_eq!(outcome, Ok(()), "at most what is unread");
            let resets = script.resets();
            if resets && self.rng.chance(1, 2) {
                return self.lose(conn, out);
            }
            if resets || (script.saw_end && script.finished && script.unread == 0) {
                script.done();
                link.end.close(id, if resets { CloseReason::Reset } else { CloseReason::Normal });
                link.current = None;
            }
        }
        let waits = link.current.as_ref().is_some_and(|(_, script)| script.unread > 0 || script.pause > now);
        if waits && self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)));
        }
        let over = link.current.is_none() && link.left == 0 && link.end.connections() == 0;
        if link.transmit(now, conn, out) && over && link.end.is_established() && !link.finished {
            link.finished = true;
            out.finish(conn);
        }
    }
}

impl Link {
    /// Returns whether everything was sent.
    fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) -> bool {
        let next = |spent| {
            self.end.recycle(spent);
            self.end.flush(now)
        };
        self.unsent.send_all_to(next, |bytes| out.send(conn, bytes));
        self.unsent.is_empty()
    }
}

fn event_of(link: &mut Link, event: OpenerEvent<'_>) {
    match event {
        OpenerEvent::Data { bytes, .. } => {
            if let Some((_, script)) = &mut link.current {
                script.received(bytes);
            }
        }
        OpenerEvent::Finished { .. } => {
            if let Some((_, script)) = &mut link.current {
                script.end_of_replies();
            }
        }
        OpenerEvent::Refused { .. } => {
            if let Some((_, script)) = link.current.take() {
                script.done();
            }
        }
        OpenerEvent::Closed { id, reason } => {
            link.end.close(id, reason);
            if let Some((_, mut script)) = link.current.take() {
                if reason == CloseReason::Normal {
                    script.end_of_replies();
                }
                script.done();
            }
        }
        OpenerEvent::Drain { .. } => link.left = 0,
        OpenerEvent::Established { .. }
        | OpenerEvent::Accepted { .. }
        | OpenerEvent::Taken { .. }
        | OpenerEvent::RelayedData { .. }
        | OpenerEvent::RelayedControl { .. } => {}
    }
}

impl Application for Library {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let Some(address) = self.addresses.borrow().get(&conn).copied() else { return };
                self.opened(now, conn, address);
                out.grant(conn, 1 << 20);
                self.pump(now, conn, out);
            }
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
            Event::Room => self.pump(now, conn, out),
            Event::Finished => {
                let finished =
                    self.links.get(&conn).is_some_and(|link| link.as_ref().is_some_and(|l| l.finished));
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
                self.pump(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.scale(10_000, 10_000_000)));
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
