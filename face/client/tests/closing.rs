//! A closed session stays on its carrier until the server has answered; a reset session frees its buffers at once. The test
//! plays the server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_auth::{Key, KeyRing};
use spillway_batch::{CloseReason, Control, Id, Role, Scratch, ServerConfig, ServerEvent, ServerLink};
use spillway_client::session::{Patience, SessionEvent, SessionSettings};
use spillway_client::{LinkTarget, Session};
use spillway_session::{OnServerLink, Opened, OpeningMessage, SessionHandle, Sessions, TableLimits};
use spillway_transport::Time;

const DAY: Duration = Duration::from_secs(86_400);

/// A server with one link, driven by the test.
struct Server {
    stream: TcpStream,
    start: Instant,
    ring: KeyRing,
    link: ServerLink,
    table: Sessions<Id>,
    carried: Option<(SessionHandle, Id)>,
    has_heard_close: bool,
    has_heard_reset: bool,
}

impl Server {
    fn accept(listener: &TcpListener, key: Key) -> Server {
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key);
        let config = Arc::new(ServerConfig { ring: ring.clone(), ..ServerConfig::default() });
        let (local, fresh) = (stream.local_addr().unwrap(), spillway_keys::fresh().unwrap());
        Server {
            link: ServerLink::new(config, Time::ZERO, peer, local, fresh),
            table: Sessions::new(TableLimits::default(), 1),
            stream,
            start: Instant::now(),
            ring,
            carried: None,
            has_heard_close: false,
            has_heard_reset: false,
        }
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(received) => self.hear(now, &buffer[..received]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if let Some((session, id)) = self.carried {
            self.table.transmit(now, session, &mut OnServerLink { link: &mut self.link, id });
        }
        while let Some(batch) = self.link.flush(now) {
            self.stream.write_all(batch.as_slice()).unwrap();
            self.link.recycle(batch);
        }
    }

    fn hear(&mut self, now: Time, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "the session has left its carrier");
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(now, bytes, &mut scratch);
        while let Some(event) = self.link.decompose(now, &mut input).unwrap() {
            match event {
                ServerEvent::Session { id, kind, client, opening } => {
                    let words = OpeningMessage { carrier: id, kind, client, opening };
                    let opened = self.table.open(now, &self.ring, &words);
                    let Opened::New { session, answer } = opened else { panic!("{opened:?}") };
                    self.link.say(id, answer);
                    self.carried = Some((session, id));
                }
                ServerEvent::CarriedControl { id, control } => {
                    self.has_heard_close |= matches!(control, Control::Close(_));
                    self.has_heard_reset |= matches!(control, Control::Close(CloseReason::Reset));
                    let (session, _) = self.carried.unwrap();
                    self.table.handle_control(now, session, id, &control);
                }
                ServerEvent::Carried { id, bytes } => {
                    let (session, _) = self.carried.unwrap();
                    self.table.handle_data(now, session, id, bytes.len()).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Sends these messages on the session's carrier, and then *accepted*, which the session reports as an event.
    fn say(&mut self, controls: &[Control]) {
        let (_, id) = self.carried.unwrap();
        controls.iter().for_each(|control| self.link.say(id, *control));
        self.link.say(id, Control::Accepted);
    }

    fn close(&mut self) {
        let (session, _) = self.carried.unwrap();
        self.table.close(Time::ZERO + self.start.elapsed(), session, CloseReason::Normal);
    }
}

/// A session on the first of two routes, a helper's, and the server at the end of that link. The other route is the server's
/// own port. The timeouts are too long for probes.
fn begun() -> (Session, Server) {
    let (helper, own) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let key = Key::from_secret([7; 32]);
    let target = |listener: &TcpListener| LinkTarget {
        address: listener.local_addr().unwrap(),
        key: key.clone(),
        server: None,
        encryption: Default::default(),
    };
    let settings = SessionSettings {
        server_port: Some(own.local_addr().unwrap()),
        patience: Patience { floor: 30 * DAY, ceiling: 30 * DAY, idle: 30 * DAY },
        attach_timeout: Duration::from_secs(60),
        ..SessionSettings::default()
    };
    let mut session = Session::open(Instant::now(), vec![target(&helper), target(&own)], settings).unwrap();
    let mut server = Server::accept(&helper, key.clone());
    until(&mut session, &mut server, |session, _| session.carrier().is_some());
    assert!(matches!(session.poll_event(), Some(SessionEvent::Moved(_))));
    (session, server)
}

fn until(session: &mut Session, server: &mut Server, mut done: impl FnMut(&mut Session, &Server) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done(session, server) {
        assert!(Instant::now() < deadline, "nothing happens");
        server.turn();
        session.handle_ready(Instant::now());
        session.handle_timeout(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for *accepted*, which must be the session's next event.
fn await_accepted(session: &mut Session, server: &mut Server) {
    until(session, server, |session, _| match session.poll_event() {
        Some(SessionEvent::Accepted) => true,
        Some(other) => panic!("{other:?}"),
        None => false,
    });
}

fn ends_in_order(mut session: Session, mut server: Server) {
    assert!(session.carrier().is_some() && session.poll_event().is_none());
    server.close();
    until(&mut session, &mut server, |session, _| session.is_over());
    assert!(session.poll_event().is_none());
    assert_eq!(session.receive(Instant::now(), &mut [0; 9]).unwrap(), 0);
}

#[test]
fn a_closed_session_does_not_leave_where_it_is_asked_to() {
    let (mut session, mut server) = begun();
    session.close(Instant::now());
    // At the same time the helper drains and the server, which has not received *close*, asks the session to return.
    server.link.drain(0);
    server.say(&[Control::Drain { deadline_ms: 0 }]);
    await_accepted(&mut session, &mut server);
    until(&mut session, &mut server, |_, server| server.has_heard_close);
    session.handle_timeout(Instant::now());
    ends_in_order(session, server);
}

#[test]
fn closing_calls_a_departure_off() {
    let (mut session, mut server) = begun();
    // A deadline of seven days, so that the session does not move during the test.
    server.link.drain((7 * DAY).as_millis() as u32);
    server.say(&[]);
    await_accepted(&mut session, &mut server);
    let departure = session.poll_timeout().expect("a departure");
    assert!(departure < Instant::now() + 8 * DAY);
    session.close(Instant::now());
    session.handle_timeout(departure);
    ends_in_order(session, server);
}

#[test]
fn a_session_that_is_not_closed_leaves_where_it_is_asked_to() {
    let drains = |server: &mut Server| server.link.drain(0);
    let sends_away = |server: &mut Server| server.say(&[Control::Drain { deadline_ms: 0 }]);
    for asks in [drains, sends_away] {
        let (mut session, mut server) = begun();
        asks(&mut server);
        server.turn();
        let deadline = Instant::now() + Duration::from_secs(60);
        while session.carrier().is_some() {
            assert!(Instant::now() < deadline, "it stays");
            session.handle_ready(Instant::now());
            session.handle_timeout(Instant::now());
        }
    }
}

#[test]
fn memory_follows_what_waits_and_a_reset_frees_all_of_it() {
    let (mut session, mut server) = begun();
    let window = SessionSettings::default().stream.window_bytes as usize;
    let (handle, _) = server.carried.unwrap();
    assert_eq!(server.table.write(handle, &vec![7; window]), window);
    until(&mut session, &mut server, |session, _| session.arrived_bytes() == window);
    let held = session.held_bytes();
    assert!((window..=window + 4096).contains(&held), "{held} bytes of memory for {window} that arrived");
    // Receive everything: then the buffers are free.
    let mut all = vec![0; window];
    let mut received = 0;
    while received < window {
        received += session.receive(Instant::now(), &mut all[received..]).unwrap();
    }
    assert_eq!((session.arrived_bytes(), session.held_bytes()), (0, 0));
    // Bytes wait in both directions, because the server does not run between `send` and `reset`.
    until(&mut session, &mut server, |_, server| server.table.info(handle).unwrap().bytes_kept == 0);
    assert_eq!(server.table.write(handle, &vec![7; window / 2]), window / 2);
    until(&mut session, &mut server, |session, _| session.arrived_bytes() == window / 2);
    assert_eq!(session.send(Instant::now(), &vec![8; 100_000]).unwrap(), 100_000);
    assert!(
        session.buffered_bytes() == window / 2 + 100_000 && session.held_bytes() >= session.buffered_bytes()
    );
    session.reset(Instant::now());
    assert_eq!((session.buffered_bytes(), session.held_bytes()), (0, 0));
    until(&mut session, &mut server, |_, server| server.has_heard_reset);
    server.close();
    until(&mut session, &mut server, |session, _| session.is_over());
}
