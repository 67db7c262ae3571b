//! A switch with four servers, and the messages that they send.

use core::time::Duration;

use spillway_rules::{Action, Decision, Endpoint, FlowView, PortId, Switch, Verdict};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{FLAG_FROM_SWITCH, FlowState, Kind, Site, Status, View};

use crate::frames::{self, ACK, Frame, Seen};
use crate::test_config as setup;

pub const EPOCH: u64 = 1_000_000_000_000;
/// Lifetime of moves.
pub const LIFETIME: Duration = Duration::from_secs(5);

/// A message that was not sent yet.
#[derive(Clone, Debug)]
pub struct Message {
    pub sender: u8,
    pub view: View<[u8; 128]>,
    /// The number of the port on which it arrives.
    pub ingress: u8,
    pub is_ipv6: bool,
}

impl Message {
    /// About the flow of [`client`] and the service.
    pub fn new(sender: u8, kind: Kind) -> Message {
        let mut view = View::blank(kind);
        view.set_sender(sender.into());
        view.set_family(4);
        view.set_client(client());
        view.set_service(setup::service());
        view.set_lifetime_ms(LIFETIME.as_millis() as u32);
        let ingress = if sender == 0 { PortId::DAEMON.number() } else { sender };
        Message { sender, view, ingress, is_ipv6: false }
    }

    pub fn generation(self, generation: u64) -> Message {
        self.with(|view| view.set_generation(generation))
    }

    pub fn client(self, client: Endpoint) -> Message {
        self.with(|view| view.set_client(client))
    }

    pub fn service(self, service: Endpoint) -> Message {
        self.with(|view| view.set_service(service))
    }

    pub fn site(self, at: Endpoint, mac: Mac) -> Message {
        self.with(|view| view.set_owner(Site::new(at, mac)))
    }

    /// Names the place of a server.
    pub fn place(self, server: u8) -> Message {
        self.site(setup::place_of(server), setup::server_mac(server))
    }

    pub fn lifetime_ms(self, lifetime: u32) -> Message {
        self.with(|view| view.set_lifetime_ms(lifetime))
    }

    pub fn status(self, status: Status) -> Message {
        self.with(|view| view.set_status(status))
    }

    pub fn load(self, load: u32, free_places: u32, weight: u16) -> Message {
        self.with(|view| {
            view.set_load(load);
            view.set_free_places(free_places);
            view.set_weight(weight);
        })
    }

    pub fn ingress(self, ingress: u8) -> Message {
        Message { ingress, ..self }
    }

    pub fn with(mut self, change: impl FnOnce(&mut View<[u8; 128]>)) -> Message {
        change(&mut self.view);
        self
    }

    /// The datagram, tagged with the sender's key.
    pub fn frame(&self) -> Frame {
        let mut view = self.view;
        setup::key(self.sender).tag_message(&mut view);
        let macs = (setup::server_mac(self.sender), setup::port_mac(self.ingress));
        let ends = if self.is_ipv6 {
            (Endpoint::new(setup::place_v6_of(self.sender).address(), 7000), setup::control_v6())
        } else {
            (control_end(self.sender), setup::control())
        };
        Frame::udp(macs, ends, view.bytes())
    }
}

/// Where a server sends its control messages from.
pub fn control_end(server: u8) -> Endpoint {
    Endpoint::new(setup::server_address(server).0, 7000 + u16::from(server))
}

/// The client of most tests: on the segment, on port 0.
pub fn client() -> Endpoint {
    setup::endpoint("10.0.9.9:5000")
}

/// What became of a message.
#[derive(Clone, Debug)]
pub struct Reply {
    pub decision: Decision,
    pub frame: Vec<u8>,
    pub view: View<[u8; 128]>,
}

impl Reply {
    pub fn status(&self) -> Status {
        assert_eq!(self.decision.verdict, Verdict::Answered, "the message should be answered");
        self.view.status().unwrap()
    }

    /// The status and the state of an answer.
    pub fn outcome(&self) -> (Status, FlowState) {
        (self.status(), self.view.state().unwrap())
    }

    /// The receiver's port, the status and the state of a relayed message.
    pub fn relayed(&self) -> (PortId, Status, FlowState) {
        let Decision { verdict: Verdict::Relayed, action: Action::To(port) } = self.decision else {
            panic!("{:?} {:?}: the message should be relayed", self.decision, self.view.status());
        };
        (port, self.view.status().unwrap(), self.view.state().unwrap())
    }
}

#[derive(Clone, Debug)]
pub struct World {
    pub switch: Switch,
    pub now: Time,
    sequences: [u64; 256],
    /// The servers that send heartbeats while time passes.
    pub alive: Vec<u8>,
}

impl World {
    /// Four servers have said hello and sent a heartbeat. Server n has load 100 n and 10 free places.
    pub fn new() -> World {
        World::with(setup::config())
    }

    pub fn with(config: crate::config::Config) -> World {
        let mut world = World::empty(config);
        for server in 1..=4 {
            assert_eq!(world.send(Message::new(server, Kind::Hello)).status(), Status::Ok);
        }
        world.alive = vec![1, 2, 3, 4];
        world.beat();
        world
    }

    /// No server has said hello.
    pub fn empty(config: crate::config::Config) -> World {
        let switch = Switch::new(config, EPOCH).unwrap();
        World { switch, now: Time(7_000_000_000), sequences: [0; 256], alive: Vec::new() }
    }

    /// All live servers send a heartbeat.
    pub fn beat(&mut self) {
        for server in self.alive.clone() {
            let heartbeat = Message::new(server, Kind::Heartbeat).load(100 * u32::from(server), 10, 1);
            assert_eq!(self.send(heartbeat).status(), Status::Ok, "heartbeat of server {server}");
        }
    }

    /// Lets time pass with heartbeats every 10 ms.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now + Duration::from_millis(10) <= end {
            self.now = self.now + Duration::from_millis(10);
            self.beat();
        }
        self.now = end;
    }

    /// Lets time pass without heartbeats.
    pub fn pause(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    pub fn sequence(&self, sender: u8) -> u64 {
        self.sequences[usize::from(sender)]
    }

    /// Sends a message with the sender's next sequence number and the switch's epoch.
    pub fn send(&mut self, message: Message) -> Reply {
        let message = self.delayed(message);
        self.deliver(&message)
    }

    /// A message with the sender's next sequence number that arrives later, by [`deliver`](Self::deliver).
    pub fn delayed(&mut self, message: Message) -> Message {
        let sequence = &mut self.sequences[usize::from(message.sender)];
        *sequence += 1;
        let sequence = *sequence;
        message.with(|view| {
            view.set_sequence(sequence);
            view.set_epoch(EPOCH);
        })
    }

    /// Delivers a message as it is, and checks what all answers and relayed messages have in common.
    pub fn deliver(&mut self, message: &Message) -> Reply {
        let sent = message.frame().bytes();
        let (decision, frame) = self.receive(message.ingress, sent.clone());
        let view = View::new(frame[frame.len() - 128..].try_into().unwrap()).unwrap();
        let reply = Reply { decision, frame, view };
        check_reply(message, &sent, &reply);
        reply
    }

    /// A frame arrives at a port.
    pub fn receive(&mut self, ingress: u8, mut frame: Vec<u8>) -> (Decision, Vec<u8>) {
        let decision = self.switch.handle_frame(self.now, setup::port(ingress), &mut frame);
        (decision, frame)
    }

    /// The client's TCP segment.
    pub fn client_sends(&mut self, flags: u8) -> (Decision, Seen) {
        self.client_sends_frame(&client_frame(flags))
    }

    pub fn client_sends_frame(&mut self, frame: &Frame) -> (Decision, Seen) {
        let (decision, frame) = self.receive(0, frame.bytes());
        (decision, frames::read(&frame))
    }

    /// A server's TCP segment to the client, from its place or from the service endpoint.
    pub fn server_sends(&mut self, server: u8, from: Endpoint, flags: u8) -> (Decision, Seen) {
        self.server_sends_frame(server, &server_frame(server, from, flags))
    }

    pub fn server_sends_frame(&mut self, server: u8, frame: &Frame) -> (Decision, Seen) {
        let (decision, frame) = self.receive(server, frame.bytes());
        (decision, frames::read(&frame))
    }

    /// The entry of the client's flow as the last use left it.
    pub fn entry(&self) -> Option<FlowView> {
        self.entry_of(client())
    }

    pub fn entry_of(&self, client: Endpoint) -> Option<FlowView> {
        self.switch.flows().into_iter().find(|flow| flow.client == client)
    }

    pub fn generation(&self) -> u64 {
        self.entry().map_or(0, |entry| entry.generation)
    }

    /// Server `source` asks server `target`.
    pub fn ask(&mut self, source: u8, target: u8) {
        let prepare = Message::new(source, Kind::Prepare).generation(self.generation()).place(target);
        let reply = self.send(prepare);
        assert_eq!(reply.relayed(), (setup::port(target), Status::Ok, FlowState::Asked));
    }

    /// The target that was asked is ready.
    pub fn ready(&mut self, target: u8) {
        let prepared = Message::new(target, Kind::Prepared).generation(self.generation()).place(target);
        let (_, status, state) = self.send(prepared).relayed();
        assert_eq!((status, state), (Status::Ok, FlowState::Held));
    }

    /// A server owns the flow that was held, or asked for.
    pub fn own(&mut self, server: u8) -> Status {
        self.send(Message::new(server, Kind::Own).generation(self.generation())).status()
    }

    /// Moves the flow from one server to another.
    pub fn move_flow(&mut self, source: u8, target: u8) {
        self.ask(source, target);
        self.ready(target);
        assert_eq!(self.own(target), Status::Ok);
    }
}

pub fn client_frame(flags: u8) -> Frame {
    Frame::tcp((setup::client_mac(), setup::server_mac(1)), (client(), setup::service()), flags)
}

pub fn server_frame(server: u8, from: Endpoint, flags: u8) -> Frame {
    Frame::tcp((setup::server_mac(server), setup::client_mac()), (from, client()), flags)
}

/// The segment with which a client that has sent nothing else closes, and its acknowledgement by a server.
pub fn client_fin() -> Frame {
    client_frame(FIN_ACK).numbered(1000, 1)
}

pub fn acknowledgement_of_fin(server: u8, from: Endpoint) -> Frame {
    server_frame(server, from, ACK).numbered(1, 1001)
}

pub const FIN_ACK: u8 = frames::FIN | ACK;

/// What all answers and relayed messages have in common.
fn check_reply(message: &Message, sent: &[u8], reply: &Reply) {
    let Reply { decision, frame, view } = reply;
    assert_eq!(frame.len(), sent.len(), "the length of a frame never changes");
    let key = match decision {
        Decision { verdict: Verdict::Answered, action: Action::Answer } => setup::key(message.sender),
        Decision { verdict: Verdict::Relayed, action: Action::To(port) } => setup::key(port.number()),
        _ => return,
    };
    let (before, after) = (frames::read(sent), frames::read(frame));
    assert!(after.has_correct_checksums);
    assert!(key.verify_message(view), "the tag should be the receiver's");
    assert_eq!(view.flags(), FLAG_FROM_SWITCH);
    assert_eq!(after.hops, 64);
    let original = &message.view;
    assert_eq!(view.bytes()[8..10], original.bytes()[8..10], "version and kind");
    assert_eq!((view.sender(), view.sequence()), (original.sender(), original.sequence()));
    assert_eq!((view.client(), view.service()), (original.client(), original.service()));
    assert_eq!((view.family(), view.reserved()), (original.family(), original.reserved()));
    if decision.verdict == Verdict::Answered {
        assert_eq!((after.source, after.target), (before.target, before.source));
        assert_eq!((after.source_mac, after.target_mac), (before.target_mac, before.source_mac));
    } else {
        let Action::To(port) = decision.action else { unreachable!("relayed messages have a port") };
        let server = port.number();
        assert_eq!((after.source, after.target), (before.target, control_end(server)));
        assert_eq!(after.source_mac, setup::port_mac(server));
        assert_eq!(after.target_mac, setup::server_mac(server));
    }
}
