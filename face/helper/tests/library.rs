//! Library clients through a helper's link port, and moves between it and the server's ordinary port.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use spillway_auth::Key;
use spillway_batch::RefuseReason;
use spillway_client::blocking::Client;
use spillway_client::{Carrier, LinkTarget, MoveError, Route, Settings};
use spillway_helper::{Helper, HelperConfig, HelperStatus, Service};
use support::{EchoServer, client_key, helper_key, wait};

fn start(server: SocketAddr, threads: usize) -> (Helper, LinkTarget) {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut service = Service::new("cache", server);
    service.link_listen.push(any);
    service.keys = vec![helper_key()];
    service.client_keys = vec![client_key()];
    let config = HelperConfig { threads, ..HelperConfig::new(vec![service]) };
    let helper = Helper::start(config).expect("a helper");
    wait("the links", || helper.status().services[0].threads_listening == threads);
    let address = helper.status().services[0].link_listen[0];
    (helper, LinkTarget { address, key: client_key(), server: None })
}

fn round_trip(client: &mut Client, seed: usize, length: usize) {
    let request: Vec<u8> = (0..length).map(|i| ((i * 7 + seed) % 251) as u8).collect();
    client.write_all(&request).expect("a live connection");
    let mut reply = vec![0; length];
    client.read_exact(&mut reply).expect("an answer");
    assert_eq!(reply, request);
}

/// The server's ordinary port.
fn plain_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reading = stream.try_clone().expect("a descriptor");
                // Ends with its client.
                let _ = std::io::copy(&mut reading, &mut stream);
            });
        }
    });
    address
}

#[test]
fn many_clients_through_one_helper() {
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 2);
    let connect = |_| Client::pm_connect(&target, None, Settings::default()).expect("accepted");
    let mut clients: Vec<Client> = (0..100).map(connect).collect();
    for round in 0..10 {
        for (index, client) in clients.iter_mut().enumerate() {
            round_trip(client, index, 1 + round * 211);
        }
    }
    let status: HelperStatus = helper.status();
    assert_eq!((status.services[0].library_clients, status.services[0].raw_clients), (100, 0));
    assert_eq!(status.services[0].library_connections_taken, 100);
    drop(clients);
    wait("no client left", || helper.status().clients == 0);
    wait("no virtual connection left", || server.connections() == 0);
}

#[test]
fn there_and_back_again() {
    let (server, plain) = (EchoServer::start(), plain_echo());
    let (helper, target) = start(server.address, 1);
    let mut client = Client::connect(plain, Settings::default()).expect("the ordinary port");
    for round in 0..10 {
        round_trip(&mut client, round, 5000);
        client.move_to(Route::Link(&target)).expect("accepted");
        assert_eq!(client.carrier(), Some(Carrier::Link(target.address)));
        round_trip(&mut client, round, 5000);
        client.move_to(Route::Direct).expect("it is still there");
    }
    drop(client);
    wait("no client left", || helper.status().clients == 0);
}

#[test]
fn those_who_may_not_are_told_and_others_do_not_notice() {
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 1);
    let connect = |target: &LinkTarget| Client::pm_connect(target, None, Settings::default());
    let mut good = connect(&target).expect("accepted");
    let refused = |reason| helper.status().services[0].refused.of(reason);
    for (count, key) in [(1, Key::from_secret([9; 32])), (2, helper_key())] {
        let error = connect(&LinkTarget { key, ..target.clone() }).expect_err("a wrong key");
        assert!(matches!(error, MoveError::Link(_) | MoveError::Closed), "{error}");
        wait("the refusal counted", || refused("handshake") == count);
        round_trip(&mut good, 1, 100);
    }
    let elsewhere = LinkTarget { server: Some("192.0.2.1:1".parse().expect("an address")), ..target.clone() };
    let error = connect(&elsewhere).expect_err("another server");
    assert!(matches!(error, MoveError::Refused(RefuseReason::UnknownServer)), "{error}");
    wait("the refusal counted", || refused("other_server") == 1);
    round_trip(&mut good, 2, 100);

    // The server goes: clients are told, new ones refused by the host.
    drop(server);
    let end = good.read(&mut [0; 1]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    wait("the link down", || helper.status().services[0].threads_listening == 0);
    let refused = TcpStream::connect(target.address).expect_err("no link is up");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Strangers without a key hold silent connections to the helper's link port, and open new ones for those that end.
#[test]
fn strangers_who_hold_connections_keep_nobody_away() {
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 1);
    let mut kept = Client::pm_connect(&target, None, Settings::default()).expect("accepted");
    for sources in [1, 300] {
        let strangers = spillway_ports::Strangers::hold(target.address, 300, sources);
        for round in 0..20 {
            let mut client = Client::pm_connect(&target, None, Settings::default()).expect("accepted");
            round_trip(&mut client, round, 100);
            round_trip(&mut kept, round, 100);
        }
        assert!(strangers.opened() >= 300);
    }
    let status: HelperStatus = helper.status();
    let crowded = status.services[0].refused.by_reason.get("crowded").copied();
    assert!(crowded.is_some_and(|count| count > 0), "{crowded:?}");
}
