//! Servers behind the switch of core/rules, in virtual time, with a path for each datagram that a test may cut.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_handoff::{Agent, Event, Limits, Sorted, Transmit};
use spillway_rules::{Action, FlowView, Switch};
use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{ipv4, tcp};
use spillway_wire::switch::{Flow, ServerId};

use crate::service::{CLIENT, agent_settings, control_frame, end, ip_frame, mac, port, switch_config};

type Losses = Box<dyn FnMut(u8, Option<u8>, &[u8]) -> bool>;
type AnswerLosses = Box<dyn FnMut(u8, &[u8]) -> bool>;

/// Servers 1 to 3 of one service. Server 1 is the original owner.
pub struct Rack {
    pub now: Time,
    pub switch: Switch,
    agents: Vec<Agent>,
    epoch: u64,
    /// Decides which datagrams are lost: sender, receiver (`None`: the switch), and payload.
    pub is_lost: Losses,
    /// Decides which answers and relayed messages of the switch are lost.
    pub is_answer_lost: AnswerLosses,
    /// Each datagram between servers arrives this often.
    pub copies: usize,
    /// Delivered datagrams between servers: receiver and payload.
    pub seen: Vec<(u8, Vec<u8>)>,
}

pub fn client() -> SocketAddr {
    end("10.0.0.2:40000")
}

pub fn flow() -> Flow {
    flow_of(client().port())
}

/// The flow of the client's connection from this port.
pub fn flow_of(port: u16) -> Flow {
    let client = SocketAddr::new(client().ip(), port);
    Flow::new(client.into(), end("10.0.0.1:80").into()).unwrap()
}

pub fn place(server: u8) -> SocketAddr {
    if server == 1 { end("10.0.0.1:80") } else { SocketAddr::from(([10, 0, 1, server], 8080)) }
}

fn places() -> [SocketAddr; 3] {
    [1, 2, 3].map(place)
}

fn switch(epoch: u64) -> Switch {
    Switch::new(switch_config(&places()), epoch).unwrap()
}

fn agent(now: Time, server: u8, run: u64, limits: Limits) -> Agent {
    let mut agent = Agent::new(now, agent_settings(&places(), server, run, limits));
    agent.set_load(0, 10);
    agent
}

impl Rack {
    pub fn new() -> Rack {
        Rack::with_limits(Limits::default())
    }

    pub fn with_limits(limits: Limits) -> Rack {
        let now = Time(1_000_000_000);
        let mut rack = Rack {
            now,
            switch: switch(7_000),
            agents: (1..=3).map(|server| agent(now, server, u64::from(server), limits)).collect(),
            epoch: 7_000,
            is_lost: Box::new(|_, _, _| false),
            is_answer_lost: Box::new(|_, _| false),
            copies: 1,
            seen: Vec::new(),
        };
        rack.advance(200);
        rack
    }

    pub fn agent(&mut self, server: u8) -> &mut Agent {
        &mut self.agents[usize::from(server) - 1]
    }

    /// The server process begins anew.
    pub fn restart_server(&mut self, server: u8) {
        *self.agent(server) = agent(self.now, server, 100 + u64::from(server), Limits::default());
    }

    /// The switch loses all entries.
    pub fn restart_switch(&mut self) {
        self.epoch += 1_000;
        self.switch = switch(self.epoch);
    }

    pub fn no_losses(&mut self) {
        self.is_lost = Box::new(|_, _, _| false);
        self.is_answer_lost = Box::new(|_, _| false);
    }

    pub fn cut(&mut self, server: u8) {
        self.is_lost = Box::new(move |from, to, _| from == server || to == Some(server));
        self.is_answer_lost = Box::new(move |to, _| to == server);
    }

    /// What this server sends is lost; it receives everything.
    pub fn cut_answers_of(&mut self, server: u8) {
        self.is_lost = Box::new(move |from, _, _| from == server);
    }

    pub fn advance(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now = self.now + Duration::from_millis(1);
            self.deliver();
        }
    }

    /// Delivers everything that is sent now.
    pub fn deliver(&mut self) {
        let now = self.now;
        for _ in 0..100_000 {
            let mut is_quiet = true;
            for server in 1..=3 {
                self.agent(server).handle_timeout(now);
                while let Some(transmit) = self.agent(server).poll_transmit(now) {
                    is_quiet = false;
                    self.send(server, transmit);
                }
            }
            if is_quiet {
                return;
            }
        }
        panic!("the servers never stop sending");
    }

    fn send(&mut self, from: u8, transmit: Transmit) {
        match transmit {
            Transmit::Server { to: ServerId(to), payload } => {
                if !(self.is_lost)(from, Some(to), &payload) {
                    self.seen.push((to, payload.clone()));
                    for _ in 0..self.copies {
                        self.receive(to, &payload);
                    }
                }
            }
            Transmit::Switch(payload) => {
                if !(self.is_lost)(from, None, &payload[..]) {
                    let mut frame = control_frame(&places(), from, &payload[..]);
                    let decision = self.switch.handle_frame(self.now, port(from), &mut frame);
                    let to = match decision.action {
                        Action::Answer => from,
                        Action::To(port) => port.number(),
                        _ => return,
                    };
                    let payload = frame[frame.len() - payload.len()..].to_vec();
                    if !(self.is_answer_lost)(to, &payload) {
                        self.receive(to, &payload);
                    }
                }
            }
        }
    }

    pub fn receive(&mut self, to: u8, payload: &[u8]) {
        let now = self.now;
        self.agent(to).handle_datagram(now, &mut payload.to_vec());
    }

    pub fn entry(&self) -> Option<FlowView> {
        self.switch.flows().into_iter().next()
    }

    /// A client's segment with this sequence number passes the switch. Returns the server's port, and the frame there.
    pub fn client_sends(&mut self, seq: u32) -> (u8, Vec<u8>) {
        let mut frame = segment(seq);
        match self.switch.handle_frame(self.now, port(CLIENT), &mut frame).action {
            Action::To(port) => (port.number(), frame),
            other => panic!("{other:?}"),
        }
    }

    /// The client and server 2, which owns the flow, close the connection. Then the client opens another one with the same ends,
    /// so that the switch ends the entry.
    pub fn client_opens_again(&mut self) {
        let (seq, ack) = (100, 900);
        let of_client = |seq, flags| tcp::Header { seq, ack: ack + 1, flags, ..tcp::Header::default() };
        let fin = tcp::Flags::FIN | tcp::Flags::ACK;
        let of_server = tcp::Header { seq: ack, ack: seq + 1, flags: fin, ..tcp::Header::default() };
        let to_client = tcp_frame(of_server, (mac(2), place(2)), (mac(CLIENT), client()), b"");
        let to_service = |header| tcp_frame(header, (mac(CLIENT), client()), (mac(1), place(1)), b"");
        for (from, mut frame) in [
            (CLIENT, to_service(of_client(seq, fin))),
            (2, to_client),
            (CLIENT, to_service(of_client(seq + 1, tcp::Flags::ACK))),
            (CLIENT, to_service(of_client(70_000, tcp::Flags::SYN))),
        ] {
            let action = self.switch.handle_frame(self.now, port(from), &mut frame).action;
            assert!(matches!(action, Action::To(_)), "{action:?}");
        }
        assert_eq!(self.entry(), None);
    }

    /// The client's segment arrives at the server to which the switch sends it.
    pub fn client_reaches(&mut self, seq: u32) -> (u8, Sorted) {
        let (server, frame) = self.client_sends(seq);
        (server, self.sort(server, &frame))
    }

    pub fn sort(&mut self, server: u8, frame: &[u8]) -> Sorted {
        let now = self.now;
        self.agent(server).sort(now, (client(), place(server)), false, frame)
    }

    /// A SYN of the client arrives at the original owner.
    pub fn sort_syn(&mut self, seq: u32) -> Sorted {
        let now = self.now;
        self.agent(1).sort(now, (client(), place(1)), true, &syn(seq))
    }

    pub fn may_transmit(&mut self, server: u8) -> bool {
        let now = self.now;
        self.agent(server).may_transmit(now, (place(server), client()))
    }

    /// All events of a server, except those for logs.
    pub fn events(&mut self, server: u8) -> Vec<Event> {
        let agent = self.agent(server);
        let all = std::iter::from_fn(|| agent.poll_event());
        all.filter(|event| !matches!(event, Event::Ended { .. })).collect()
    }

    /// Server `from` prepares a move to server `to`; the switch holds the flow.
    pub fn prepare(&mut self, from: u8, to: u8) {
        let now = self.now;
        self.agent(from).request_move(now, flow(), Some(ServerId(to))).unwrap();
        self.deliver();
        assert_eq!(self.events(from), [Event::Export { flow: flow() }]);
    }

    /// As [`prepare`](Self::prepare), and exports. Returns the generation at which the target checks the state.
    pub fn export(&mut self, from: u8, to: u8, state: &[u8]) -> u64 {
        self.prepare(from, to);
        let now = self.now;
        self.agent(from).exported(now, flow(), Chunks::from(state));
        self.deliver();
        match &self.events(to)[..] {
            [Event::Check { generation, state: arrived, .. }] if arrived.to_vec() == state => *generation,
            other => panic!("{other:?}"),
        }
    }

    /// Moves the connection. Returns the events of the target.
    pub fn complete(&mut self, from: u8, to: u8, state: &[u8]) -> Vec<Event> {
        let generation = self.export(from, to, state);
        let now = self.now;
        assert!(to == 1 || !self.may_transmit(to), "the target transmits only as an owner");
        self.agent(to).checked(now, flow(), generation, Ok(()));
        self.deliver();
        self.events(to)
    }
}

pub fn segment_at(server: u8, seq: u32) -> Vec<u8> {
    client_frame((seq, tcp::Flags::ACK), server)
}

/// The client's SYN, as it arrives at the original owner.
pub fn syn(seq: u32) -> Vec<u8> {
    client_frame((seq, tcp::Flags::SYN), 1)
}

fn segment(seq: u32) -> Vec<u8> {
    client_frame((seq, tcp::Flags::ACK), 1)
}

fn client_frame((seq, flags): (u32, tcp::Flags), server: u8) -> Vec<u8> {
    let header = tcp::Header { seq, flags, ..tcp::Header::default() };
    tcp_frame(header, (mac(CLIENT), client()), (mac(server), place(server)), b"data")
}

fn tcp_frame(
    header: tcp::Header,
    (source_mac, source): (Mac, SocketAddr),
    (target_mac, target): (Mac, SocketAddr),
    payload: &[u8],
) -> Vec<u8> {
    let header = tcp::Header { source: source.port(), target: target.port(), ..header };
    let length = header.header_bytes() + payload.len();
    let (mut frame, pseudo) =
        ip_frame((source_mac, target_mac), (source, target), ipv4::PROTOCOL_TCP, length);
    let at = frame.len() - length;
    frame[at + header.header_bytes()..].copy_from_slice(payload);
    header.emit(&mut frame[at..], payload.len(), pseudo);
    frame
}
