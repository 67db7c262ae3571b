//! A closed session stays on its carrier until the server has answered; a reset session frees its buffers at once. The
//! test acts as the server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_auth::{Key, KeyRing};
use spillway_batch::{CloseReason, Control, Id, Role, Scratch, ServerConfig, ServerEvent, ServerLink};
use spillway_client::session::{CarrierTimeouts, SessionEvent, SessionSettings};
use spillway_client::{LinkTarget, Session};
use spillway_session::{Opened, OpeningMessage, ServerLinkCarrier, SessionHandle, Sessions, TableLimits};
use spillway_transport::Time;

const DAY: Duration = Duration::from_secs(86_400);

/// A server with one link, driven by the test.
struct Server {
    stream: TcpStream,
    start: Instant,
    ring: KeyRing,
    link: ServerLink,
    table: Sessions<Id>,
    carried_session: Option<(SessionHandle, Id)>,
    has_received_close: bool,
    has_received_reset: bool,
}

impl Server {
    fn accept(listener: &TcpListener, key: Key) -> Server {
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key);
        let config = Arc::new(ServerConfig { ring: ring.clone(), ..ServerConfig::default() });
        let (local, fresh) = (stream.local_addr().unwrap(), spillway_keys::fresh_link_randomness().unwrap());
        Server {
            link: ServerLink::new(config, Time::ZERO, peer, local, fresh),
            table: Sessions::new(TableLimits::default(), 1),
            stream,
            start: Instant::now(),
            ring,
            carried_session: None,
            has_received_close: false,
            has_received_reset: false,
        }
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(received) => self.receive(now, &buffer[..received]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if let Some((session, id)) = self.carried_session {
            self.table.transmit(now, session, &mut ServerLinkCarrier { link: &mut self.link, id });
        }
        while let Some(batch) = self.link.flush(now) {
            self.stream.write_all(batch.as_slice()).unwrap();
            self.link.recycle(batch);
        }
    }

    fn receive(&mut self, now: Time, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "the session should stay on its carrier");
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(now, bytes, &mut scratch);
        while let Some(event) = self.link.decompose(now, &mut input).unwrap() {
            match event {
                ServerEvent::Session { id, kind, client, opening } => {
                    let message = OpeningMessage { carrier: id, kind, client, opening };
                    let opened = self.table.open(now, &self.ring, &message);
                    let Opened::New { session, answer } = opened else { panic!("{opened:?}") };
                    self.link.send_control(id, answer);
                    self.carried_session = Some((session, id));
                }
                ServerEvent::CarriedControl { id, control } => {
                    self.has_received_close |= matches!(control, Control::Close(_));
                    self.has_received_reset |= matches!(control, Control::Close(CloseReason::Reset));
                    let (session, _) = self.carried_session.unwrap();
                    self.table.handle_control(now, session, id, &control);
                }
                ServerEvent::Carried { id, bytes } => {
                    let (session, _) = self.carried_session.unwrap();
                    self.table.handle_data(now, session, id, bytes.len()).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Sends these messages on the session's carrier, and then *accepted*, which the session reports as an event.
    fn send(&mut self, controls: &[Control]) {
        let (_, id) = self.carried_session.unwrap();
        controls.iter().for_each(|control| self.link.send_control(id, *control));
        self.link.send_control(id, Control::Accepted);
    }

    fn close(&mut self) {
        let (session, _) = self.carried_session.unwrap();
        self.table.close(Time::ZERO + self.start.elapsed(), session, CloseReason::Normal);
    }
}

/// Opens a session on the first of two routes, which is a helper's; the returned server accepts that link. The other
/// route is the server's own port. The timeouts are so long that no probe is sent.
fn open_session() -> (Session, Server) {
    let (helper, direct) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let key = Key::from_secret([7; 32]);
    let target = |listener: &TcpListener| LinkTarget {
        address: listener.local_addr().unwrap(),
        key: key.clone(),
        server: None,
        encryption: Default::default(),
    };
    let settings = SessionSettings {
        server_port: Some(direct.local_addr().unwrap()),
        carrier_timeouts: CarrierTimeouts { floor: 30 * DAY, ceiling: 30 * DAY, idle: 30 * DAY },
        attach_timeout: Duration::from_secs(60),
        ..SessionSettings::default()
    };
    let mut session =
        Session::open(Instant::now(), vec![target(&helper), target(&direct)], settings).unwrap();
    let mut server = Server::accept(&helper, key.clone());
    run_until(&mut session, &mut server, |session, _| session.carrier().is_some());
    assert!(matches!(session.poll_event(), Some(SessionEvent::Moved(_))));
    (session, server)
}

fn run_until(
    session: &mut Session,
    server: &mut Server,
    mut done: impl FnMut(&mut Session, &Server) -> bool,
) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done(session, server) {
        assert!(Instant::now() < deadline, "the condition should hold within 60 s");
        server.turn();
        session.handle_ready(Instant::now());
        session.handle_timeout(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for *accepted*, which must be the session's next event.
fn await_accepted(session: &mut Session, server: &mut Server) {
    run_until(session, server, |session, _| match session.poll_event() {
        Some(SessionEvent::Accepted) => true,
        Some(other) => panic!("{other:?}"),
        None => false,
    });
}

fn assert_ends_in_order(mut session: Session, mut server: Server) {
    assert!(session.carrier().is_some() && session.poll_event().is_none());
    server.close();
    run_until(&mut session, &mut server, |session, _| session.is_over());
    assert!(session.poll_event().is_none());
    assert_eq!(session.receive(Instant::now(), &mut [0; 9]).unwrap(), 0);
}

#[test]
fn closed_session_ignores_requests_to_move() {
    let (mut session, mut server) = open_session();
    session.close(Instant::now());
    // At the same time the helper drains and the server, which has not received *close*, asks the session to return.
    server.link.drain(0);
    server.send(&[Control::Drain { deadline_ms: 0 }]);
    await_accepted(&mut session, &mut server);
    run_until(&mut session, &mut server, |_, server| server.has_received_close);
    session.handle_timeout(Instant::now());
    assert_ends_in_order(session, server);
}

#[test]
fn closing_cancels_a_scheduled_move() {
    let (mut session, mut server) = open_session();
    // A deadline of seven days, so that the session does not move during the test.
    server.link.drain((7 * DAY).as_millis() as u32);
    server.send(&[]);
    await_accepted(&mut session, &mut server);
    let move_due = session.poll_timeout().expect("the drain should schedule a move");
    assert!(move_due < Instant::now() + 8 * DAY);
    session.close(Instant::now());
    session.handle_timeout(move_due);
    assert_ends_in_order(session, server);
}

#[test]
fn open_session_moves_when_asked() {
    let drains_link = |server: &mut Server| server.link.drain(0);
    let drains_session = |server: &mut Server| server.send(&[Control::Drain { deadline_ms: 0 }]);
    for ask_to_move in [drains_link, drains_session] {
        let (mut session, mut server) = open_session();
        ask_to_move(&mut server);
        server.turn();
        let deadline = Instant::now() + Duration::from_secs(60);
        while session.carrier().is_some() {
            assert!(Instant::now() < deadline, "the session should leave its carrier within 60 s");
            session.handle_ready(Instant::now());
            session.handle_timeout(Instant::now());
        }
    }
}

#[test]
fn memory_follows_buffered_bytes_and_reset_frees_them() {
    let (mut session, mut server) = open_session();
    let window = SessionSettings::default().stream.window_bytes as usize;
    let (handle, _) = server.carried_session.unwrap();
    assert_eq!(server.table.write(handle, &vec![7; window]), window);
    run_until(&mut session, &mut server, |session, _| session.arrived_bytes() == window);
    let held = session.held_bytes();
    assert!(
        (window..=window + 4096).contains(&held),
        "{window} bytes arrived, so about as much memory should be held, but {held} bytes are"
    );
    // Receive everything: then the buffers are free.
    let mut output = vec![0; window];
    let mut received = 0;
    while received < window {
        received += session.receive(Instant::now(), &mut output[received..]).unwrap();
    }
    assert_eq!((session.arrived_bytes(), session.held_bytes()), (0, 0));
    // Bytes wait in both directions, because the server does not run between `send` and `reset`.
    run_until(&mut session, &mut server, |_, server| server.table.info(handle).unwrap().bytes_kept == 0);
    assert_eq!(server.table.write(handle, &vec![7; window / 2]), window / 2);
    run_until(&mut session, &mut server, |session, _| session.arrived_bytes() == window / 2);
    assert_eq!(session.send(Instant::now(), &vec![8; 100_000]).unwrap(), 100_000);
    assert!(
        session.buffered_bytes() == window / 2 + 100_000 && session.held_bytes() >= session.buffered_bytes()
    );
    session.reset(Instant::now());
    assert_eq!((session.buffered_bytes(), session.held_bytes()), (0, 0));
    run_until(&mut session, &mut server, |_, server| server.has_received_reset);
    server.close();
    run_until(&mut session, &mut server, |session, _| session.is_over());
}
