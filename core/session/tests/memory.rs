//! A table's memory is bounded in bytes: sessions that hold most memory and do not read are ended; others
//! continue.

use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_session::{
    Carrier, ClientSession, Expired, Opened, OpeningMessage, SessionHandle, Sessions, StreamLimits,
    TableLimits,
};
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::{Acknowledge, SessionId};
use spillway_wire::{CloseReason, Control, Kind};

const KEPT_BYTES_MAX: usize = 10_000;
const MEMORY_BYTES_MAX: usize = 100_000;

/// A carrier that accepts and drops all bytes.
struct DroppingCarrier;

impl Carrier for DroppingCarrier {
    fn data(&mut self, bytes: &[u8]) -> usize {
        bytes.len()
    }

    fn control(&mut self, _: Control) {}
}

struct World {
    table: Sessions<u32>,
    now: Time,
    ring: KeyRing,
}

impl World {
    fn new() -> World {
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key());
        let stream = StreamLimits { window_bytes: 10_000, kept_bytes_max: KEPT_BYTES_MAX };
        let limits = TableLimits { memory_bytes_max: MEMORY_BYTES_MAX, stream, ..TableLimits::default() };
        World { table: Sessions::new(limits, 9), now: Time(1_000_000), ring }
    }

    fn open(&mut self, number: u32) -> SessionHandle {
        let limits = StreamLimits { window_bytes: 1 << 30, ..StreamLimits::default() };
        let mut client = ClientSession::new(key(), SessionId([number as u8; 16]), limits);
        let address = "10.0.0.9:999".parse().unwrap();
        let Control::Connect(connect) = client.open(self.now, address, None) else {
            panic!("open should return connect")
        };
        let opening = connect.session.expect("connect should begin a session");
        let message =
            OpeningMessage { carrier: number, kind: Kind::Connect, client: connect.client, opening };
        match self.table.open(self.now, &self.ring, &message) {
            Opened::New { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, session: SessionHandle, bytes: usize) {
        assert_eq!(self.table.write(session, &vec![7; bytes]), bytes);
        self.table.transmit(self.now, session, &mut DroppingCarrier);
    }

    fn acknowledge(&mut self, session: SessionHandle, carrier: u32, received: u64) {
        let control =
            Control::Acknowledge(Acknowledge { received, finish_received: false, requests_answer: false });
        self.table.handle_control(self.now, session, carrier, &control);
    }

    /// The closed sessions that ended; the application gets no event for them.
    fn poll_lingered(&mut self) -> Vec<SessionHandle> {
        let expired = std::iter::from_fn(|| self.table.poll_expired(self.now));
        expired
            .map(|expired| match expired {
                Expired::Lingered(session, Some(_)) => session,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn poll_overflowed(&mut self) -> Vec<SessionHandle> {
        let expired = std::iter::from_fn(|| self.table.poll_expired(self.now));
        expired
            .map(|expired| match expired {
                Expired::Overflowed(session, Some(_)) => session,
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn key() -> Key {
    Key::from_secret([7; 32])
}

#[test]
fn at_the_bound_sessions_that_do_not_read_end_first() {
    let mut world = World::new();
    let sessions: Vec<SessionHandle> = (0..12).map(|number| world.open(number)).collect();
    // Session 0 holds less than the others; session 11 has read everything.
    world.write(sessions[0], 4_000);
    world.write(sessions[11], KEPT_BYTES_MAX);
    world.acknowledge(sessions[11], 11, KEPT_BYTES_MAX as u64);
    for session in &sessions[1..10] {
        world.write(*session, KEPT_BYTES_MAX);
    }
    assert!(
        world.table.held_bytes() <= MEMORY_BYTES_MAX && !world.table.is_overflowing(),
        "the sessions should be within the bound"
    );
    assert_eq!(world.poll_overflowed(), []);
    world.now = world.now + Duration::from_secs(3);
    world.acknowledge(sessions[0], 0, 0);
    // The bytes of an active session exceed the bound: other sessions end, not this one.
    world.write(sessions[11], KEPT_BYTES_MAX);
    assert!(world.table.is_overflowing(), "the sessions should overflow the bound");
    assert!(
        world.table.poll_timeout().is_some_and(|at| at <= world.now),
        "an overflow should be due at once"
    );
    let ended = world.poll_overflowed();
    assert!(
        (1..=3).contains(&ended.len()) && ended.iter().all(|ended| sessions[1..10].contains(ended)),
        "only sessions that do not read should end: {ended:?}"
    );
    assert!(world.table.held_bytes() <= MEMORY_BYTES_MAX / 8 * 7, "memory should fall to 7/8 of the bound");
    for session in [sessions[0], sessions[10], sessions[11]] {
        assert!(world.table.contains(session), "sessions that read or are active should stay");
    }
    assert!(
        !world.table.is_overflowing() && world.table.poll_timeout().is_none(),
        "nothing more should be due"
    );
}

/// The sessions hold unacknowledged bytes after the application has closed them.
#[test]
fn closed_sessions_that_overflow_end_without_an_event() {
    let mut world = World::new();
    let closed: Vec<SessionHandle> = (0..10).map(|number| world.open(number)).collect();
    for session in &closed {
        world.write(*session, KEPT_BYTES_MAX);
        world.table.close(world.now, *session, CloseReason::Normal);
    }
    world.now = world.now + Duration::from_secs(3);
    let open = world.open(10);
    world.write(open, KEPT_BYTES_MAX);
    assert!(world.table.is_overflowing(), "the sessions should overflow the bound");
    let ended = world.poll_lingered();
    assert!(
        !ended.is_empty() && ended.iter().all(|session| closed.contains(session)),
        "only closed sessions should end: {ended:?}"
    );
    assert!(
        world.table.held_bytes() <= MEMORY_BYTES_MAX && world.table.contains(open),
        "memory should be within the bound, and the open session stay"
    );
}

/// After the application has closed, its unread bytes are in no buffer and do not count.
#[test]
fn unread_bytes_of_a_closed_session_do_not_count() {
    let mut world = World::new();
    let session = world.open(0);
    assert_eq!(world.table.handle_data(world.now, session, 0, KEPT_BYTES_MAX), Ok(true));
    assert_eq!(world.table.held_bytes(), KEPT_BYTES_MAX);
    world.table.close(world.now, session, CloseReason::Normal);
    assert_eq!(world.table.held_bytes(), 0);
    // The application may report late that it read bytes before it closed.
    world.table.consumed(session, KEPT_BYTES_MAX).unwrap();
    assert_eq!(world.table.held_bytes(), 0);
}

/// Bytes that the application has not read count, too.
#[test]
fn unread_bytes_count_as_held_memory() {
    let mut world = World::new();
    let sessions: Vec<SessionHandle> = (0..11).map(|number| world.open(number)).collect();
    for (carrier, session) in (0..).zip(&sessions) {
        assert_eq!(world.table.handle_data(world.now, *session, carrier, KEPT_BYTES_MAX), Ok(true));
    }
    assert!(world.table.is_overflowing(), "unread bytes should overflow the bound");
    assert_eq!(
        world.poll_overflowed().len(),
        1,
        "without old unread bytes only as many sessions should end as necessary"
    );
    assert!(world.table.held_bytes() <= MEMORY_BYTES_MAX, "memory should be within the bound");
    world.table.consumed(sessions[10], KEPT_BYTES_MAX).unwrap();
    world.table.consumed(sessions[9], KEPT_BYTES_MAX).unwrap();
    assert!(
        world.table.held_bytes() <= MEMORY_BYTES_MAX - KEPT_BYTES_MAX,
        "memory should have room for another session"
    );
}

#[test]
fn any_number_of_unread_sessions_stays_within_the_memory_bound() {
    let mut world = World::new();
    for number in 0..200 {
        let session = world.open(number);
        world.write(session, KEPT_BYTES_MAX);
        world.poll_overflowed();
        assert!(world.table.held_bytes() <= MEMORY_BYTES_MAX, "memory should be within the bound");
    }
    assert!(
        world.table.len() <= MEMORY_BYTES_MAX / KEPT_BYTES_MAX,
        "the number of sessions should be within the bound"
    );
}
