//! Requests that move with their connections: draws what servers do with them, and compares what servers learn with what
//! has happened.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use spillway_moves::{HandedRequest, Purpose, RequestCommand, RequestOutcome};
use spillway_transport::Conn;
use spillway_wire::switch::ServerId;

use super::names::Names;
use crate::rng::Rng;

/// A request: its origin, and its number there.
type Key = (ServerId, u64);

/// A request that is at a server with its connection.
#[derive(Clone, Copy, Debug)]
struct Open {
    key: Key,
    /// The server has executed it, and its connection did not return.
    is_executed: bool,
}

/// What has happened to a request.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    executed: bool,
    /// Its origin knows how it ended, or it has returned there.
    is_ended: bool,
}

/// Numbers of requests in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCounts {
    /// Arrivals at another server than the origin.
    pub(crate) handed_off: u64,
    /// Reports of other servers that they have served a request.
    pub(crate) served: u64,
    /// Connections that have returned to the origin of their request.
    pub(crate) returned: u64,
    /// Requests that have stayed where they were, because their move has failed or was refused.
    pub(crate) stayed: u64,
    /// Requests whose connections have ended at another server.
    pub(crate) abandoned: u64,
    /// Requests of which the origin cannot know how they ended.
    pub(crate) unknown: u64,
}

/// The requests of a host's servers.
#[derive(Debug)]
pub(crate) struct Requests {
    /// `None`: no request is handed off.
    rng: Option<Rng>,
    /// The servers, by index.
    servers: Vec<ServerId>,
    /// Commands for each server.
    commands: BTreeMap<usize, VecDeque<(Conn, RequestCommand)>>,
    open: BTreeMap<Conn, Open>,
    /// Connections with a command whose result is not known yet: an application gives one at a time.
    busy: BTreeSet<Conn>,
    all: BTreeMap<Key, Truth>,
    pub(super) violations: Vec<String>,
    pub(crate) counts: RequestCounts,
}

impl Requests {
    pub(super) fn new(rng: Option<Rng>, servers: Vec<ServerId>) -> Requests {
        Requests {
            rng,
            servers,
            commands: BTreeMap::new(),
            open: BTreeMap::new(),
            busy: BTreeSet::new(),
            all: BTreeMap::new(),
            violations: Vec::new(),
            counts: RequestCounts::default(),
        }
    }

    /// Draws whether a connection that is to move is handed off with a request. If so, the server gets a command.
    pub(super) fn takes(&mut self, name: Conn, server: usize) -> bool {
        let Some(rng) = self.rng.as_mut().filter(|_| self.servers.len() > 1) else { return false };
        if self.busy.contains(&name) {
            return true;
        }
        if self.open.contains_key(&name) {
            self.decide(name, server);
            return true;
        }
        let takes = rng.chance(1, 2);
        if takes {
            let command = RequestCommand::HandOff(self.another(server));
            self.command(name, server, command);
        }
        takes
    }

    /// The next command for a server, with the connection on its stack.
    pub(super) fn next_command(&mut self, server: usize, names: &Names) -> Option<(Conn, RequestCommand)> {
        loop {
            let (name, command) = self.commands.get_mut(&server)?.pop_front()?;
            // The connection may have moved for another reason, or have ended.
            let Some(handle) = names.handle(name).filter(|handle| handle.server == server) else {
                self.busy.remove(&name);
                continue;
            };
            let is_executed = match command {
                RequestCommand::HandOff(_) => false,
                RequestCommand::Return { is_served } => is_served,
                RequestCommand::Served => true,
            };
            if is_executed && let Some(violation) = self.execute(name) {
                self.violations.push(violation);
            }
            if command == RequestCommand::Served {
                self.open.remove(&name);
                self.busy.remove(&name);
            }
            return Some((handle.conn, command));
        }
    }

    /// The server that has the connection executes its request. Returns a violation.
    fn execute(&mut self, name: Conn) -> Option<String> {
        let open = self.open.get_mut(&name)?;
        let (key, is_repeated) = (open.key, std::mem::replace(&mut open.is_executed, true));
        let was_executed = std::mem::replace(&mut self.all.entry(key).or_default().executed, true);
        // The answer to a request whose connection could not return is not executed again.
        (was_executed && !is_repeated)
            .then(|| format!("request {key:?} of {name:?} is executed a second time"))
    }

    /// A connection has come to a server. Returns violations.
    pub(super) fn arrive(
        &mut self,
        name: Conn,
        server: usize,
        request: Option<&HandedRequest>,
    ) -> Option<String> {
        self.open.remove(&name);
        self.busy.remove(&name);
        let request = request?;
        let key = (request.origin, request.number);
        let truth = self.all.entry(key).or_default();
        let is_origin = self.servers.get(server) == Some(&request.origin);
        let was_executed = truth.executed;
        let violation =
            |what: &str| Some(format!("server {server} gets request {key:?} of {name:?}, {what}"));
        match request.purpose {
            Purpose::Serve | Purpose::NotServed if was_executed => {
                return violation("which was executed before");
            }
            Purpose::Served if !was_executed => {
                return violation("which says that it was served, but was not");
            }
            Purpose::Served | Purpose::NotServed if !is_origin => {
                return violation("which returns, but is not its origin");
            }
            Purpose::Serve => self.counts.handed_off += 1,
            Purpose::Served | Purpose::NotServed => self.counts.returned += 1,
        }
        if request.purpose == Purpose::Served {
            truth.is_ended = true;
            return None;
        }
        self.open.insert(name, Open { key, is_executed: false });
        if self.rng.as_mut().is_some_and(|rng| rng.chance(3, 4)) {
            self.decide(name, server);
        }
        None
    }

    /// The request of a connection has stayed at a server.
    pub(super) fn stay(&mut self, name: Option<Conn>, server: usize) {
        self.counts.stayed += 1;
        let Some(name) = name else { return };
        self.busy.remove(&name);
        if self.open.contains_key(&name) {
            self.decide(name, server);
        }
    }

    /// A server learns how a request of its own has ended. Returns violations.
    pub(super) fn end(&mut self, server: usize, number: u64, outcome: RequestOutcome) -> Option<String> {
        let key = (*self.servers.get(server)?, number);
        let truth = self.all.entry(key).or_default();
        let is_known = std::mem::replace(&mut truth.is_ended, true);
        if is_known {
            return Some(format!(
                "server {server} learns a second time how request {key:?} ended: {outcome:?}"
            ));
        }
        match outcome {
            RequestOutcome::Served(_) if !truth.executed => {
                return Some(format!(
                    "server {server} learns that {key:?} was served, which no server has executed"
                ));
            }
            RequestOutcome::Served(_) => self.counts.served += 1,
            RequestOutcome::Abandoned(_) => self.counts.abandoned += 1,
            RequestOutcome::Unknown => self.counts.unknown += 1,
            RequestOutcome::Stays(_) => {}
        }
        None
    }

    /// Draws what a server does with the request of a connection.
    fn decide(&mut self, name: Conn, server: usize) {
        let Some(Open { key: (origin, _), is_executed }) = self.open.get(&name).copied() else { return };
        let is_own = self.servers.get(server) == Some(&origin);
        let another = self.another(server);
        let Some(rng) = &mut self.rng else { return };
        let command = match (rng.below(10), is_own, is_executed) {
            (0..4, _, _) | (_, true, true) => RequestCommand::Served,
            (4..6, false, _) | (_, false, true) => RequestCommand::Return { is_served: true },
            (6..8, false, false) => RequestCommand::Return { is_served: false },
            (_, _, false) => RequestCommand::HandOff(another),
        };
        self.command(name, server, command);
    }

    fn command(&mut self, name: Conn, server: usize, command: RequestCommand) {
        self.busy.insert(name);
        self.commands.entry(server).or_default().push_back((name, command));
    }

    /// Another server than the one with this index.
    fn another(&mut self, server: usize) -> ServerId {
        let others = self.servers.len().saturating_sub(1).max(1) as u64;
        let place = self.rng.as_mut().map_or(0, |rng| rng.below(others)) as usize; // fits: a few servers
        let place = if place < server { place } else { place + 1 };
        self.servers.get(place).copied().unwrap_or(ServerId(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Conn = Conn { slot: 7, generation: 0 };

    fn requests() -> Requests {
        Requests::new(None, vec![ServerId(1), ServerId(2)])
    }

    fn request(purpose: Purpose) -> HandedRequest {
        HandedRequest { origin: ServerId(1), number: 9, hops_left: 1, purpose }
    }

    #[test]
    fn a_request_that_is_executed_twice_or_not_at_all_is_a_violation() {
        let arrive =
            |requests: &mut Requests, server, purpose| requests.arrive(NAME, server, Some(&request(purpose)));
        let mut executed = requests();
        assert_eq!(arrive(&mut executed, 1, Purpose::Serve), None);
        assert_eq!(executed.execute(NAME), None);
        for purpose in [Purpose::Serve, Purpose::NotServed] {
            let why = arrive(&mut executed, 0, purpose).unwrap();
            assert!(why.contains("executed before"), "{why}");
        }
        assert_eq!(arrive(&mut executed, 0, Purpose::Served), None);
        assert!(arrive(&mut requests(), 0, Purpose::Served).unwrap().contains("but was not"));
        assert!(arrive(&mut requests(), 1, Purpose::NotServed).unwrap().contains("not its origin"));
    }

    #[test]
    fn an_origin_that_learns_twice_or_something_wrong_is_a_violation() {
        let served = RequestOutcome::Served(ServerId(2));
        let why = requests().end(0, 9, served).unwrap();
        assert!(why.contains("which no server has executed"), "{why}");
        let mut executed = requests();
        executed.arrive(NAME, 1, Some(&request(Purpose::Serve)));
        assert_eq!(executed.execute(NAME), None);
        executed.open.insert(NAME, Open { key: (ServerId(1), 9), is_executed: false });
        assert!(executed.execute(NAME).unwrap().contains("a second time"));
        assert_eq!(executed.end(0, 9, served), None);
        assert!(executed.end(0, 9, RequestOutcome::Unknown).unwrap().contains("a second time"));
        assert_eq!(executed.counts.served, 1);
    }
}
