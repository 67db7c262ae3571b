//! Sessions of the client library at the echo server, through helpers that start and stop.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_client::session::{BlockingSession, CarrierLoss, Gone, Pace, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget, Session};
use spillway_server::{CloseReason, ConsumedTooMuch, Event, KeyRing, Role, Settings};
use support::helper::Relief;
use support::port::{Port, Serve, until};
use support::streams::stream_and_move;
use support::{Echo, Keys, round_trip};

fn open(routes: Vec<LinkTarget>) -> BlockingSession {
    BlockingSession::open(routes, SessionSettings::default()).unwrap()
}

/// The addresses of the session's carriers, in order.
fn moves(session: &mut BlockingSession) -> Vec<SocketAddr> {
    let mut moves = Vec::new();
    while let Some(event) = session.poll_event() {
        if let SessionEvent::Moved(address) = event {
            moves.push(address);
        }
    }
    moves
}

#[test]
fn a_session_goes_on_when_its_helper_is_gone() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let (one, other) = (Relief::start(&keys, echo.link), Relief::start(&keys, echo.link));
    let (first, second) = (one.link, other.link);
    let mut session = open(vec![one.target(&keys), other.target(&keys), echo.target(&keys)]);
    (0..20).for_each(|round| round_trip(&mut session, 1 + round * 50, round));
    // A request is under way when the helper stops.
    session.write_all(b"under way").unwrap();
    one.stop();
    let mut reply = [0; 9];
    session.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"under way");
    (0..20).for_each(|round| round_trip(&mut session, 1 + round * 50, round));
    assert_eq!(moves(&mut session), [first, second]);
    other.stop();
    round_trip(&mut session, 1000, 7);
    assert_eq!(moves(&mut session), [echo.link]);
    session.close().unwrap();
}

#[test]
fn sessions_move_under_traffic_and_every_byte_is_right() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let (one, other) = (Relief::start(&keys, echo.link), Relief::start(&keys, echo.link));
    let routes = [one.target(&keys), other.target(&keys), echo.target(&keys)];
    std::thread::scope(|scope| {
        for number in 0..8 {
            let routes = routes.to_vec();
            scope.spawn(move || assert!(stream_and_move(routes, number, 600_000) > 1));
        }
    });
}

#[test]
fn helpers_come_and_go_and_no_session_notices() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let ports: Vec<SocketAddr> = (0..2).map(|_| spillway_ports::free_address()).collect();
    let routes: Vec<LinkTarget> = ports
        .iter()
        .map(|&address| LinkTarget {
            address,
            key: keys.client.clone(),
            server: None,
            encryption: Default::default(),
        })
        .collect();
    let mut helpers: Vec<Relief> =
        ports.iter().map(|port| Relief::start_at(&keys, echo.link, *port)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..10)
            .map(|number| {
                let (routes, done) = (routes.clone(), &done);
                scope.spawn(move || {
                    let mut session = open(routes);
                    let mut round = 0;
                    while !done.load(Ordering::Relaxed) {
                        round_trip(&mut session, 1 + (round * 37 + number) % 5_000, round);
                        round += 1;
                    }
                    session.close().unwrap();
                    round
                })
            })
            .collect();
        for turn in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            let at = turn % 2;
            helpers.remove(at).stop();
            helpers.insert(at, Relief::start_at(&keys, echo.link, ports[at]));
        }
        done.store(true, Ordering::Relaxed);
        let rounds: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert!(rounds > 10, "only {rounds} round trips");
    });
}

/// Settings of sessions that return to this server within a window.
fn paced(server: SocketAddr, window: Duration) -> SessionSettings {
    let pace = Pace { window, window_max: window };
    let give_up_after = 2 * window + Duration::from_secs(60);
    SessionSettings { server_port: Some(server), pace, give_up_after, ..SessionSettings::default() }
}

#[test]
fn without_a_helper_sessions_return_to_the_server_each_in_its_turn() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let relief = Relief::start(&keys, echo.link);
    let first = relief.link;
    // The server's own port is tried last, although it is the next route in the list.
    let routes = vec![relief.target(&keys), echo.target(&keys)];
    let settings = paced(echo.link, Duration::from_millis(200));
    let mut sessions: Vec<BlockingSession> =
        (0..40).map(|_| BlockingSession::open(routes.clone(), settings).unwrap()).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        round_trip(session, 100, number);
    }
    relief.stop();
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter_mut().enumerate() {
            scope
                .spawn(move || (0..10).for_each(|round| round_trip(session, 1 + round * 50, number + round)));
        }
    });
    for mut session in sessions {
        assert_eq!(moves(&mut session), [first, echo.link]);
        session.close().unwrap();
    }
}

#[test]
fn a_helper_that_comes_back_is_better_than_the_server() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let port = spillway_ports::free_address();
    let relief = Relief::start_at(&keys, echo.link, port);
    relief.await_links(1);
    // With this window no session returns to the server during the test.
    let settings = paced(echo.link, Duration::from_secs(7 * 86_400));
    let mut session =
        BlockingSession::open(vec![relief.target(&keys), echo.target(&keys)], settings).unwrap();
    round_trip(&mut session, 100, 1);
    relief.stop();
    session.write_all(b"under way").unwrap();
    let relief = Relief::start_at(&keys, echo.link, port);
    let mut reply = [0; 9];
    session.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"under way");
    assert!(moves(&mut session).iter().all(|address| *address == port), "only to the helper");
    session.close().unwrap();
    relief.stop();
}

#[test]
fn a_helper_that_goes_is_left_while_it_still_serves() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let relief = Relief::start(&keys, echo.link);
    let routes = vec![relief.target(&keys), echo.target(&keys)];
    let mut sessions: Vec<BlockingSession> = (0..40)
        .map(|_| BlockingSession::open(routes.clone(), paced(echo.link, Duration::from_secs(1))).unwrap())
        .collect();
    sessions.iter_mut().for_each(|session| round_trip(session, 10, 1));
    // A long deadline, so that sessions on a slow machine still leave in time.
    relief.drain(Duration::from_secs(20));
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut round = 0;
    let has_moved = |session: &mut BlockingSession| session.session().carrier() == Some(echo.link);
    while sessions.iter_mut().map(has_moved).filter(|moved| *moved).count() < 3 {
        assert!(Instant::now() < deadline, "all of them stay");
        // Requests are answered during the drain.
        sessions.iter_mut().for_each(|session| round_trip(session, 10, round));
        round += 1;
    }
    for mut session in sessions {
        let mut why = Vec::new();
        while let Some(event) = session.poll_event() {
            if let SessionEvent::CarrierLost { why: loss, .. } = event {
                why.push(loss);
            }
        }
        assert!(matches!(why[..], [] | [CarrierLoss::Drain]), "{why:?}");
        session.close().unwrap();
    }
    relief.stop();
}

#[test]
fn a_server_that_was_restarted_is_told_as_gone() {
    let keys = Keys::new();
    let (listen, link) = (spillway_ports::free_address(), spillway_ports::free_address());
    let start = || Echo::start_on(&keys, &listen.to_string(), &link.to_string());
    let echo = start();
    let mut session = open(vec![echo.target(&keys)]);
    round_trip(&mut session, 100, 1);
    drop(echo);
    let _echo = start();
    session.write_all(b"lost").unwrap();
    let error = session.read(&mut [0; 9]).unwrap_err();
    let gone = error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()).copied();
    assert!(gone.is_some_and(|gone| gone.acknowledged <= 100 && gone.written == 104), "{error}");
    assert!(session.write(b"more").is_err());
    assert!(session.close().is_err(), "it has not all arrived");
}

#[test]
fn the_end_of_both_directions_is_told_once() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let relief = Relief::start(&keys, echo.link);
    let mut session = open(vec![relief.target(&keys), echo.target(&keys)]);
    session.write_all(b"last words").unwrap();
    session.finish();
    assert_eq!(session.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    session.session().move_to(Instant::now(), 1).unwrap();
    let mut reply = Vec::new();
    session.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"last words");
    session.close().unwrap();
    relief.await_that("the end of its client", || relief.library_clients() == 0);
}

#[test]
fn who_has_closed_is_told_of_the_end() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let mut session = open(vec![echo.target(&keys)]);
    round_trip(&mut session, 100, 1);
    session.session().close(Instant::now());
    assert_eq!(session.read(&mut [0; 9]).unwrap(), 0);
    assert_eq!(session.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    session.close().unwrap();
}

/// A server that closes a session at its first data. Before, it consumes one byte too many, which is an error.
struct Curt(Port);

impl Serve for Curt {
    fn port(&mut self) -> &mut Port {
        &mut self.0
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Connected { client, .. } => self.0.links.accept(client),
            Event::Data { client, bytes } => {
                let (bytes, received) = (bytes.len() + 1, bytes.len() as u64);
                let error = ConsumedTooMuch { bytes, unconsumed: received };
                assert_eq!(self.0.links.consumed(client, bytes), Err(error));
                assert_eq!(self.0.links.consumed(client, bytes - 1), Ok(()));
                self.0.links.close(client, CloseReason::Normal);
            }
            _ => {}
        }
    }
}

/// Without the error, the client would wait for room for ever.
#[test]
fn who_writes_to_a_server_that_has_closed_is_told_so() {
    let keys = Keys::new();
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, keys.client.clone());
    let now = Instant::now();
    let settings = Settings { ring, ..Settings::default() };
    let mut server = Curt(Port::bind(now, "127.0.0.1:0".parse().unwrap(), settings));
    let target = LinkTarget {
        address: server.0.links.address(),
        key: keys.client.clone(),
        server: None,
        encryption: Default::default(),
    };
    let mut session = Session::open(now, vec![target], SessionSettings::default()).unwrap();
    assert_eq!(session.send(now, b"heard").unwrap(), 5);
    let turn = |server: &mut Curt| server.turn_at(now, &mut [0; 1000]);
    until(&mut server, "the end", turn, |_| {
        session.receive(now, &mut [0; 9]).is_ok_and(|received| received == 0)
    });
    assert_eq!(session.send(now, b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_wrong_key_opens_no_session() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let target = LinkTarget { key: Key::from_secret([9; 32]), ..echo.target(&keys) };
    let mut session = Session::open(Instant::now(), vec![target], SessionSettings::default()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        session.handle_ready(Instant::now());
        session.handle_timeout(Instant::now());
        if let Some(SessionEvent::CarrierLost { why: CarrierLoss::Link(why), .. }) = session.poll_event() {
            assert!(why.to_string().contains("does not accept our key"), "{why}");
            return;
        }
        assert!(Instant::now() < deadline, "it is not told why");
        std::thread::sleep(Duration::from_millis(1));
    }
}
