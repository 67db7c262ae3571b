//! Sessions of the client library at the echo server, through helpers that start and stop.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_client::session::{BlockingSession, CarrierLoss, Gone, Pace, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget, Session};
use spillway_server::{CloseReason, ConsumedTooMuch, Event, KeyRing, Role, Settings};
use support::helper::TestHelper;
use support::port::{Port, Serve, run_until};
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
fn session_continues_when_its_helper_stops() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let (helper_a, helper_b) =
        (TestHelper::start(&keys, echo.link_port), TestHelper::start(&keys, echo.link_port));
    let (first, second) = (helper_a.link_port, helper_b.link_port);
    let mut session = open(vec![helper_a.target(&keys), helper_b.target(&keys), echo.target(&keys)]);
    (0..20).for_each(|round| round_trip(&mut session, 1 + round * 50, round));
    // A request is under way when the helper stops.
    session.write_all(b"under way").unwrap();
    helper_a.stop();
    let mut reply = [0; 9];
    session.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"under way");
    (0..20).for_each(|round| round_trip(&mut session, 1 + round * 50, round));
    assert_eq!(moves(&mut session), [first, second]);
    helper_b.stop();
    round_trip(&mut session, 1000, 7);
    assert_eq!(moves(&mut session), [echo.link_port]);
    session.close().unwrap();
}

#[test]
fn sessions_move_under_traffic_without_lost_or_altered_bytes() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let (helper_a, helper_b) =
        (TestHelper::start(&keys, echo.link_port), TestHelper::start(&keys, echo.link_port));
    let routes = [helper_a.target(&keys), helper_b.target(&keys), echo.target(&keys)];
    std::thread::scope(|scope| {
        for number in 0..8 {
            let routes = routes.to_vec();
            scope.spawn(move || assert!(stream_and_move(routes, number, 600_000) > 1));
        }
    });
}

#[test]
fn sessions_continue_while_helpers_restart() {
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
    let mut helpers: Vec<TestHelper> =
        ports.iter().map(|port| TestHelper::start_at(&keys, echo.link_port, *port)).collect();
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
            let index = turn % 2;
            helpers.remove(index).stop();
            helpers.insert(index, TestHelper::start_at(&keys, echo.link_port, ports[index]));
        }
        done.store(true, Ordering::Relaxed);
        let rounds: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert!(rounds > 10, "more than 10 round trips should complete, but {rounds} did");
    });
}

/// Settings of sessions that return to this server within a window.
fn settings_with_pace(server: SocketAddr, window: Duration) -> SessionSettings {
    let pace = Pace { window, window_max: window };
    let give_up_after = 2 * window + Duration::from_secs(60);
    SessionSettings { server_port: Some(server), pace, give_up_after, ..SessionSettings::default() }
}

#[test]
fn sessions_without_a_helper_return_to_the_server() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let first = helper.link_port;
    // The server's own port is tried last, although it is the next route in the list.
    let routes = vec![helper.target(&keys), echo.target(&keys)];
    let settings = settings_with_pace(echo.link_port, Duration::from_millis(200));
    let mut sessions: Vec<BlockingSession> =
        (0..40).map(|_| BlockingSession::open(routes.clone(), settings).unwrap()).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        round_trip(session, 100, number);
    }
    helper.stop();
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter_mut().enumerate() {
            scope
                .spawn(move || (0..10).for_each(|round| round_trip(session, 1 + round * 50, number + round)));
        }
    });
    for mut session in sessions {
        assert_eq!(moves(&mut session), [first, echo.link_port]);
        session.close().unwrap();
    }
}

#[test]
fn session_returns_to_a_restarted_helper_before_the_server() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let port = spillway_ports::free_address();
    let helper = TestHelper::start_at(&keys, echo.link_port, port);
    helper.await_links(1);
    // With this window no session returns to the server during the test.
    let settings = settings_with_pace(echo.link_port, Duration::from_secs(7 * 86_400));
    let mut session =
        BlockingSession::open(vec![helper.target(&keys), echo.target(&keys)], settings).unwrap();
    round_trip(&mut session, 100, 1);
    helper.stop();
    session.write_all(b"under way").unwrap();
    let helper = TestHelper::start_at(&keys, echo.link_port, port);
    let mut reply = [0; 9];
    session.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"under way");
    assert!(
        moves(&mut session).iter().all(|address| *address == port),
        "the session should move only to the helper"
    );
    session.close().unwrap();
    helper.stop();
}

#[test]
fn sessions_leave_a_draining_helper_while_it_still_serves() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let routes = vec![helper.target(&keys), echo.target(&keys)];
    let mut sessions: Vec<BlockingSession> = (0..40)
        .map(|_| {
            BlockingSession::open(routes.clone(), settings_with_pace(echo.link_port, Duration::from_secs(1)))
                .unwrap()
        })
        .collect();
    sessions.iter_mut().for_each(|session| round_trip(session, 10, 1));
    // A long deadline, so that sessions on a slow machine still leave in time.
    helper.drain(Duration::from_secs(20));
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut round = 0;
    let has_moved = |session: &mut BlockingSession| session.session().carrier() == Some(echo.link_port);
    while sessions.iter_mut().map(has_moved).filter(|moved| *moved).count() < 3 {
        assert!(Instant::now() < deadline, "three sessions should leave the helper within 60 s");
        // Requests are answered during the drain.
        sessions.iter_mut().for_each(|session| round_trip(session, 10, round));
        round += 1;
    }
    for mut session in sessions {
        let mut losses = Vec::new();
        while let Some(event) = session.poll_event() {
            if let SessionEvent::CarrierLost { why: loss, .. } = event {
                losses.push(loss);
            }
        }
        assert!(matches!(losses[..], [] | [CarrierLoss::Drain]), "{losses:?}");
        session.close().unwrap();
    }
    helper.stop();
}

#[test]
fn session_is_gone_after_a_server_restart() {
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
    assert!(session.close().is_err(), "close should fail: the server has not received all bytes");
}

#[test]
fn finished_session_ends_in_both_directions() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut session = open(vec![helper.target(&keys), echo.target(&keys)]);
    session.write_all(b"last words").unwrap();
    session.finish();
    assert_eq!(session.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    session.session().move_to(Instant::now(), 1).unwrap();
    let mut reply = Vec::new();
    session.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"last words");
    session.close().unwrap();
    helper.await_condition("the end of its client", || helper.library_clients() == 0);
}

#[test]
fn closed_session_reads_the_end_and_refuses_writes() {
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
struct ClosingServer(Port);

impl Serve for ClosingServer {
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

/// Without the error, the client would wait for room forever.
#[test]
fn write_after_the_server_has_closed_is_a_broken_pipe() {
    let keys = Keys::new();
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, keys.client.clone());
    let now = Instant::now();
    let settings = Settings { keys: ring, ..Settings::default() };
    let mut server = ClosingServer(Port::bind(now, "127.0.0.1:0".parse().unwrap(), settings));
    let target = LinkTarget {
        address: server.0.links.address(),
        key: keys.client.clone(),
        server: None,
        encryption: Default::default(),
    };
    let mut session = Session::open(now, vec![target], SessionSettings::default()).unwrap();
    assert_eq!(session.send(now, b"heard").unwrap(), 5);
    let turn = |server: &mut ClosingServer| server.turn_at(now, &mut [0; 1000]);
    run_until(&mut server, "the end", turn, |_| {
        session.receive(now, &mut [0; 9]).is_ok_and(|received| received == 0)
    });
    assert_eq!(session.send(now, b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn wrong_key_is_reported_as_a_carrier_loss() {
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
        assert!(Instant::now() < deadline, "the loss of the carrier should be reported within 60 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}
