//! Moves at their edges: what is refused, what fails, what dies meanwhile. Time is given, not waited for.

mod support;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use spillway_batch::Limits;
use spillway_moving_client::{Carrier, Connection, Event, LinkTarget, MoveError, Route, Settings};
use support::{Server, await_event, await_readable, exchange, serve, turn};

fn direct(server: &Server) -> Connection {
    let mut connection =
        Connection::connect(Instant::now(), server.plain, Settings::default()).expect("a socket");
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(to)) if to == server.plain));
    connection
}

fn helped(server: &Server, settings: Settings) -> Connection {
    let mut connection =
        Connection::pm_connect(Instant::now(), &server.target(), Some(server.plain), settings).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Link(to)) if to == server.link));
    connection
}

#[test]
fn a_prepared_move_takes_no_time_and_the_old_carrier_serves_until_then() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct(&server);
    for round in 0..5 {
        connection.prepare_move(Instant::now(), Route::Link(&server.target())).unwrap();
        exchange(&mut connection, b"while it is prepared");
        assert!(matches!(await_event(&mut connection), Event::Prepared(Carrier::Link(_))), "{round}");
        exchange(&mut connection, b"once it is prepared");
        assert_eq!(connection.carrier(), Some(Carrier::Direct(server.plain)));
        connection.complete_move().unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Link(_)))));
        exchange(&mut connection, b"helped");
        connection.prepare_move(Instant::now(), Route::Direct).unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Prepared(Carrier::Direct(_)))), "it was kept");
        exchange(&mut connection, b"still helped");
        connection.complete_move().unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Direct(_)))));
        exchange(&mut connection, b"direct");
    }
}

#[test]
fn a_move_called_off_changes_nothing() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct(&server);
    assert!(matches!(connection.complete_move(), Err(MoveError::NotPrepared)));
    connection.prepare_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(connection.begin_move(Instant::now(), Route::Direct), Err(MoveError::Moving)));
    connection.cancel_move();
    assert!(matches!(connection.complete_move(), Err(MoveError::NotPrepared)));
    exchange(&mut connection, b"direct");
    assert!(matches!(connection.begin_move(Instant::now(), Route::Direct), Err(MoveError::AlreadyThere)));
}

#[test]
fn it_does_not_move_while_replies_are_unread() {
    let server = Server::start("127.0.0.1", Limits::default());
    let target = server.target();
    for mut connection in [direct(&server), helped(&server, Settings::default())] {
        let route = match connection.carrier() {
            Some(Carrier::Direct(_)) => Route::Link(&target),
            _ => Route::Direct,
        };
        connection.send(b"a request").unwrap();
        await_readable(&mut connection);
        assert!(matches!(connection.begin_move(Instant::now(), route), Err(MoveError::Unread)));
        // Nothing is lost by the attempt.
        let mut reply = [0; 64];
        let received = connection.receive(&mut reply).unwrap();
        assert_eq!(&reply[..received], b"a request");
        connection.begin_move(Instant::now(), route).unwrap();
        assert!(matches!(await_event(&mut connection), Event::Moved(_)));
        exchange(&mut connection, b"moved");
    }
}

#[test]
fn it_does_not_change_over_while_a_reply_is_unread() {
    let server = Server::start("127.0.0.1", Limits::default());
    // A link port that answers nothing: the move stays under way.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LinkTarget { address: silent.local_addr().unwrap(), ..server.target() };
    let mut connection = direct(&server);
    connection.prepare_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Prepared(_)));
    connection.send(b"late").unwrap();
    await_readable(&mut connection);
    assert!(matches!(connection.complete_move(), Err(MoveError::Unread)));
    let mut reply = [0; 64];
    assert_eq!(connection.receive(&mut reply).unwrap(), 4);
    connection.complete_move().unwrap();
    exchange(&mut connection, b"moved");
    connection.begin_move(Instant::now(), Route::Link(&target)).unwrap();
    assert_eq!(connection.send(b"x").unwrap_err().kind(), io::ErrorKind::WouldBlock, "not during a move");
    connection.cancel_move();
    exchange(&mut connection, b"the move is off");
}

#[test]
fn what_takes_too_long_is_given_up_and_the_old_carrier_stays() {
    let server = Server::start("127.0.0.1", Limits::default());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LinkTarget { address: silent.local_addr().unwrap(), ..server.target() };
    let mut connection = direct(&server);
    assert_eq!(connection.poll_timeout(), None);
    let now = Instant::now();
    connection.begin_move(now, Route::Link(&target)).unwrap();
    let first = connection.poll_timeout().expect("a deadline");
    connection.handle_timeout(first - Duration::from_nanos(1));
    assert!(connection.is_moving());
    // Whether TCP has connected by now or not, some deadline ends it.
    while let Some(deadline) = connection.poll_timeout() {
        connection.handle_timeout(deadline);
    }
    let Some(Event::MoveFailed { to: Carrier::Link(to), why }) = connection.poll_event() else {
        panic!("it must fail");
    };
    assert_eq!(to, target.address);
    assert!(matches!(why, MoveError::ConnectTimeout(_) | MoveError::AcceptedTimeout(_)), "{why}");
    exchange(&mut connection, b"direct");
}

#[test]
fn the_death_of_the_idle_direct_connection_is_told_and_the_way_back_connects_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = listener.local_addr().unwrap();
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = Connection::connect(Instant::now(), plain, Settings::default()).unwrap();
    let (other_end, _) = listener.accept().unwrap();
    await_event(&mut connection);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Link(_))));
    drop(other_end);
    assert!(matches!(await_event(&mut connection), Event::IdleDirectLost(_)));
    exchange(&mut connection, b"helped");
    serve(listener, support::echo_plain);
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(_))));
    exchange(&mut connection, b"direct");
}

#[test]
fn a_reply_that_comes_after_the_move_makes_the_direct_connection_useless() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start("127.0.0.1", Limits::default());
    let plain = listener.local_addr().unwrap();
    let mut connection = Connection::connect(Instant::now(), plain, Settings::default()).unwrap();
    let (mut other_end, _) = listener.accept().unwrap();
    await_event(&mut connection);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    other_end.write_all(b"too late").unwrap();
    let Event::IdleDirectLost(error) = await_event(&mut connection) else { panic!("it is lost") };
    assert!(error.to_string().contains("not all replies had been awaited"), "{error}");
}

#[test]
fn the_direct_connection_is_not_kept_when_not_wanted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start("127.0.0.1", Limits::default());
    let settings = Settings { keep_direct: false, ..Settings::default() };
    let mut connection =
        Connection::connect(Instant::now(), listener.local_addr().unwrap(), settings).unwrap();
    let (mut other_end, _) = listener.accept().unwrap();
    await_event(&mut connection);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    assert_eq!(other_end.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn without_a_server_there_is_no_way_to_direct() {
    let server = Server::start("127.0.0.1", Limits::default());
    let now = Instant::now();
    let mut connection = Connection::pm_connect(now, &server.target(), None, Settings::default()).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    assert!(matches!(connection.begin_move(now, Route::Direct), Err(MoveError::NoServer)));
    exchange(&mut connection, b"helped");
}

#[test]
fn a_link_that_closes_is_an_error_and_direct_is_still_there() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct(&server);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    exchange(&mut connection, b"helped");
    connection.send(support::DIE).unwrap();
    await_readable(&mut connection);
    let error = connection.receive(&mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(connection.send(b"x").is_err());
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(_))));
    exchange(&mut connection, b"direct");
}

#[test]
fn an_end_that_came_with_the_last_bytes_is_told() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = helped(&server, Settings::default());
    connection.send(b"last words").unwrap();
    connection.finish().unwrap();
    assert_eq!(connection.send(b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let (mut reply, mut buffer) = (Vec::new(), [0; 64]);
    loop {
        await_readable(&mut connection);
        match connection.receive(&mut buffer).unwrap() {
            0 => break,
            received => reply.extend_from_slice(&buffer[..received]),
        }
    }
    assert_eq!(reply, b"last words");
}

#[test]
fn a_carrier_that_does_not_answer_is_given_up_and_direct_is_there_at_once() {
    let server = Server::start("127.0.0.1", Limits { window_bytes: 100, ..Limits::default() });
    let mut connection = direct(&server);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    connection.send(b"whose reply nobody will await").unwrap();
    connection.abandon();
    assert_eq!(connection.carrier(), None);
    assert_eq!(connection.send(b"x").unwrap_err().kind(), io::ErrorKind::NotConnected);
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Direct(_)))));
    exchange(&mut connection, b"direct");
}

#[test]
fn room_is_told_when_credit_comes_alone() {
    let server = Server::start_sink(Limits { window_bytes: 100, ..Limits::default() });
    let mut connection = helped(&server, Settings::default());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    while sent < 3000 {
        match connection.send(&[7; 130]) {
            Ok(taken) => sent += taken,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        while !matches!(connection.poll_event(), Some(Event::Room)) {
            // As a loop does: it receives when it is told to.
            if turn(&mut connection, deadline) {
                assert!(
                    connection.receive(&mut [0; 64]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
                );
            }
        }
    }
}
