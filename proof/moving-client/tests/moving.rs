//! Edge cases of moves: refusals, failures, and carriers that end during a move. Tests pass times instead of waiting.

mod support;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use spillway_batch::Limits;
use spillway_moving_client::{Carrier, Connection, Event, LinkTarget, MoveError, Route, Settings};
use support::{Server, await_event, await_readable, exchange, serve, turn};

fn direct_connection(server: &Server) -> Connection {
    let mut connection = Connection::connect(Instant::now(), server.plain_port, Settings::default()).unwrap();
    assert!(
        matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(to)) if to == server.plain_port)
    );
    connection
}

fn helped_connection(server: &Server, settings: Settings) -> Connection {
    let mut connection =
        Connection::connect_through_link(Instant::now(), &server.target(), Some(server.plain_port), settings)
            .unwrap();
    assert!(
        matches!(await_event(&mut connection), Event::Moved(Carrier::Link(to)) if to == server.link_port)
    );
    connection
}

#[test]
fn old_carrier_stays_in_use_until_a_prepared_move_completes() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct_connection(&server);
    for round in 0..5 {
        connection.prepare_move(Instant::now(), Route::Link(&server.target())).unwrap();
        exchange(&mut connection, b"while it is prepared");
        assert!(matches!(await_event(&mut connection), Event::Prepared(Carrier::Link(_))), "{round}");
        exchange(&mut connection, b"once it is prepared");
        assert_eq!(connection.carrier(), Some(Carrier::Direct(server.plain_port)));
        connection.complete_move().unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Link(_)))));
        exchange(&mut connection, b"helped");
        connection.prepare_move(Instant::now(), Route::Direct).unwrap();
        assert!(
            matches!(connection.poll_event(), Some(Event::Prepared(Carrier::Direct(_)))),
            "the kept direct connection should be ready at once"
        );
        exchange(&mut connection, b"still helped");
        connection.complete_move().unwrap();
        assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Direct(_)))));
        exchange(&mut connection, b"direct");
    }
}

#[test]
fn cancelled_move_leaves_the_carrier_in_use() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct_connection(&server);
    assert!(matches!(connection.complete_move(), Err(MoveError::NotPrepared)));
    connection.prepare_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(connection.begin_move(Instant::now(), Route::Direct), Err(MoveError::Moving)));
    connection.cancel_move();
    assert!(matches!(connection.complete_move(), Err(MoveError::NotPrepared)));
    exchange(&mut connection, b"direct");
    assert!(matches!(connection.begin_move(Instant::now(), Route::Direct), Err(MoveError::SameCarrier)));
}

#[test]
fn move_is_refused_while_replies_are_unread() {
    let server = Server::start("127.0.0.1", Limits::default());
    let target = server.target();
    for mut connection in [direct_connection(&server), helped_connection(&server, Settings::default())] {
        let route = match connection.carrier() {
            Some(Carrier::Direct(_)) => Route::Link(&target),
            _ => Route::Direct,
        };
        connection.send(b"a request").unwrap();
        await_readable(&mut connection);
        assert!(matches!(connection.begin_move(Instant::now(), route), Err(MoveError::Unread)));
        // The refused move loses no bytes.
        let mut reply = [0; 64];
        let received = connection.receive(&mut reply).unwrap();
        assert_eq!(&reply[..received], b"a request");
        connection.begin_move(Instant::now(), route).unwrap();
        assert!(matches!(await_event(&mut connection), Event::Moved(_)));
        exchange(&mut connection, b"moved");
    }
}

#[test]
fn prepared_move_completes_only_after_replies_are_read() {
    let server = Server::start("127.0.0.1", Limits::default());
    // A port that never answers keeps the move in progress.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LinkTarget { address: silent.local_addr().unwrap(), ..server.target() };
    let mut connection = direct_connection(&server);
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
    assert_eq!(
        connection.send(b"x").unwrap_err().kind(),
        io::ErrorKind::WouldBlock,
        "`send` should return `WouldBlock` during a move"
    );
    connection.cancel_move();
    exchange(&mut connection, b"the move is cancelled");
}

#[test]
fn move_times_out_and_the_old_carrier_stays_in_use() {
    let server = Server::start("127.0.0.1", Limits::default());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LinkTarget { address: silent.local_addr().unwrap(), ..server.target() };
    let mut connection = direct_connection(&server);
    assert_eq!(connection.poll_timeout(), None);
    let now = Instant::now();
    connection.begin_move(now, Route::Link(&target)).unwrap();
    let first = connection.poll_timeout().expect("a move in progress should have a deadline");
    connection.handle_timeout(first - Duration::from_nanos(1));
    assert!(connection.is_moving());
    // The connect timeout or the accept timeout ends the move.
    while let Some(deadline) = connection.poll_timeout() {
        connection.handle_timeout(deadline);
    }
    let Some(Event::MoveFailed { to: Carrier::Link(to), why }) = connection.poll_event() else {
        panic!("the timeout should end the move with `MoveFailed`");
    };
    assert_eq!(to, target.address);
    assert!(matches!(why, MoveError::ConnectTimeout(_) | MoveError::AcceptTimeout(_)), "{why}");
    exchange(&mut connection, b"direct");
}

#[test]
fn move_back_after_the_loss_of_the_idle_direct_connection_opens_a_new_one() {
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
fn reply_after_the_move_ends_the_idle_direct_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start("127.0.0.1", Limits::default());
    let plain = listener.local_addr().unwrap();
    let mut connection = Connection::connect(Instant::now(), plain, Settings::default()).unwrap();
    let (mut other_end, _) = listener.accept().unwrap();
    await_event(&mut connection);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    other_end.write_all(b"too late").unwrap();
    let Event::IdleDirectLost(error) = await_event(&mut connection) else {
        panic!("the late reply should cause `IdleDirectLost`")
    };
    assert!(error.to_string().contains("receive all expected replies before a move"), "{error}");
}

#[test]
fn direct_connection_is_closed_without_keep_direct() {
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
fn move_to_direct_without_a_server_is_refused() {
    let server = Server::start("127.0.0.1", Limits::default());
    let now = Instant::now();
    let mut connection =
        Connection::connect_through_link(now, &server.target(), None, Settings::default()).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    assert!(matches!(connection.begin_move(now, Route::Direct), Err(MoveError::NoServer)));
    exchange(&mut connection, b"helped");
}

#[test]
fn connection_moves_to_direct_after_its_link_was_closed() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = direct_connection(&server);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    exchange(&mut connection, b"helped");
    connection.send(support::CLOSE_LINK).unwrap();
    await_readable(&mut connection);
    let error = connection.receive(&mut [0; 64]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(connection.send(b"x").is_err());
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(_))));
    exchange(&mut connection, b"direct");
}

#[test]
fn end_that_arrives_with_the_last_bytes_is_returned_after_them() {
    let server = Server::start("127.0.0.1", Limits::default());
    let mut connection = helped_connection(&server, Settings::default());
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
fn move_to_the_kept_direct_connection_after_a_discard_is_immediate() {
    let server = Server::start("127.0.0.1", Limits { window_bytes: 100, ..Limits::default() });
    let mut connection = direct_connection(&server);
    connection.begin_move(Instant::now(), Route::Link(&server.target())).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(_)));
    connection.send(b"a request without a reply").unwrap();
    connection.discard_carrier();
    assert_eq!(connection.carrier(), None);
    assert_eq!(connection.send(b"x").unwrap_err().kind(), io::ErrorKind::NotConnected);
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Moved(Carrier::Direct(_)))));
    exchange(&mut connection, b"direct");
}

#[test]
fn credit_without_data_causes_a_room_event() {
    let server = Server::start_sink(Limits { window_bytes: 100, ..Limits::default() });
    let mut connection = helped_connection(&server, Settings::default());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    while sent < 3000 {
        match connection.send(&[7; 130]) {
            Ok(accepted) => sent += accepted,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        while !matches!(connection.poll_event(), Some(Event::Room)) {
            // As an event loop does, receive when `handle_ready` returns true.
            if turn(&mut connection, deadline) {
                assert!(
                    connection
                        .receive(&mut [0; 64])
                        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
                );
            }
        }
    }
}

#[test]
fn finished_connection_cannot_move_until_its_carrier_is_discarded() {
    let server = Server::start("127.0.0.1", Limits::default());
    let target = server.target();
    for mut connection in [direct_connection(&server), helped_connection(&server, Settings::default())] {
        let route = match connection.carrier() {
            Some(Carrier::Direct(_)) => Route::Link(&target),
            _ => Route::Direct,
        };
        connection.prepare_move(Instant::now(), route).unwrap();
        while !matches!(connection.poll_event(), Some(Event::Prepared(_))) {
            turn(&mut connection, Instant::now() + Duration::from_secs(60));
        }
        connection.finish().unwrap();
        assert!(matches!(connection.complete_move(), Err(MoveError::Finished)));
        connection.cancel_move();
        assert!(matches!(connection.begin_move(Instant::now(), route), Err(MoveError::Finished)));
        connection.discard_carrier();
        connection.begin_move(Instant::now(), route).unwrap();
        assert!(matches!(await_event(&mut connection), Event::Moved(_)));
        exchange(&mut connection, b"a new stream");
    }
}

/// The server ends its stream of replies, and reads on.
#[test]
fn requests_get_credit_after_the_server_has_finished() {
    let server = Server::start_sink(Limits { window_bytes: 100, ..Limits::default() });
    let mut connection = helped_connection(&server, Settings::default());
    connection.send(support::FINISH_REPLIES).unwrap();
    await_readable(&mut connection);
    assert_eq!(connection.receive(&mut [0; 64]).unwrap(), 0);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    while sent < 3000 {
        match connection.send(&[7; 130]) {
            Ok(accepted) => sent += accepted,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        while !matches!(connection.poll_event(), Some(Event::Room)) {
            if turn(&mut connection, deadline) {
                assert_eq!(connection.receive(&mut [0; 64]).unwrap(), 0);
            }
        }
    }
}
