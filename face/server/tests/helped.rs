//! Moving clients, helper and echo server together.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use spillway_batch::{RefuseReason, Role};
use spillway_client::Key;
use spillway_moving_client::blocking::Client;
use spillway_moving_client::{
    Carrier, Connection, Event, LinkTarget, MoveError, Route, Settings, split_token,
};
use support::helper::TestHelper;
use support::raw::{LinkEvent, RawLink, assert_closes};
use support::swarm::Swarm;
use support::{Echo, Keys, round_trip};

fn helped(helper: &TestHelper, keys: &Keys, echo: &Echo) -> Client {
    Client::connect_through_link(&helper.target(keys), Some(echo.plain_port), Settings::default()).unwrap()
}

#[test]
fn connections_move_under_traffic_without_lost_or_altered_bytes() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let (first, second) =
        (TestHelper::start(&keys, echo.link_port), TestHelper::start(&keys, echo.link_port));
    // Routes: the plain port, two helpers, and the server's link port.
    let routes = vec![None, Some(first.target(&keys)), Some(second.target(&keys)), Some(echo.target(&keys))];
    let mut swarm = Swarm::new(echo.plain_port, 120, 60, routes);
    let moves = swarm.run();
    assert!(
        moves > 120 * 8,
        "each of the 120 connections should move more than 8 times, but {moves} moves were made"
    );
    drop(swarm);
    first.await_condition("the end of all clients", || first.library_clients() == 0);
    second.await_condition("the end of all clients", || second.library_clients() == 0);
}

#[test]
fn connections_move_to_a_helper_and_back_over_ipv6() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "[::1]");
    let helper = TestHelper::start(&keys, echo.link_port);
    let routes = vec![None, Some(helper.target(&keys))];
    assert!(Swarm::new(echo.plain_port, 10, 40, routes).run() > 50);
}

#[test]
fn plain_clients_of_the_helper_and_library_clients_share_a_link() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut plain: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(helper.plain_port).unwrap()).collect();
    let mut library: Vec<Client> = (0..20).map(|_| helped(&helper, &keys, &echo)).collect();
    for round in 0..20 {
        plain.iter_mut().for_each(|client| round_trip(client, 1 + round * 50, round));
        library.iter_mut().for_each(|client| round_trip(client, 1 + round * 50, round));
    }
    for client in &mut library {
        client.write_all(b"last words").unwrap();
        client.finish().unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, b"last words");
    }
}

#[test]
fn unknown_keys_and_keys_of_another_role_are_refused() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut bystander = helped(&helper, &keys, &echo);
    for key in [Key::from_secret([9; 32]), keys.helper.clone()] {
        let target = LinkTarget { key, ..helper.target(&keys) };
        let error = Client::connect_through_link(&target, None, Settings::default()).unwrap_err();
        assert!(error.to_string().contains("does not accept our key"), "{error}");
    }
    // The link port rejects a helper with a client's key, so that helper accepts no clients.
    let wrong_role = RawLink::open(echo.link_port, Role::Helper, keys.client.clone()).next_event();
    assert!(
        matches!(&wrong_role, LinkEvent::Broken(error) if error.to_string().contains("key")),
        "{wrong_role:?}"
    );
    let wrong_role = TestHelper::start_with(keys.client.clone(), &keys, echo.link_port);
    let error =
        Client::connect_through_link(&wrong_role.target(&keys), None, Settings::default()).unwrap_err();
    match &error {
        MoveError::System(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        MoveError::Refused(reason) => assert_eq!(*reason, RefuseReason::Unavailable),
        other => panic!("{other}"),
    }
    round_trip(&mut bystander, 1000, 1);
}

#[test]
fn forged_addresses_are_refused() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut bystander = helped(&helper, &keys, &echo);
    for port in [echo.link_port, helper.link_port] {
        let mut link = RawLink::establish(port, Role::Client, keys.client.clone());
        for forged in ["10.1.2.3:4", "127.0.0.1:9", "8.8.8.8:53"] {
            let id = link.end.open(forged.parse().unwrap(), None).unwrap();
            link.end.compose(id, b"never delivered");
            link.flush();
            assert_eq!(link.next_event(), LinkEvent::Refused(id, RefuseReason::Forbidden), "{forged}");
        }
        // The client's own address is accepted on the same link.
        let local = link.stream.local_addr().unwrap();
        let id = link.end.open(local, None).unwrap();
        link.flush();
        assert_eq!(link.next_event(), LinkEvent::Accepted(id));
        link.end.compose(id, b"delivered");
        link.flush();
        assert_eq!(link.next_event(), LinkEvent::Data(id, b"delivered".to_vec()));
    }
    // A helper may carry addresses of private networks, but not all addresses.
    let mut link = RawLink::establish(echo.link_port, Role::Helper, keys.helper.clone());
    let id = link.end.open("8.8.8.8:53".parse().unwrap(), None).unwrap();
    link.flush();
    assert_eq!(link.next_event(), LinkEvent::Refused(id, RefuseReason::Forbidden));
    round_trip(&mut bystander, 1000, 1);
}

#[test]
fn truncated_preambles_and_garbage_do_not_disturb_others() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut bystander = helped(&helper, &keys, &echo);
    let mut neighbour = Client::connect_through_link(&echo.target(&keys), None, Settings::default()).unwrap();
    for port in [echo.link_port, helper.link_port] {
        // Bytes that are not a preamble, short and long.
        for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 10_000], vec![0xff; 10_000]] {
            let mut stream = TcpStream::connect(port).unwrap();
            let _ = stream.write_all(&garbage);
            assert_closes(stream);
        }
        // The beginning of a preamble, and then FIN.
        let mut stream = TcpStream::connect(port).unwrap();
        stream.write_all(b"\xf5SPILLWY\x01").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_closes(stream);
        // The beginning of a preamble, and then silence: the link stays until its timeout and blocks no other.
        let mut silent = TcpStream::connect(port).unwrap();
        silent.write_all(b"\xf5SPILL").unwrap();
        // A complete preamble, and then garbage.
        let mut link = RawLink::establish(port, Role::Client, keys.client.clone());
        link.stream.write_all(&[0xff; 1000]).unwrap();
        assert_eq!(link.next_event(), LinkEvent::End);
        round_trip(&mut bystander, 3000, 1);
        round_trip(&mut neighbour, 3000, 1);
        drop(silent);
    }
    // A plain port accepts any bytes as requests.
    let mut plain = TcpStream::connect(helper.plain_port).unwrap();
    round_trip(&mut plain, 1000, 2);
}

#[test]
fn links_cut_within_a_message_do_not_disturb_others() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut bystander = helped(&helper, &keys, &echo);
    let before = helper.library_clients();
    for port in [echo.link_port, helper.link_port] {
        for cut in [1, 6, 7, 8, 500, 1006] {
            let mut link = RawLink::establish(port, Role::Client, keys.client.clone());
            let local = link.stream.local_addr().unwrap();
            let id = link.end.open(local, None).unwrap();
            link.flush();
            assert_eq!(link.next_event(), LinkEvent::Accepted(id));
            link.end.compose(id, &[7; 1000]);
            let batch = link.end.flush(spillway_transport::Time::ZERO).unwrap();
            link.stream.write_all(&batch.as_slice()[..cut]).unwrap();
            drop(link);
            round_trip(&mut bystander, 1000, cut);
        }
    }
    helper.await_condition("the end of the cut links", || helper.library_clients() == before);
    round_trip(&mut bystander, 1000, 1);
}

#[test]
fn move_to_a_helper_without_a_link_fails_and_the_direct_carrier_stays() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    // No process listens at the server's address.
    let unused = spillway_ports::free_address();
    let helper = TestHelper::start_with(keys.helper.clone(), &keys, unused);
    let mut client = Client::connect(echo.plain_port, Settings::default()).unwrap();
    let error = client.move_to(Route::Link(&helper.target(&keys))).unwrap_err();
    // The move fails at once, without a timeout.
    match &error {
        MoveError::System(error) => assert_eq!(error.kind(), ErrorKind::ConnectionRefused),
        MoveError::Refused(reason) => assert_eq!(*reason, RefuseReason::Unavailable),
        other => panic!("{other}"),
    }
    assert_eq!(client.carrier(), Some(Carrier::Direct(echo.plain_port)));
    round_trip(&mut client, 1000, 1);
}

#[test]
fn server_restart_closes_connections_and_clients_return() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let (plain, link) = (echo.plain_port, echo.link_port);
    let mut client = Client::connect(plain, Settings::default()).unwrap();
    round_trip(&mut client, 100, 1);
    client.move_to(Route::Link(&helper.target(&keys))).unwrap();
    round_trip(&mut client, 100, 2);
    drop(echo);
    match client.read(&mut [0; 100]) {
        Ok(received) => assert_eq!(received, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    helper.await_links(0);
    assert!(client.move_to(Route::Direct).is_err(), "a move to a stopped server should fail");
    let _echo = Echo::start_on(&keys, &plain.to_string(), &link.to_string());
    helper.await_links(1);
    client.move_to(Route::Direct).unwrap();
    round_trip(&mut client, 100, 3);
    // The helper may begin to listen again a short time after its link is up.
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = client.move_to(Route::Link(&helper.target(&keys))) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(2));
    }
    round_trip(&mut client, 100, 4);
}

#[test]
fn client_moves_to_the_server_after_its_helper_stops() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut client = Client::connect(echo.plain_port, Settings::default()).unwrap();
    client.move_to(Route::Link(&helper.target(&keys))).unwrap();
    round_trip(&mut client, 100, 1);
    helper.stop();
    match client.read(&mut [0; 100]) {
        Ok(received) => assert_eq!(received, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    client.move_to(Route::Direct).unwrap();
    round_trip(&mut client, 100, 2);
}

#[test]
fn draining_helper_reports_drain_and_ends_after_its_clients_move() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let helper = TestHelper::start(&keys, echo.link_port);
    let mut connection = Connection::connect(Instant::now(), echo.plain_port, Settings::default()).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(_))));
    connection.begin_move(Instant::now(), Route::Link(&helper.target(&keys))).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Link(_))));
    helper.drain(Duration::from_secs(60));
    assert!(matches!(await_event(&mut connection), Event::Drain { .. }));
    connection.begin_move(Instant::now(), Route::Direct).unwrap();
    assert!(matches!(await_event(&mut connection), Event::Moved(Carrier::Direct(_))));
    helper.await_condition("the end of the helper", || helper.is_drained());
}

fn await_event(connection: &mut Connection) -> Event {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let mut buffer = [0; 4096];
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(event) = connection.poll_event() {
            return event;
        }
        assert!(Instant::now() < deadline, "an event should occur within 60 s");
        for watch in connection.sockets() {
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, watch.readable);
            flags.set(EventFlags::OUT, watch.writable);
            let data = EventData::new_u64(watch.slot as u64);
            let modified = epoll::modify(&epoll, watch.stream, data, flags);
            modified.or_else(|_| epoll::add(&epoll, watch.stream, data, flags)).unwrap();
        }
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 4];
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&epoll, &mut space, Some(&timeout)) else { continue };
        for event in events {
            let (_, slot) = split_token(event.data.u64()).unwrap();
            if connection.handle_ready(Instant::now(), slot, event.flags.into()) {
                assert_eq!(connection.receive(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        }
    }
}
