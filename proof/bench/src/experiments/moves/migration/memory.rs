//! Two servers and the switch's rules in one thread, without a network: what moves cost beside the driver.
//!
//! Messages are passed as bytes. Messages to the switch are frames, as on a cable; the time for that, and the switch's time,
//! are not those of the hosts and are left out. All moves have a direction: then all connections move back.

mod application;
mod network;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_handoff::{Agent, Limits, MoveTimes, Peer, Service, Settings as AgentSettings, Transmit};
use spillway_load::monotonic_ns;
use spillway_moves::{Order, OrderResult, Server, TracedMove};
use spillway_rules::Switch;
use spillway_tcp::isn::Key as SequenceKey;
use spillway_tcp::{Listener, Resolver, Settings, Stack};
use spillway_transport::{Time, Transport};
use spillway_wire::handoff::Run;
use spillway_wire::switch::{Flow, SWITCH_MAGIC, ServerId};

use self::application::Holder;
use crate::experiments::common::script::{CLIENT_MAC, Client, Frames, MTU};
use crate::experiments::moves::thread_cpu;

/// Time that passes in a turn. Heartbeats are seldom then.
const TURN: Duration = Duration::from_micros(1);
/// Turns after which a move has failed.
const TURNS_MAX: usize = 1_000_000;
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// Moves whose steps are kept: those of one pass.
const TRACED_MAX: usize = 4096;

/// Mean CPU times of a move, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    /// CPU time of source and target together.
    pub host: f64,
    /// CPU time of the switch's rules.
    pub switch: f64,
}

/// Servers 1 and 2, the switch, and the clients, which are silent.
pub(super) struct Rack {
    now: Time,
    switch: Switch,
    nodes: [Node; 2],
    flows: Vec<Flow>,
    /// The server that has all connections, 0 or 1.
    at: usize,
    /// Time of the switch, and of passing frames to it: by the clock, because its sections are too short for the thread's CPU
    /// time.
    switch_time: Duration,
    /// The datagrams of the present turn: those that were sent, and those of the other server that were handled.
    sent: Vec<Transmit>,
    handled: Vec<Vec<u8>>,
}

struct Node {
    id: u8,
    server: Server,
    application: Holder,
    datagrams: VecDeque<Vec<u8>>,
    slot: Vec<u8>,
}

impl Rack {
    /// All connections are at server 1, each with this number of bytes that its client has not acknowledged.
    pub(super) fn new(connections: usize, queued: usize) -> Result<Rack, String> {
        let now = Time(1_000_000_000);
        let mut rack = Rack {
            now,
            switch: Switch::new(network::config(OWNER_TIMEOUT), 7_000).map_err(|error| error.to_string())?,
            nodes: [Node::new(now, 1, queued)?, Node::new(now, 2, queued)?],
            flows: Vec::new(),
            at: 0,
            switch_time: Duration::ZERO,
            sent: Vec::new(),
            handled: Vec::new(),
        };
        rack.join()?;
        for number in 0..connections {
            rack.open(&mut Client::new(number))?;
        }
        Ok(rack)
    }

    /// Moves all connections to the other server, `under_way` at a time.
    pub(super) fn pass(&mut self, under_way: usize) -> Result<Times, String> {
        let flows = self.flows.clone();
        self.switch_time = Duration::ZERO;
        let start = thread_cpu::own();
        for some in flows.chunks(under_way) {
            self.migrate(some)?;
        }
        let total = thread_cpu::own().saturating_sub(start);
        self.at = 1 - self.at;
        let each = |time: Duration| time.as_nanos() as f64 / 1000.0 / flows.len() as f64;
        Ok(Times { host: each(total.saturating_sub(self.switch_time)), switch: each(self.switch_time) })
    }

    /// As [`pass`](Self::pass), one at a time. Returns the steps at both ends.
    pub(super) fn traced_pass(&mut self) -> Result<Vec<TracedMove>, String> {
        for node in &mut self.nodes {
            node.server.trace_moves(monotonic_ns, TRACED_MAX);
        }
        self.pass(1)?;
        Ok(self.nodes.iter_mut().flat_map(|node| node.server.take_traced()).collect())
    }

    fn migrate(&mut self, flows: &[Flow]) -> Result<(), String> {
        let (source, to) = (self.at, Some(ServerId(self.nodes[1 - self.at].id)));
        for flow in flows {
            let order = Order { flow: *flow, to };
            self.nodes[source].server.order(order).map_err(|error| error.to_string())?;
        }
        // The order wakes the server.
        self.turn(source);
        let mut moved = 0;
        for _ in 0..TURNS_MAX {
            while let Some((_, result)) = self.nodes[source].server.poll_result() {
                if result != OrderResult::Ended(spillway_handoff::MoveResult::Moved) {
                    return Err(format!("a move ended as {result:?}"));
                }
                moved += 1;
            }
            if moved == flows.len() {
                return Ok(());
            }
            self.run_due();
        }
        Err(format!("{moved} of {} connections have moved", flows.len()))
    }

    /// Each server that has something to do takes a turn.
    fn run_due(&mut self) {
        self.now = self.now + TURN;
        for index in 0..self.nodes.len() {
            if self.nodes[index].is_due(self.now) {
                self.turn(index);
            }
        }
    }

    fn turn(&mut self, index: usize) {
        let (now, mut sent) = (self.now, std::mem::take(&mut self.sent));
        self.nodes[index].turn(now, &mut sent, &mut self.handled);
        // A driver copies datagrams into buffers of its own, and returns their memory at once.
        let sender = &mut self.nodes[1 - index];
        for payload in self.handled.drain(..) {
            sender.server.recycle_datagram(Transmit::Server { to: ServerId(sender.id), payload });
        }
        let from = self.nodes[index].id;
        for transmit in sent.drain(..) {
            match transmit {
                Transmit::Switch(payload) => self.pass_switch(from, &payload[..]),
                Transmit::Server { to, payload } => {
                    self.nodes[usize::from(to.0) - 1].datagrams.push_back(payload);
                }
            }
        }
        self.sent = sent;
    }

    fn pass_switch(&mut self, from: u8, payload: &[u8]) {
        let start = Instant::now();
        if let Some((to, datagram)) = network::pass(&mut self.switch, self.now, from, payload) {
            self.nodes[usize::from(to) - 1].datagrams.push_back(datagram);
        }
        self.switch_time += start.elapsed();
    }

    /// Runs until both servers have joined the switch and have a session with each other.
    fn join(&mut self) -> Result<(), String> {
        let until = self.now + Duration::from_millis(300);
        while self.now < until {
            self.run_due();
            self.now = self.now + Duration::from_micros(100);
        }
        Ok(())
    }

    fn open(&mut self, client: &mut Client) -> Result<(), String> {
        let node = &mut self.nodes[0];
        let mut frame = Frames::new(1);
        frame.push(|slot| Some(client.syn(slot)));
        node.server.deliver(&mut node.application, self.now, frame.get(0));
        let length = node.server.poll_transmit(self.now, &mut node.slot);
        let length = length.ok_or("no answer to a SYN")?;
        client.accept_syn_ack(&node.slot[..length])?;
        frame.clear();
        frame.push(|slot| Some(client.acknowledgement(slot)));
        node.server.deliver(&mut node.application, self.now, frame.get(0));
        self.flows.push(flow(client.port())?);
        let here = node.server.connections().flows().count();
        if here != self.flows.len() {
            return Err("a connection did not open".into());
        }
        self.turn(0);
        Ok(())
    }
}

/// The flow of a client with this port.
fn flow(port: u16) -> Result<Flow, String> {
    let (client, service) = (network::client(port), network::place(1));
    Flow::new(client.into(), service.into()).map_err(|error| format!("{error:?}"))
}

/// Any flow of the service.
pub(super) fn any_flow() -> Result<Flow, String> {
    flow(1)
}

impl Node {
    fn new(now: Time, id: u8, queued: usize) -> Result<Node, String> {
        let place = network::place(id);
        let settings = Settings::new(network::mac(id), place.ip(), 24, SequenceKey([id; 16]));
        let listeners = vec![Listener { address: place, is_gated: false }];
        let settings = Settings { resolver: Resolver::Driver, mtu: MTU, listeners, ..settings };
        let mut stack = Stack::new(now, settings).map_err(|error| error.to_string())?;
        stack.set_listening(0, id == 1);
        stack.set_next_hop(now, network::client(1).ip(), Some(CLIENT_MAC));
        let agent = AgentSettings {
            id: ServerId(id),
            key: network::key(id),
            peers_key: Key::from_secret([5; 32]),
            run: Run::new(u64::from(id)).ok_or("a run is not 0")?,
            mac: network::mac(id),
            services: vec![Service {
                endpoint: network::place(1).into(),
                place: place.into(),
                original: ServerId(1),
            }],
            peers: [1, 2].map(|id| Peer { id: ServerId(id), mac: network::mac(id) }).into(),
            heartbeat: OWNER_TIMEOUT / 10,
            owner_timeout: OWNER_TIMEOUT,
            times: MoveTimes::default(),
            time_wait: OWNER_TIMEOUT,
            limits: Limits::default(),
        };
        Ok(Node {
            id,
            server: Server::new(stack, Some(Agent::new(now, agent)), [network::place(1).into()]),
            application: Holder::new(queued),
            datagrams: VecDeque::new(),
            slot: vec![0; 2048],
        })
    }

    fn is_due(&self, now: Time) -> bool {
        !self.datagrams.is_empty()
            || self.server.has_exports()
            || self.server.poll_timeout(&self.application).is_some_and(|at| at <= now)
    }

    /// A turn, as that of a driver whose device takes all frames. The frames are for silent clients.
    fn turn(&mut self, now: Time, sent: &mut Vec<Transmit>, handled: &mut Vec<Vec<u8>>) {
        let Node { server, application, datagrams, slot, .. } = self;
        server.begin_turn(application, now);
        while let Some(mut datagram) = datagrams.pop_front() {
            server.handle_datagram(application, now, &mut datagram);
            if !datagram.starts_with(&SWITCH_MAGIC) {
                handled.push(datagram);
            }
        }
        server.end_turn(application, now);
        while server.poll_transmit(now, slot).is_some() {}
        server.frames_sent(application, now);
        while let Some(transmit) = server.poll_datagram(now) {
            sent.push(transmit);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_moves::{End, Step};

    use super::*;

    #[test]
    fn connections_move_back_and_forth_with_their_queues_and_all_steps() {
        for queued in [0, 128 << 10] {
            let mut rack = Rack::new(4, queued).unwrap();
            for _ in 0..3 {
                let times = rack.pass(2).unwrap();
                assert!(times.host > 0.0 && times.switch > 0.0, "{times:?}");
            }
            let traced = rack.traced_pass().unwrap();
            assert_eq!(traced.len(), 8, "both ends of four moves");
            let steps =
                |traced: &TracedMove| Step::ALL.iter().filter(|step| traced.at(**step).is_some()).count();
            let ends =
                |end| traced.iter().filter(move |traced| traced.end == end).map(steps).collect::<Vec<_>>();
            assert_eq!((ends(End::Source), ends(End::Target)), (vec![6; 4], vec![6; 4]));
            let [first, second] = &rack.nodes;
            assert_eq!((first.server.counters().lost, second.server.counters().lost), (0, 0));
            let conns = first.server.connections().flows().count();
            assert_eq!(conns, 4, "four passes bring all connections back");
        }
    }
}
