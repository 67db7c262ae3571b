//! An application with helped clients, behind the opening end of a link, in memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spillway_auth::{Key, KeyRing, LinkRandomness};
use spillway_batch::{
    CloseReason, Encryption, Id, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, RefuseReason,
    Role, Scratch, ServerConfig,
};
use spillway_links::{HELPED_BIT, LinkNotice, LinkSettings, Linked};
use spillway_transport::{Application, Chunk, Conn, Event, Full, LostReason, Time, Transport};

const LINK_LISTENER: u16 = 1;
const LINK: Conn = Conn { slot: 5, generation: 0 };
/// The application grants this many bytes at a time, fewer than a request has.
const GRANT_BYTES: u32 = 10;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An echo server. It grants a few bytes at a time, and notes what it sees.
#[derive(Debug, Default)]
struct Echo {
    open: BTreeMap<Conn, u64>,
    lost: Vec<(Conn, LostReason)>,
    peers: Vec<SocketAddr>,
    waiting: BTreeMap<Conn, Vec<u8>>,
    /// Grants a client nothing after its first bytes, and asks for room instead.
    is_stalled: bool,
    /// Grants a client bytes only when there is room for replies, and asks for room otherwise. Counts how often.
    waits_for_room: bool,
    waits: u64,
}

impl Echo {
    fn send<T: Transport>(&mut self, conn: Conn, bytes: &[u8], out: &mut T) {
        let waiting = self.waiting.entry(conn).or_default();
        waiting.extend_from_slice(bytes);
        let sent = out.send(conn, waiting);
        waiting.drain(..sent);
    }
}

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, .. } => {
                assert_eq!(self.open.insert(conn, 0), None);
                self.peers.push(peer);
                out.grant(conn, GRANT_BYTES);
            }
            Event::Data { end, bytes } => {
                assert!(bytes.len() <= GRANT_BYTES as usize, "no more than was granted");
                let received = self.open.get_mut(&conn).unwrap();
                *received += bytes.len() as u64;
                assert_eq!(*received, end);
                self.send(conn, bytes, out);
                if self.waits_for_room && out.room(conn) < GRANT_BYTES as usize {
                    self.waits += 1;
                    out.want_room(conn);
                } else if !self.is_stalled {
                    out.grant(conn, bytes.len() as u32);
                }
            }
            Event::Room if self.waits_for_room => {
                self.send(conn, &[], out);
                if out.room(conn) < GRANT_BYTES as usize {
                    out.want_room(conn);
                } else {
                    out.grant(conn, GRANT_BYTES);
                }
            }
            Event::Room => self.send(conn, &[], out),
            Event::Finished => out.finish(conn),
            Event::Acknowledged { .. } => {}
            Event::Lost(reason) => {
                assert!(self.open.remove(&conn).is_some(), "a connection that was opened");
                self.lost.push((conn, reason));
            }
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// The connection of the link, in memory.
#[derive(Debug, Default)]
struct Wire {
    sent: Vec<u8>,
    granted: u64,
    finished: Vec<Conn>,
    aborted: Vec<Conn>,
}

impl Transport for Wire {
    fn connect(&mut self, _: Time, _: SocketAddr) -> Result<Conn, Full> {
        Err(Full)
    }

    fn set_listening(&mut self, _: u16, _: bool) {}

    fn room(&self, _: Conn) -> usize {
        usize::MAX
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        assert_eq!(conn.slot & HELPED_BIT, 0, "helped clients have no connection of the transport");
        if conn == LINK {
            self.sent.extend_from_slice(bytes);
        }
        bytes.len()
    }

    fn want_room(&mut self, _: Conn) {}

    fn send_chunk(&mut self, _: Conn, chunk: Chunk) -> Result<(), Chunk> {
        Err(chunk)
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn queued(&self, _: Conn) -> usize {
        0
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        assert_eq!(conn.slot & HELPED_BIT, 0, "helped clients have no connection of the transport");
        self.granted += if conn == LINK { u64::from(bytes) } else { 0 };
    }

    fn release(&mut self, _: Conn, _: u64) {}

    fn watch_acknowledged(&mut self, _: Conn, _: bool) {}

    fn finish(&mut self, conn: Conn) {
        self.finished.push(conn);
    }

    fn abort(&mut self, conn: Conn) {
        self.aborted.push(conn);
    }
}

/// What the opening end has seen.
#[derive(Debug, Default)]
struct Seen {
    accepted: Vec<Id>,
    refused: Vec<(Id, RefuseReason)>,
    data: BTreeMap<Id, Vec<u8>>,
    finished: Vec<Id>,
    closed: Vec<(Id, CloseReason)>,
}

struct Pair {
    now: Time,
    opener: OpenerLink,
    server: Linked<Echo>,
    wire: Wire,
    /// Bytes that wait for a grant.
    to_server: Vec<u8>,
    received: u64,
    seen: Seen,
    notices: Arc<Mutex<Vec<LinkNotice>>>,
}

fn fresh(first: u8) -> LinkRandomness {
    LinkRandomness::from_random([first; LinkRandomness::BYTES])
}

impl Pair {
    fn start(key: Key, echo: Echo) -> Pair {
        let now = Time(1_000_000_000);
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, Key::from_secret([1; 32]));
        let config = ServerConfig { ring, ..ServerConfig::default() };
        let notices = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&notices);
        let settings = LinkSettings {
            listener: LINK_LISTENER,
            address: address("10.0.0.5:11411"),
            config: Arc::new(config),
            links_max: 2,
            clients_max: 4,
            waiting_bytes_max: 100_000,
            randomness: Box::new(|| Some(fresh(8))),
            notices: Box::new(move |notice| noted.lock().unwrap().push(notice)),
        };
        let policy = PolicyKind::Fixed { interval: Duration::from_micros(200), size_bytes: 32_768 };
        let (role, encryption) = (Role::Helper, Encryption::default());
        let opener = OpenerLink::new(
            &OpenerConfig { role, key, limits: Limits::default(), policy, encryption },
            now,
            fresh(7),
        );
        let mut server = Linked::new(echo, settings);
        let mut wire = Wire::default();
        let opened = Event::Opened { peer: address("10.0.0.2:40000"), listener: Some(LINK_LISTENER) };
        server.handle(now, LINK, opened, &mut wire);
        let mut pair = Pair {
            now,
            opener,
            server,
            wire,
            to_server: Vec::new(),
            received: 0,
            seen: Seen::default(),
            notices,
        };
        pair.exchange();
        pair
    }

    fn new() -> Pair {
        Pair::with(Echo::default())
    }

    fn with(echo: Echo) -> Pair {
        let pair = Pair::start(Key::from_secret([1; 32]), echo);
        assert!(pair.opener.is_established() && pair.opener.is_encrypted());
        pair
    }

    fn open(&mut self, port: u16) -> Id {
        let id = self.opener.open(SocketAddr::new(address("10.0.0.3:1").ip(), port), None).unwrap();
        self.exchange();
        id
    }

    /// Delivers bytes in both directions until none are left.
    fn exchange(&mut self) {
        for _ in 0..1000 {
            let mut is_quiet = true;
            while let Some(batch) = self.opener.flush(self.now) {
                self.to_server.extend_from_slice(batch.as_slice());
            }
            // As many bytes as the link has granted.
            let granted = usize::try_from(self.wire.granted - self.received).unwrap();
            let bytes: Vec<u8> = self.to_server.drain(..granted.min(self.to_server.len())).collect();
            if !bytes.is_empty() {
                is_quiet = false;
                self.received += bytes.len() as u64;
                let event = Event::Data { end: self.received, bytes: &bytes };
                self.server.handle(self.now, LINK, event, &mut self.wire);
            }
            self.server.end_of_turn(self.now, &mut self.wire);
            let bytes = std::mem::take(&mut self.wire.sent);
            is_quiet &= bytes.is_empty();
            let mut scratch = Scratch::new();
            let mut input = self.opener.unseal(self.now, &bytes, &mut scratch);
            loop {
                match self.opener.decompose(self.now, &mut input) {
                    Ok(Some(OpenerEvent::Accepted { id })) => self.seen.accepted.push(id),
                    Ok(Some(OpenerEvent::Refused { id, reason })) => self.seen.refused.push((id, reason)),
                    Ok(Some(OpenerEvent::Data { id, bytes })) => {
                        self.seen.data.entry(id).or_default().extend_from_slice(bytes);
                        self.opener.consumed(id, bytes.len()).unwrap();
                    }
                    Ok(Some(OpenerEvent::Finished { id })) => self.seen.finished.push(id),
                    Ok(Some(OpenerEvent::Closed { id, reason })) => {
                        self.seen.closed.push((id, reason));
                        self.opener.close(id, CloseReason::Normal);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            if is_quiet {
                return;
            }
        }
        panic!("the exchange does not end");
    }

    fn echo(&self) -> &Echo {
        self.server.application()
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_helped_client_is_a_connection_like_any_other() {
    let mut pair = Pair::new();
    let (first, second) = (pair.open(1000), pair.open(1001));
    assert_eq!(pair.seen.accepted, [first, second]);
    assert_eq!(pair.echo().peers, [address("10.0.0.3:1000"), address("10.0.0.3:1001")]);
    assert!(pair.echo().open.keys().all(|conn| conn.slot & HELPED_BIT != 0));
    // Far more than the application grants at a time, and than the opener's window.
    let request = pattern(1_000_000);
    let mut sent = 0;
    while sent < request.len() {
        let taken = pair.opener.compose(first, &request[sent..]);
        sent += taken;
        pair.exchange();
        while pair.opener.poll_room().is_some() {}
    }
    assert!(pair.seen.data[&first] == request, "every byte comes back");
    assert!(!pair.seen.data.contains_key(&second));
    pair.opener.finish(first);
    pair.exchange();
    assert_eq!(
        (&pair.seen.finished[..], &pair.seen.closed[..]),
        (&[first][..], &[(first, CloseReason::Normal)][..])
    );
    assert!(matches!(pair.echo().lost[..], [(_, LostReason::Closed)]));
    assert_eq!(pair.echo().open.len(), 1, "the other client stays");
}

#[test]
fn clients_end_when_they_reset_and_with_their_link() {
    let mut pair = Pair::new();
    let (first, _) = (pair.open(1000), pair.open(1001));
    pair.opener.close(first, CloseReason::Reset);
    pair.exchange();
    assert!(matches!(pair.echo().lost[..], [(_, LostReason::Reset)]));
    let again = pair.open(1002);
    assert_eq!((pair.seen.accepted.len(), pair.echo().open.len()), (3, 2), "{again:?}");
    pair.server.handle(pair.now, LINK, Event::Lost(LostReason::Reset), &mut pair.wire);
    assert_eq!((pair.echo().lost.len(), pair.echo().open.len()), (3, 0));
    let notices = pair.notices.lock().unwrap();
    assert!(matches!(notices[..], [LinkNotice::Up { .. }, LinkNotice::Down { clients: 2, error: None, .. }]));
}

#[test]
fn a_peer_with_another_key_gets_no_link() {
    let mut pair = Pair::start(Key::from_secret([9; 32]), Echo::default());
    assert!(!pair.opener.is_established());
    assert_eq!((&pair.wire.finished[..], &pair.wire.aborted[..]), (&[LINK][..], &[][..]));
    assert!(matches!(pair.notices.lock().unwrap()[..], [LinkNotice::Rejected { count: 1, .. }]));
    // The peer does not close: the connection is reset after a few seconds.
    let at = pair.server.poll_timeout().unwrap();
    pair.server.handle_timeout(at, &mut pair.wire);
    assert_eq!(pair.wire.aborted, [LINK]);
    assert_eq!(pair.server.poll_timeout(), None);
}

#[test]
fn a_silent_peer_and_a_link_too_many_are_dropped() {
    let mut pair = Pair::new();
    let mut open = |slot| {
        let event = Event::Opened { peer: address("10.0.0.9:1"), listener: Some(LINK_LISTENER) };
        let mut wire = Wire::default();
        pair.server.handle(pair.now, Conn { slot, generation: 0 }, event, &mut wire);
        wire.aborted
    };
    assert_eq!(open(6), []);
    let silent = |slot| Conn { slot, generation: 0 };
    assert_eq!(open(7), [silent(6)], "the silent one makes room");
    let at = pair.server.poll_timeout().unwrap();
    let mut wire = Wire::default();
    pair.server.handle_timeout(at, &mut wire);
    assert_eq!(wire.finished, [silent(7)], "it has not authenticated in time");
    assert_eq!(pair.echo().open.len(), 0);
}

#[test]
fn clients_and_bytes_that_wait_are_bounded() {
    let mut pair = Pair::with(Echo { is_stalled: true, ..Echo::default() });
    let clients: Vec<Id> = (0..5).map(|number| pair.open(1000 + number)).collect();
    assert_eq!(pair.seen.refused, [(clients[4], RefuseReason::Full)]);
    for client in &clients[..2] {
        assert_eq!(pair.opener.compose(*client, &pattern(60_000)), 60_000);
        pair.exchange();
    }
    assert_eq!(pair.seen.closed, [(clients[1], CloseReason::Reset)], "its bytes have no room");
    assert_eq!(pair.echo().lost.len(), 1);
    assert!(matches!(pair.notices.lock().unwrap()[..], [_, LinkNotice::NoRoom { count: 1 }]));
    // The bytes of the ended client take no room any more.
    pair.opener.close(clients[0], CloseReason::Reset);
    pair.opener.compose(clients[2], &pattern(60_000));
    pair.exchange();
    assert_eq!((pair.seen.closed.len(), pair.echo().open.len()), (1, 2));
}

/// Clients take replies in small windows. The application asks for room again and again, and gets it each time.
#[test]
fn an_application_that_asks_for_room_gets_it() {
    let mut pair = Pair::with(Echo { waits_for_room: true, ..Echo::default() });
    let client = pair.open(1000);
    let request = pattern(1_000_000);
    let mut sent = 0;
    while sent < request.len() {
        let taken = pair.opener.compose(client, &request[sent..]);
        sent += taken;
        pair.exchange();
        while pair.opener.poll_room().is_some() {}
    }
    assert!(pair.seen.data[&client] == request, "every byte comes back");
    assert!(pair.echo().waits > 0, "there was no room at times");
}
