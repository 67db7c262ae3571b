//! The host of all clients. A client moves its session between helpers and the server's own link port when
//! the carrier fails or is silent for too long, and at random times.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::Encryption;
use spillway_session::{Action, Driver, LinkTarget};
use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};
use spillway_wire::session::SessionId;

use super::check::Check;
use super::checker::SharedChecker;
use super::client::{Client, Environment, Socket};
use super::client_app::ClientApp;
use super::client_behaviour::ClientBehaviour;
use super::copies;
use super::planted_fault::PlantedFault;
use crate::clock::Clock;
use crate::network::AddressBook;
use crate::rng::Rng;

const ABANDONED_MAX: usize = 50;

pub(crate) struct ClientEnvironment {
    pub(crate) addresses: AddressBook,
    /// The helpers' link ports, then the server's.
    pub(crate) ports: Vec<SocketAddr>,
    pub(crate) key: Key,
    pub(crate) checker: SharedChecker,
    pub(crate) copies: Option<copies::SharedCopies>,
    pub(crate) planted: Option<PlantedFault>,
}

/// The host has the world's time as its `now`; each client has a clock of its own, which drifts.
pub(crate) struct Clients {
    environment: ClientEnvironment,
    behaviour: ClientBehaviour,
    rng: Rng,
    clients: BTreeMap<u64, Client>,
    by_carrier: BTreeMap<Conn, u64>,
    /// Carriers that clients have left open, and when each is closed.
    abandoned: Vec<(Conn, Time)>,
    next_number: u64,
    next_client: Option<Time>,
    in_calm_phase: bool,
}

impl ClientEnvironment {
    fn for_turn<'a>(&'a self, rng: &'a mut Rng) -> Environment<'a> {
        Environment { rng, checker: &self.checker, copies: self.copies.as_ref(), planted: self.planted }
    }

    fn server(&self) -> SocketAddr {
        self.ports[self.ports.len() - 1]
    }

    /// All link ports in random order; in three calls of four, the server's comes last.
    fn targets(&self, rng: &mut Rng) -> Vec<LinkTarget> {
        let (server, helpers) = self
            .ports
            .split_last()
            .map_or((self.server(), [].as_slice()), |(server, helpers)| (*server, helpers));
        let mut ports: Vec<SocketAddr> = Vec::new();
        for helper in helpers {
            ports.insert(rng.below(ports.len() as u64 + 1) as usize, *helper);
        }
        let position =
            if rng.chance(3, 4) { ports.len() } else { rng.below(ports.len() as u64 + 1) as usize };
        ports.insert(position, server);
        let target = |address| LinkTarget {
            address,
            key: self.key.clone(),
            server: None,
            encryption: Encryption::Preferred,
        };
        ports.into_iter().map(target).collect()
    }

    /// Moves a client to a random link port, perhaps its present one, or replaces its list of link ports. An
    /// index beyond the end of a shortened list has no effect.
    fn move_at_random(&self, client_now: Time, driver: &mut Driver<LostReason>, rng: &mut Rng) {
        if driver.is_closed_here() {
            return;
        }
        let mut targets = self.targets(rng);
        if rng.chance(1, 4) {
            targets.truncate(rng.range(1, targets.len() as u64) as usize);
            driver.set_targets(targets);
        } else {
            driver.move_to(client_now, rng.below(targets.len() as u64) as usize);
        }
    }
}

impl Clients {
    pub(crate) fn new(environment: ClientEnvironment, behaviour: ClientBehaviour, rng: Rng) -> Clients {
        Clients {
            environment,
            behaviour,
            rng,
            clients: BTreeMap::new(),
            by_carrier: BTreeMap::new(),
            abandoned: Vec::new(),
            next_number: 0,
            next_client: Some(Time::ZERO),
            in_calm_phase: false,
        }
    }

    pub(crate) fn begin_calm_phase(&mut self, now: Time) {
        self.in_calm_phase = true;
        self.next_client = None;
        for client in self.clients.values_mut() {
            client.begin_calm_phase(now);
            client.driver.set_targets(self.environment.targets(&mut self.rng));
        }
    }

    /// Changes the clock of each client with probability 1/2, as [`Clock::drift`] does.
    pub(crate) fn drift(&mut self, now: Time) {
        for client in self.clients.values_mut() {
            if self.rng.chance(1, 2) {
                client.clock.drift(&mut self.rng, now);
                client.wake_at = now;
            }
        }
    }

    /// Number of clients that have not ended and of abandoned carriers.
    pub(crate) fn open(&self) -> usize {
        self.clients.len() + self.abandoned.len()
    }

    fn add_client(&mut self, now: Time) {
        let rng = &mut self.rng;
        let mut id = SessionId([0; 16]);
        rng.fill(&mut id.0);
        self.environment.checker.borrow_mut().begin(id);
        let app = ClientApp::draw(id, &self.behaviour, rng);
        let clock = Clock::draw(rng);
        let settings = self.behaviour.settings(self.environment.server(), rng);
        let targets = self.environment.targets(rng);
        let Some(driver) = Driver::new(clock.read(now), targets, &settings, id, rng.word()) else { return };
        self.clients.insert(self.next_number, Client { driver, app, socket: None, clock, wake_at: now });
        self.next_number += 1;
    }

    /// Runs a client's turn: application, timers, moves and output.
    fn client_turn<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let client_now = client.local_time(now);
        client.app.work(&mut client.driver, &mut self.rng, &self.environment.checker);
        client.grant(&mut self.rng, out);
        client.driver.handle_timeout(client_now);
        if !self.in_calm_phase && self.rng.chance(self.behaviour.random_moves_per_1000, 1000) {
            self.environment.move_at_random(client_now, &mut client.driver, &mut self.rng);
        }
        self.perform_actions(now, number, out);
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.handle_events(&mut self.environment.for_turn(&mut self.rng));
        let kept = client.driver.unacknowledged_bytes();
        if kept > self.behaviour.limits.kept_bytes_max {
            let what = format!("a client keeps {kept} bytes, more than its bound");
            self.environment.checker.borrow_mut().violation(Check::Memory, what);
        }
        if client.driver.is_over() {
            self.environment.checker.borrow_mut().client_ended(client.driver.id());
            self.close(now, number, out);
            self.clients.remove(&number);
            return;
        }
        let due = client.driver.poll_timeout();
        let timer_at = due.map_or(now + Duration::from_secs(1), |at| client.clock.when(at));
        client.wake_at = if client.has_work() {
            timer_at.min(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)))
        } else {
            timer_at
        };
    }

    /// Sends a client's output, and opens and closes carriers as its driver requests.
    fn perform_actions<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        while let Some(client) = self.clients.get_mut(&number) {
            let client_now = client.local_time(now);
            client.transmit(client_now, &mut self.environment.for_turn(&mut self.rng), out);
            let target = match client.driver.poll_action() {
                None => break,
                Some(Action::Close) => {
                    self.close(now, number, out);
                    continue;
                }
                Some(Action::Open(target)) => target.address,
            };
            match out.connect(now, target) {
                Ok(conn) => {
                    client.socket = Some(Socket { conn, is_connected: false, ungranted: 0 });
                    self.by_carrier.insert(conn, number);
                }
                Err(_) => client.driver.handle_failed(client_now, LostReason::Failed, false),
            }
        }
    }

    /// Closes a client's socket at once, or leaves the socket open for up to 200 ms without reading.
    fn close<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(socket) = client.socket.take() else { return };
        self.by_carrier.remove(&socket.conn);
        if !self.in_calm_phase && self.abandoned.len() < ABANDONED_MAX && self.rng.chance(1, 2) {
            let until = now + Duration::from_nanos(self.rng.log_uniform(100_000, 200_000_000));
            self.abandoned.push((socket.conn, until));
        } else {
            out.abort(socket.conn);
        }
    }
}

impl Application for Clients {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.abandoned.retain(|(abandoned, _)| {
            *abandoned != conn || !matches!(event, Event::Finished | Event::Lost(_))
        });
        if matches!(event, Event::Finished) {
            out.finish(conn);
        }
        let Some(&number) = self.by_carrier.get(&conn) else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        let client_now = client.local_time(now);
        match event {
            Event::Opened { .. } => {
                let address = self.environment.addresses.borrow().get(&conn).copied();
                debug_assert!(address.is_some(), "an open connection should have an address");
                client.handle_connected(client_now, address.unwrap_or(([0; 4], 0).into()), &mut self.rng);
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => {
                client.receive(client_now, bytes, &mut self.environment.for_turn(&mut self.rng));
            }
            Event::Finished | Event::Lost(_) => {
                self.by_carrier.remove(&conn);
                client.socket = None;
                match event {
                    Event::Lost(reason) => {
                        client.driver.handle_failed(client_now, reason, reason == LostReason::Refused)
                    }
                    _ => client.driver.handle_closed(client_now),
                }
            }
            Event::Room => {}
            Event::Acknowledged { .. } => return,
        }
        self.client_turn(now, number, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.log_uniform(10_000, 10_000_000)));
            if self.clients.len() < self.behaviour.clients_max {
                self.add_client(now);
            }
        }
        let due = self.clients.iter().filter(|(_, client)| client.wake_at <= now);
        let due: Vec<u64> = due.map(|(number, _)| *number).collect();
        due.into_iter().for_each(|number| self.client_turn(now, number, out));
        self.abandoned.retain(|(conn, until)| {
            if *until <= now {
                out.abort(*conn);
            }
            *until > now
        });
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        let clients = self.clients.values().map(|client| client.wake_at);
        clients.chain(self.abandoned.iter().map(|(_, until)| *until)).chain(self.next_client).min()
    }
}
