//! The hosts and the switch between them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use spillway_handoff::{Agent, Limits, Transmit};
use spillway_moves::{Counters, Decision, Meter, Movable, Order, OrderError, OrderResult, Server};
use spillway_rules::{Action, Switch};
use spillway_tcp::{Listener, Resolver, Settings, Stack, isn};
use spillway_transport::{Time, Transport};
use spillway_wire::packet::{ethernet, ipv4, udp};
use spillway_wire::switch::{Flow, ServerId};

use crate::client::Client;
use crate::echo::Echo;
pub use crate::service::OWNER_TIMEOUT;
use crate::service::{CLIENT, agent_settings, control_frame, end, mac, port, switch_config};

/// Time of one turn.
pub const TURN: Duration = Duration::from_micros(100);

/// Whether an IPv4 frame has a TCP segment from this address.
fn is_from(frame: &[u8], address: IpAddr) -> bool {
    frame[23] == 6 && IpAddr::from(*frame[26..].first_chunk::<4>().unwrap()) == address
}

pub fn place(server: u8) -> SocketAddr {
    if server == 1 { end("10.0.0.1:80") } else { end("10.0.0.3:8080") }
}

fn places() -> [SocketAddr; 2] {
    [1, 2].map(place)
}

fn switch(epoch: u64) -> Switch {
    Switch::new(switch_config(&places()), epoch).unwrap()
}

fn stack(now: Time, host: u8, ip: IpAddr, connections_max: u32) -> Stack {
    let settings = Settings::new(mac(host), ip, 8, isn::Key([host; 16]));
    let listeners =
        if host == CLIENT { Vec::new() } else { vec![Listener { address: place(host), is_gated: false }] };
    let connections_max = connections_max + settings.half_open_max;
    let settings = Settings { resolver: Resolver::Driver, listeners, connections_max, ..settings };
    Stack::new(now, settings).unwrap()
}

fn server(now: Time, number: u8, connections_max: u32) -> Server {
    let mut stack = stack(now, number, place(number).ip(), connections_max);
    stack.set_listening(0, number == 1);
    let agent = agent_settings(&places(), number, u64::from(number), Limits::default());
    Server::new(stack, Some(Agent::new(now, agent)), [place(1).into()])
}

/// A server's host.
pub struct Host<A> {
    pub server: Server,
    pub echo: A,
    frames: VecDeque<Vec<u8>>,
    /// Frames that the server handles in a turn; the others wait.
    pub frames_max: usize,
    meter: Meter,
    cpu: Duration,
    datagrams: VecDeque<Vec<u8>>,
    /// The process is stopped: it takes no turns, and what arrives is lost.
    pub is_paused: bool,
    /// The device does not take frames, so that the server exports no connection.
    pub is_device_busy: bool,
    pub results: Vec<OrderResult>,
    /// The policy's decisions.
    pub decisions: Vec<(Time, Flow, Decision)>,
}

impl<A: Movable> Host<A> {
    /// A turn handles this number of frames; as many as it can handle take its whole time.
    fn look(&mut self, now: Time, frames: usize) {
        self.meter.record_turn(now, frames, self.frames.is_empty());
        if self.frames_max < usize::MAX {
            self.cpu += TURN * frames as u32 / self.frames_max as u32;
        }
        if now >= self.server.next_look() {
            let (cpu, queueing) = self.meter.look(now, self.cpu);
            self.server.look(now, cpu, queueing);
        }
    }
}

pub struct Rack<A = Echo> {
    pub now: Time,
    switch: Switch,
    /// Servers 1 and 2. Server 1 is the original owner.
    pub hosts: [Host<A>; 2],
    pub client: Client,
    /// Further clients.
    pub others: Vec<Client>,
    client_frames: VecDeque<Vec<u8>>,
    pub client_sends: bool,
    /// Whether the next datagram of a server, given by its number, to the other server is lost.
    pub is_lost: Box<dyn FnMut(u8) -> bool>,
    /// A server that gets no answers of the switch, by its number.
    pub unanswered: Option<u8>,
    /// As in host mode, segments of servers to the client do not pass the switch.
    pub replies_pass_by: bool,
    /// TCP segments that have left server 2 from its place.
    pub from_place: usize,
}

impl Rack {
    /// A rack whose client has an open connection to server 1. `connections_max` limits server 2; server 1 has 100.
    pub fn new(connections_max: u32) -> Rack {
        let rack = Rack::with_applications([Echo::default(), Echo::default()], connections_max);
        assert_eq!(rack.hosts[0].echo.here.len(), 1, "the client should be connected");
        rack
    }

    /// Further clients connect, each with an address of its own.
    pub fn connect_others(&mut self, number: u8) {
        (0..number).for_each(|_| self.connect_another());
        self.run(Duration::from_millis(20));
        assert_eq!(self.hosts[0].echo.here.len(), usize::from(number) + 1, "all clients should be connected");
    }
}

impl<A: Movable> Rack<A> {
    /// As [`new`](Rack::new), with an application for each server.
    pub fn with_applications([first, second]: [A; 2], connections_max: u32) -> Rack<A> {
        let now = Time(1_000_000_000);
        let host = |number, echo, connections_max| Host {
            server: server(now, number, connections_max),
            echo,
            frames: VecDeque::new(),
            frames_max: usize::MAX,
            meter: Meter::new(now, Duration::ZERO),
            cpu: Duration::ZERO,
            datagrams: VecDeque::new(),
            is_paused: false,
            is_device_busy: false,
            results: Vec::new(),
            decisions: Vec::new(),
        };
        let mut rack = Rack {
            now,
            switch: switch(7_000),
            hosts: [host(1, first, 100), host(2, second, connections_max)],
            client: Client::new(stack(now, CLIENT, end("10.0.0.2:0").ip(), 100)),
            others: Vec::new(),
            client_frames: VecDeque::new(),
            client_sends: true,
            is_lost: Box::new(|_| false),
            unanswered: None,
            replies_pass_by: false,
            from_place: 0,
        };
        rack.run(Duration::from_millis(200));
        rack.client.connect(now, place(1));
        rack.run(Duration::from_millis(20));
        assert!(rack.client.is_open, "the client should be connected");
        rack
    }

    /// Another client begins to connect.
    pub fn connect_another(&mut self) {
        let ip = IpAddr::from([10, 0, 1, self.others.len() as u8]);
        let mut client = Client::new(stack(self.now, CLIENT, ip, 1));
        client.connect(self.now, place(1));
        self.others.push(client);
    }

    /// A SYN with the ends of the client's connection, as the client would send it after a restart.
    pub fn repeated_syn(&self) -> Vec<u8> {
        let (frame, address) = self.syn_from(self.client.address().ip());
        assert_eq!(address, self.client.address(), "two stacks with one key choose one port");
        frame
    }

    /// A SYN to server 1, and the address of its client.
    fn syn_from(&self, ip: IpAddr) -> (Vec<u8>, SocketAddr) {
        let mut client = Client::new(stack(self.now, CLIENT, ip, 1));
        client.connect(self.now, place(1));
        let mut slot = vec![0; 2048];
        assert_eq!(client.stack.poll_transmit(self.now, &mut slot), None, "the next hop is unknown");
        client.stack.set_next_hop(self.now, place(1).ip(), Some(mac(1)));
        let length = client.stack.poll_transmit(self.now, &mut slot).expect("a SYN");
        (slot[..length].to_vec(), client.address())
    }

    /// A frame reaches a server, whatever the switch's entry says.
    pub fn pass_to(&mut self, server: u8, frame: Vec<u8>) {
        self.host(server).frames.push_back(frame);
    }

    /// Opens connections to server 1 that stay half-open: their clients do not answer.
    pub fn open_halfway(&mut self, number: u8) {
        for last in 0..number {
            let (frame, _) = self.syn_from(IpAddr::from([10, 0, 2, last]));
            self.forward(CLIENT, frame);
        }
    }

    /// The switch loses all entries, and begins a new epoch.
    pub fn restart_switch(&mut self) {
        self.switch = switch(8_000);
    }

    pub fn host(&mut self, number: u8) -> &mut Host<A> {
        &mut self.hosts[usize::from(number) - 1]
    }

    pub fn counters(&self, number: u8) -> Counters {
        self.hosts[usize::from(number) - 1].server.counters()
    }

    pub fn flow(&self) -> Flow {
        Flow::new(self.client.address().into(), place(1).into()).unwrap()
    }

    /// Orders server `from` to move the connection to server `to`.
    pub fn order(&mut self, from: u8, to: u8) -> Result<(), OrderError> {
        let flow = self.flow();
        self.host(from).server.order(Order { flow, to: Some(ServerId(to)) })
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.turn();
        }
    }

    /// Runs until a condition holds; at most 20 s.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, mut is_true: impl FnMut(&mut Rack<A>) -> bool) {
        let until = self.now + Duration::from_secs(20);
        while !is_true(self) {
            assert!(self.now < until, "{what}: not after 20 s");
            self.turn();
        }
    }

    /// Each host takes one turn. A turn takes 100 µs.
    pub fn turn(&mut self) {
        let now = self.now;
        self.client_turn(now);
        for number in [1, 2] {
            self.server_turn(now, number);
        }
        self.now = now + TURN;
    }

    fn client_turn(&mut self, now: Time) {
        let frames = std::mem::take(&mut self.client_frames);
        let (mut slot, mut sent) = (vec![0; 2048], Vec::new());
        for client in std::iter::once(&mut self.client).chain(&mut self.others) {
            // A stack ignores frames for other addresses.
            frames.iter().for_each(|frame| client.receive(now, frame));
            client.turn(now, self.client_sends);
            while let Some(length) = client.stack.poll_transmit(now, &mut slot) {
                sent.push(slot[..length].to_vec());
            }
            while let Some(peer) = client.stack.poll_next_hop_request() {
                client.stack.set_next_hop(now, peer, Some(mac(1)));
            }
        }
        sent.into_iter().for_each(|frame| self.forward(CLIENT, frame));
    }

    fn server_turn(&mut self, now: Time, number: u8) {
        let host = self.host(number);
        let number_of_frames = host.frames.len().min(host.frames_max);
        let frames: Vec<_> = host.frames.drain(..number_of_frames).collect();
        let datagrams = std::mem::take(&mut host.datagrams);
        if host.is_paused {
            host.frames.clear();
            return;
        }
        host.look(now, number_of_frames);
        host.server.begin_turn(&mut host.echo, now);
        for mut payload in datagrams {
            host.server.handle_datagram(&mut host.echo, now, &mut payload);
        }
        for frame in frames {
            host.server.deliver(&mut host.echo, now, &frame);
        }
        host.server.end_turn(&mut host.echo, now);
        let mut slot = vec![0; 2048];
        let mut sent = Vec::new();
        while let Some(length) = host.server.poll_transmit(now, &mut slot) {
            sent.push(slot[..length].to_vec());
        }
        let stack = host.server.connections_mut().stack_mut();
        while let Some(peer) = stack.poll_next_hop_request() {
            stack.set_next_hop(now, peer, Some(mac(CLIENT)));
        }
        self.from_place += sent.iter().filter(|frame| is_from(frame, place(2).ip())).count();
        sent.into_iter().for_each(|frame| self.forward(number, frame));
        let host = self.host(number);
        if !host.is_device_busy {
            host.server.frames_sent(&mut host.echo, now);
        }
        while let Some((flow, decision)) = host.server.poll_decision() {
            host.decisions.push((now, flow, decision));
        }
        while let Some((_, result)) = host.server.poll_result() {
            host.results.push(result);
        }
        while let Some(transmit) = self.host(number).server.poll_datagram(now) {
            match transmit {
                Transmit::Switch(payload) => {
                    self.forward(number, control_frame(&places(), number, &payload[..]))
                }
                Transmit::Server { to: ServerId(to), payload } => {
                    if !(self.is_lost)(number) {
                        self.host(to).datagrams.push_back(payload);
                    }
                }
            }
        }
    }

    /// A frame passes the switch.
    fn forward(&mut self, from: u8, mut frame: Vec<u8>) {
        if self.replies_pass_by && from != CLIENT && frame.starts_with(&mac(CLIENT).0) {
            return self.client_frames.push_back(frame);
        }
        let action = self.switch.handle_frame(self.now, port(from), &mut frame).action;
        let to = match action {
            Action::Answer if self.unanswered == Some(from) => return,
            Action::Answer => from,
            Action::To(port) => port.number(),
            _ => return,
        };
        match to {
            CLIENT => self.client_frames.push_back(frame),
            to => match datagram_in(&frame) {
                Some(payload) => self.host(to).datagrams.push_back(payload),
                None => self.host(to).frames.push_back(frame),
            },
        }
    }
}

/// The payload of a frame's datagram; `None`: the frame has no datagram.
fn datagram_in(frame: &[u8]) -> Option<Vec<u8>> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let (ip, _, payload) = ipv4::Header::parse(packet).ok()?;
    if ip.protocol != ipv4::PROTOCOL_UDP {
        return None;
    }
    let (_, payload) = udp::Header::parse_v4(payload, ip.source, ip.target).ok()?;
    Some(payload.to_vec())
}
