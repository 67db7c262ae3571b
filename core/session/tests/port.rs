//! When a server's port has something to send for its sessions, and which of them it asks to move.

use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_policy::Override;
use spillway_session::{
    Carrier, ClientSession, Heard, Opened, OpeningMessage, Placement, Port, SessionHandle, StreamLimits,
    TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::{Acknowledge, SessionId};
use spillway_wire::{CloseReason, Control, Kind};

/// A carrier that records what it takes.
#[derive(Default)]
struct Wire {
    bytes: usize,
    controls: Vec<Control>,
}

impl Carrier for Wire {
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
        let Control::Connect(connect) = client.open(self.now, address, None) else { panic!("first words") };
        self.clients.push(client);
        let opening = connect.session.expect("a session");
        let words = OpeningMessage { carrier: number, kind: Kind::Connect, client: connect.client, opening };
        let Opened::New { session, answer } = self.port.open(self.now, &self.ring, &words, role) else {
            panic!("it is new")
        };
        let event = self.clients[number as usize].handle_control(self.now, &answer);
        assert!(event.is_ok(), "{event:?}");
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
        let words = OpeningMessage { carrier, kind, client, opening };
        let opened = self.port.open(self.now, &self.ring, &words, role);
        assert!(matches!(opened, Opened::Resumed { is_accepted: true, .. }), "{opened:?}");
    }

    /// Transmits all dirty sessions; returns what each has sent.
    fn transmit(&mut self) -> Vec<(SessionHandle, Wire)> {
        let mut given = Vec::new();
        while let Some((session, _)) = self.port.poll_dirty() {
            let mut wire = Wire::default();
            self.port.transmit(self.now, session, &mut wire);
            given.push((session, wire));
        }
        assert!(!self.port.is_dirty());
        given
    }

    fn asked_home(&mut self, count: usize) -> Vec<u32> {
        let asked = self.port.return_home(count);
        assert!(asked.iter().all(|(.., say)| *say == Control::Drain { deadline_ms: 0 }));
        asked.into_iter().map(|(_, carrier, _)| carrier).collect()
    }
}

fn key() -> Key {
    Key::from_secret([7; 32])
}

#[test]
fn a_session_that_something_happened_to_is_named_once() {
    let mut world = World::new();
    let (first, second) = (world.open(Role::Client), world.open(Role::Client));
    assert!(world.transmit().is_empty());
    world.port.write(first, b"VALUE");
    world.port.write(second, b"END");
    world.port.write(first, b"END");
    let given = world.transmit();
    assert_eq!(
        given.iter().map(|(session, wire)| (*session, wire.bytes)).collect::<Vec<_>>(),
        [(first, 8), (second, 3)]
    );
    // A driver that transmits each session at once need not poll.
    for _ in 0..1000 {
        world.port.write(first, b"x");
        world.port.write(second, b"x");
        world.port.transmit(world.now, first, &mut Wire::default());
        world.port.transmit(world.now, second, &mut Wire::default());
        assert!(!world.port.is_dirty());
    }
    // Bytes of a session without a carrier wait for one.
    world.port.detach(world.now, first, 0);
    world.port.write(first, b"later");
    assert!(world.transmit().is_empty());
    world.move_to(0, 7, Role::Client);
    assert_eq!(world.transmit().len(), 1);
}

#[test]
fn an_acknowledgement_that_nothing_goes_along_with_is_told_in_time() {
    let mut world = World::new();
    let sessions = [world.open(Role::Client), world.open(Role::Client), world.open(Role::Client)];
    for (carrier, session) in (0..).zip(sessions) {
        assert_eq!(world.port.handle_data(world.now, session, carrier, 100), Ok(true));
    }
    let due = world.port.poll_timeout().expect("they are owed something");
    // Before the time, the first session sends its acknowledgement with data, and the second loses its carrier.
    world.now = Time(due.as_nanos() - 1);
    world.port.write(sessions[0], b"END");
    assert_eq!(world.transmit().len(), 1);
    world.port.detach(world.now, sessions[1], 1);
    world.now = due;
    world.port.handle_timeout(due);
    let given = world.transmit();
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].0, sessions[2]);
    let told = Acknowledge { received: 100, finish_received: false, answer: false };
    assert_eq!(given[0].1.controls, [Control::Acknowledge(told)]);
    assert!(world.port.poll_timeout().is_none_or(|at| at > due + Duration::from_secs(1)), "no more is owed");
}

#[test]
fn a_carrier_that_its_client_closes_is_left() {
    let mut world = World::new();
    let session = world.open(Role::Helper);
    let plain = Acknowledge { received: 0, finish_received: false, answer: false };
    let heard = world.port.handle_control(world.now, session, 0, &Control::Acknowledge(plain));
    assert_eq!(heard, Heard { event: None, gives: false, leaves: false });
    let lost = Control::Close(CloseReason::Lost);
    assert!(world.port.handle_control(world.now, session, 0, &lost).leaves);
    assert_eq!(world.port.carrier(session), None);
    world.move_to(0, 1, Role::Client);
    assert_eq!(world.port.role(session), Some(Role::Client));
    world.port.close(world.now, session, CloseReason::Normal);
    world.transmit();
    let normal = Control::Close(CloseReason::Normal);
    assert!(world.port.handle_control(world.now, session, 1, &normal).leaves);
    assert!(world.port.is_empty() && world.port.role(session).is_none());
}

#[test]
fn an_override_names_the_sessions_on_wrong_carriers() {
    let mut world = World::new();
    let (helped, direct) = (world.open(Role::Helper), world.open(Role::Client));
    assert_eq!((world.port.carried_by(Role::Helper), world.port.carried_by(Role::Client)), (1, 1));
    let say = |word| Placement::new(word, Duration::from_secs(2));
    let drain = Control::Drain { deadline_ms: 2000 };
    assert_eq!(world.port.misplaced(say(Override::Auto)), []);
    assert_eq!(world.port.misplaced(say(Override::Off)), [(helped, 0, drain)]);
    assert_eq!(world.port.misplaced(say(Override::On)), [(direct, 1, drain)]);
    assert_eq!(world.port.drains(direct, say(Override::Off)), None);
    world.move_to(1, 5, Role::Helper);
    assert_eq!(world.port.drains(direct, say(Override::Off)), Some(drain));
    world.port.detach(world.now, helped, 0);
    assert_eq!(world.port.misplaced(say(Override::Off)), [(direct, 5, drain)]);
}

#[test]
fn those_that_were_not_asked_yet_return_first() {
    let mut world = World::new();
    for _ in 0..4 {
        world.open(Role::Helper);
    }
    world.open(Role::Client);
    assert_eq!(world.asked_home(0), []);
    assert_eq!(world.asked_home(2), [0, 1]);
    assert_eq!(world.asked_home(1), [2]);
    assert_eq!(world.asked_home(2), [3, 0]);
    // Session 0 has moved to another helper: it was not asked yet on this carrier.
    world.move_to(0, 9, Role::Helper);
    assert_eq!(world.asked_home(9), [9, 1, 2, 3]);
}
