//! When a server's port has data or messages to send for its sessions, and which sessions it asks to move.

use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_policy::Override;
use spillway_session::{
    Carrier, ClientSession, ControlEffects, Opened, OpeningMessage, Placement, Port, SessionHandle,
    StreamLimits, TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::{Acknowledge, SessionId};
use spillway_wire::{CloseReason, Control, Kind};

/// A carrier that records its bytes and control messages.
#[derive(Default)]
struct RecordingCarrier {
    bytes: usize,
    controls: Vec<Control>,
}

impl Carrier for RecordingCarrier {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.bytes += bytes.len();
        bytes.len()
    }

    fn control(&mut self, control: Control) {
        self.controls.push(control);
    }
}

struct World {
    port: Port<u32>,
    now: Time,
    ring: KeyRing,
    clients: Vec<ClientSession>,
}

impl World {
    fn new() -> World {
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key());
        World { port: Port::new(TableLimits::default(), 9), now: Time(1_000_000), ring, clients: Vec::new() }
    }

    /// An accepted session with nothing to send; its carrier has the session's number.
    fn open(&mut self, role: Role) -> SessionHandle {
        let number = self.clients.len() as u32;
        let mut client = ClientSession::new(key(), SessionId([number as u8; 16]), StreamLimits::default());
        let address = "10.0.0.9:999".parse().unwrap();
        let Control::Connect(connect) = client.open(self.now, address, None) else {
            panic!("open should return connect")
        };
        self.clients.push(client);
        let opening = connect.session.expect("connect should begin a session");
        let message =
            OpeningMessage { carrier: number, kind: Kind::Connect, client: connect.client, opening };
        let Opened::New { session, answer } = self.port.open(self.now, &self.ring, &message, role) else {
            panic!("the session should be new")
        };
        let event = self.clients[number as usize].handle_control(self.now, &answer);
        assert!(event.is_ok(), "the session should be opened: {event:?}");
        assert_eq!(self.port.accept(session), Some(number));
        self.transmit();
        session
    }

    /// A client's session continues on another carrier.
    fn move_to(&mut self, number: usize, carrier: u32, role: Role) {
        let address = "10.0.0.9:998".parse().unwrap();
        let control = self.clients[number].open(self.now, address, None);
        let Control::Reconnect(reconnect) = control else { panic!("{control:?}") };
        let (kind, client, opening) = (Kind::Reconnect, reconnect.client, reconnect.opening);
        let message = OpeningMessage { carrier, kind, client, opening };
        let opened = self.port.open(self.now, &self.ring, &message, role);
        assert!(
            matches!(opened, Opened::Resumed { is_accepted: true, .. }),
            "the session should be resumed: {opened:?}"
        );
    }

    /// Transmits all dirty sessions; returns their recorded output.
    fn transmit(&mut self) -> Vec<(SessionHandle, RecordingCarrier)> {
        let mut transmitted = Vec::new();
        while let Some((session, _)) = self.port.poll_dirty() {
            let mut carrier = RecordingCarrier::default();
            self.port.transmit(self.now, session, &mut carrier);
            transmitted.push((session, carrier));
        }
        assert!(!self.port.is_dirty(), "no session should be dirty after all are transmitted");
        transmitted
    }

    fn ask_carriers_to_return(&mut self, count: usize) -> Vec<u32> {
        let asked = self.port.ask_to_return(count);
        assert!(
            asked.iter().all(|(.., drain)| *drain == Control::Drain { deadline_ms: 0 }),
            "each message should ask for a move without a deadline"
        );
        asked.into_iter().map(|(_, carrier, _)| carrier).collect()
    }
}

fn key() -> Key {
    Key::from_secret([7; 32])
}

#[test]
fn a_session_with_output_is_dirty_once() {
    let mut world = World::new();
    let (first, second) = (world.open(Role::Client), world.open(Role::Client));
    assert!(world.transmit().is_empty(), "a session without output should not be dirty");
    world.port.write(first, b"VALUE");
    world.port.write(second, b"END");
    world.port.write(first, b"END");
    let transmitted = world.transmit();
    assert_eq!(
        transmitted.iter().map(|(session, carrier)| (*session, carrier.bytes)).collect::<Vec<_>>(),
        [(first, 8), (second, 3)]
    );
    // A driver that transmits each session at once need not poll.
    for _ in 0..1000 {
        world.port.write(first, b"x");
        world.port.write(second, b"x");
        world.port.transmit(world.now, first, &mut RecordingCarrier::default());
        world.port.transmit(world.now, second, &mut RecordingCarrier::default());
        assert!(!world.port.is_dirty(), "a transmitted session should not be dirty");
    }
    // Bytes of a session without a carrier wait for one.
    world.port.detach(world.now, first, 0);
    world.port.write(first, b"later");
    assert!(world.transmit().is_empty(), "a session should be dirty once");
    world.move_to(0, 7, Role::Client);
    assert_eq!(world.transmit().len(), 1);
}

#[test]
fn an_acknowledgement_without_data_is_sent_after_its_delay() {
    let mut world = World::new();
    let sessions = [world.open(Role::Client), world.open(Role::Client), world.open(Role::Client)];
    for (carrier, session) in (0..).zip(sessions) {
        assert_eq!(world.port.handle_data(world.now, session, carrier, 100), Ok(true));
    }
    let due = world.port.poll_timeout().expect("acknowledgements should be due");
    // Before that time, the first session sends its acknowledgement with data, and the second loses its
    // carrier.
    world.now = Time(due.as_nanos() - 1);
    world.port.write(sessions[0], b"END");
    assert_eq!(world.transmit().len(), 1);
    world.port.detach(world.now, sessions[1], 1);
    world.now = due;
    world.port.handle_timeout(due);
    let transmitted = world.transmit();
    assert_eq!(transmitted.len(), 1);
    assert_eq!(transmitted[0].0, sessions[2]);
    let expected = Acknowledge { received: 100, finish_received: false, requests_answer: false };
    assert_eq!(transmitted[0].1.controls, [Control::Acknowledge(expected)]);
    assert!(
        world.port.poll_timeout().is_none_or(|at| at > due + Duration::from_secs(1)),
        "no further acknowledgement should be scheduled"
    );
}

#[test]
fn an_acknowledgement_that_is_scheduled_again_is_sent_before_later_ones() {
    let mut world = World::new();
    let (first, second) = (world.open(Role::Client), world.open(Role::Client));
    let start = world.now;
    let at = |ms| start + Duration::from_millis(ms);
    assert_eq!(world.port.handle_data(start, first, 0, 100), Ok(true));
    // The first acknowledgement is sent with data; then the client sends more.
    world.now = at(50);
    world.port.write(first, b"END");
    assert_eq!(world.transmit().len(), 1);
    assert_eq!(world.port.handle_data(at(60), first, 0, 100), Ok(true));
    assert_eq!(world.port.handle_data(at(90), second, 1, 100), Ok(true));
    world.port.handle_timeout(at(100));
    assert_eq!(
        world.port.poll_timeout(),
        Some(at(160)),
        "the acknowledgement should be due 100 ms after the later bytes of the first session"
    );
    world.now = at(160);
    world.port.handle_timeout(world.now);
    let transmitted = world.transmit();
    assert_eq!(transmitted.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [first]);
}

#[test]
fn a_session_leaves_a_carrier_that_its_client_closes() {
    let mut world = World::new();
    let session = world.open(Role::Helper);
    let acknowledge = Acknowledge { received: 0, finish_received: false, requests_answer: false };
    let outcome = world.port.handle_control(world.now, session, 0, &Control::Acknowledge(acknowledge));
    assert_eq!(outcome, ControlEffects { event: None, is_dirty: false, closes_carrier: false });
    let lost = Control::Close(CloseReason::Lost);
    assert!(
        world.port.handle_control(world.now, session, 0, &lost).closes_carrier,
        "the session should leave the lost carrier"
    );
    assert_eq!(world.port.carrier(session), None);
    world.move_to(0, 1, Role::Client);
    assert_eq!(world.port.role(session), Some(Role::Client));
    world.port.close(world.now, session, CloseReason::Normal);
    world.transmit();
    let normal = Control::Close(CloseReason::Normal);
    assert!(
        world.port.handle_control(world.now, session, 1, &normal).closes_carrier,
        "the second carrier should be closed"
    );
    assert!(
        world.port.is_empty() && world.port.role(session).is_none(),
        "the port should have no session left"
    );
}

#[test]
fn an_override_drains_the_sessions_on_wrong_carriers() {
    let mut world = World::new();
    let (helped, direct) = (world.open(Role::Helper), world.open(Role::Client));
    assert_eq!(
        (world.port.carried_by(Role::Helper), world.port.carried_by(Role::Client)),
        (1, 1),
        "one session should be on each kind of carrier"
    );
    let placement = |relief_override| Placement::new(relief_override, Duration::from_secs(2));
    let drain = Control::Drain { deadline_ms: 2000 };
    assert_eq!(world.port.misplaced_sessions(placement(Override::Auto)), []);
    assert_eq!(world.port.misplaced_sessions(placement(Override::Off)), [(helped, 0, drain)]);
    assert_eq!(world.port.misplaced_sessions(placement(Override::On)), [(direct, 1, drain)]);
    assert_eq!(world.port.drain_for(direct, placement(Override::Off)), None);
    world.move_to(1, 5, Role::Helper);
    assert_eq!(world.port.drain_for(direct, placement(Override::Off)), Some(drain));
    world.port.detach(world.now, helped, 0);
    assert_eq!(world.port.misplaced_sessions(placement(Override::Off)), [(direct, 5, drain)]);
}

#[test]
fn sessions_that_were_asked_least_often_return_first() {
    let mut world = World::new();
    for _ in 0..4 {
        world.open(Role::Helper);
    }
    world.open(Role::Client);
    assert_eq!(world.ask_carriers_to_return(0), []);
    assert_eq!(world.ask_carriers_to_return(2), [0, 1]);
    assert_eq!(world.ask_carriers_to_return(1), [2]);
    assert_eq!(world.ask_carriers_to_return(2), [3, 0]);
    // Session 0 has moved to another helper: requests on its old carrier do not count.
    world.move_to(0, 9, Role::Helper);
    assert_eq!(world.ask_carriers_to_return(9), [9, 1, 2, 3]);
}
