//! Library clients at a helper's link port, and their moves between that port and the server's ordinary port.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_auth::Key;
use spillway_batch::{
    Connect, Control, Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerLink, PolicyKind,
    RefuseReason, Role, Scratch,
};
use spillway_helper::{Helper, HelperConfig, HelperStatus, Service};
use spillway_moving_client::blocking::Client;
use spillway_moving_client::{Carrier, LinkTarget, MoveError, Route, Settings};
use spillway_transport::Time;
use support::{Place, client_key, helper_key, on_each_engine, wait};

on_each_engine! {
    hundred_library_clients_are_served_by_one_helper,
    a_client_moves_to_the_helper_and_back,
    refused_clients_get_an_error_and_do_not_affect_others,
    silent_peers_without_a_key_do_not_block_clients,
    client_that_does_not_read_refusals_is_no_longer_read,
    a_flood_of_credit_does_not_block_clients,
}

fn start(place: &Place, server: SocketAddr, threads: usize) -> (Helper, LinkTarget) {
    let mut service = Service::new("cache", server);
    service.link_listen.push(place.listen());
    service.keys = vec![helper_key()];
    service.client_keys = vec![client_key()];
    let config = HelperConfig { threads, ..HelperConfig::new(vec![service]) };
    let helper = place.start(config).unwrap();
    wait("the links", || helper.status().services[0].threads_listening == threads);
    let address = helper.status().services[0].link_listen[0];
    (helper, LinkTarget { address, key: client_key(), server: None, encryption: Default::default() })
}

fn round_trip(client: &mut Client, seed: usize, length: usize) {
    let request: Vec<u8> = (0..length).map(|i| ((i * 7 + seed) % 251) as u8).collect();
    client.write_all(&request).unwrap();
    let mut reply = vec![0; length];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, request);
}

/// Starts an echo server without Spillway, as the server's ordinary port.
fn start_ordinary_server(place: &Place) -> SocketAddr {
    let listener = TcpListener::bind(place.own()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reading = stream.try_clone().unwrap();
                // An error ends the copy in the same way as the end of the client's stream.
                let _ = std::io::copy(&mut reading, &mut stream);
            });
        }
    });
    address
}

fn hundred_library_clients_are_served_by_one_helper(place: &Place) {
    let server = place.echo_server();
    let (helper, target) = start(place, server.address, 2);
    let connect = |_| Client::connect_through_link(&target, None, Settings::default()).unwrap();
    let mut clients: Vec<Client> = (0..100).map(connect).collect();
    for round in 0..10 {
        for (index, client) in clients.iter_mut().enumerate() {
            round_trip(client, index, 1 + round * 211);
        }
    }
    let status: HelperStatus = helper.status();
    assert_eq!((status.services[0].library_clients, status.services[0].plain_clients), (100, 0));
    assert_eq!(status.services[0].library_connections_accepted, 100);
    drop(clients);
    wait("the last client to leave", || helper.status().clients == 0);
    wait("the last virtual connection to end", || server.connections() == 0);
}

fn a_client_moves_to_the_helper_and_back(place: &Place) {
    let (server, ordinary_port) = (place.echo_server(), start_ordinary_server(place));
    let (helper, target) = start(place, server.address, 1);
    let mut client = Client::connect(ordinary_port, Settings::default()).unwrap();
    for round in 0..10 {
        round_trip(&mut client, round, 5000);
        client.move_to(Route::Link(&target)).unwrap();
        assert_eq!(client.carrier(), Some(Carrier::Link(target.address)));
        round_trip(&mut client, round, 5000);
        client.move_to(Route::Direct).expect("the ordinary port should still accept the client");
    }
    drop(client);
    wait("the last client to leave", || helper.status().clients == 0);
}

fn refused_clients_get_an_error_and_do_not_affect_others(place: &Place) {
    let server = place.echo_server();
    let (helper, target) = start(place, server.address, 1);
    let connect = |target: &LinkTarget| Client::connect_through_link(target, None, Settings::default());
    let mut accepted = connect(&target).unwrap();
    let refused = |reason| helper.status().services[0].refused.of(reason);
    for (count, key) in [(1, Key::from_secret([9; 32])), (2, helper_key())] {
        let error = connect(&LinkTarget { key, ..target.clone() }).unwrap_err();
        assert!(matches!(error, MoveError::Link(_) | MoveError::Closed), "{error}");
        wait("the refusal to be counted", || refused("handshake") == count);
        round_trip(&mut accepted, 1, 100);
    }
    let other_server = LinkTarget { server: Some("192.0.2.1:1".parse().unwrap()), ..target.clone() };
    let error = connect(&other_server).unwrap_err();
    assert!(matches!(error, MoveError::Refused(RefuseReason::UnknownServer)), "{error}");
    wait("the refusal to be counted", || refused("other_server") == 1);
    round_trip(&mut accepted, 2, 100);

    // The server ends: clients are disconnected, and new ones are refused.
    drop(server);
    let end = accepted.read(&mut [0; 1]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    wait("the loss of the link", || helper.status().services[0].threads_listening == 0);
    let refused = TcpStream::connect(target.address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

/// Peers without a key hold silent connections to the helper's link port, and reopen those that end.
fn silent_peers_without_a_key_do_not_block_clients(place: &Place) {
    let server = place.echo_server();
    let (_helper, target) = start(place, server.address, 1);
    let mut other_client = Client::connect_through_link(&target, None, Settings::default()).unwrap();
    for sources in [1, 300] {
        let silent_peers = spillway_ports::SilentPeers::hold(target.address, 300, sources);
        for round in 0..20 {
            let mut client = Client::connect_through_link(&target, None, Settings::default()).unwrap();
            round_trip(&mut client, round, 100);
            round_trip(&mut other_client, round, 100);
        }
        assert!(silent_peers.opened() >= 300);
    }
}

/// An authenticated link to the helper, on which the test can write any frames.
fn authenticated_link(target: &LinkTarget) -> TcpStream {
    let mut stream = TcpStream::connect(target.address).expect("connect to the helper");
    let config = OpenerConfig {
        role: Role::Client,
        key: target.key.clone(),
        limits: Limits::default(),
        policy: PolicyKind::Fixed { interval: std::time::Duration::ZERO, size_bytes: 0 },
        // Off, because the test writes the frames itself.
        encryption: Encryption::Off,
    };
    let mut link =
        OpenerLink::new(&config, Time::ZERO, LinkRandomness::from_random([9; LinkRandomness::BYTES]));
    let mut buffer = [0; 4096];
    while !link.is_established() {
        while let Some(batch) = link.flush(Time::ZERO) {
            stream.write_all(batch.as_slice()).unwrap();
        }
        let received = stream.read(&mut buffer).unwrap();
        assert!(received > 0, "the helper should not close the link");
        let mut scratch = Scratch::new();
        let mut input = link.unseal(Time::ZERO, &buffer[..received], &mut scratch);
        link.decompose(Time::ZERO, &mut input).unwrap();
    }
    while let Some(batch) = link.flush(Time::ZERO) {
        stream.write_all(batch.as_slice()).unwrap();
    }
    stream
}

/// A client that keeps requesting connections that are refused, and does not read the refusals, is no longer read. Its
/// waiting bytes are bounded, and all requests of other clients succeed.
fn client_that_does_not_read_refusals_is_no_longer_read(place: &Place) {
    const SENT_MAX: usize = 64 << 20;
    let server = place.echo_server();
    let (helper, target) = start(place, server.address, 1);
    let mut other_client = Client::connect_through_link(&target, None, Settings::default()).unwrap();
    let mut attacker = authenticated_link(&target);
    attacker.set_nonblocking(true).unwrap();
    let refused_connect =
        Connect { client: "10.1.1.1:1".parse().unwrap(), server: None, credit: 0, session: None };
    let mut batch = Vec::new();
    (0..1000).for_each(|_| Control::Connect(refused_connect).emit(Id(1), &mut batch));
    let (mut sent, mut blocked_rounds, mut round) = (0, 0, 0);
    // Ends after 200 rounds in which the helper served the other client, and read nothing from this one.
    while blocked_rounds < 200 && sent < SENT_MAX {
        match attacker.write(&batch[sent % batch.len()..]) {
            Ok(written) => (sent, blocked_rounds) = (sent + written, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                blocked_rounds += 1;
                round += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
                round_trip(&mut other_client, round, 100);
            }
        }
    }
    assert!(sent < SENT_MAX, "the helper should stop reading this client");
    let status: HelperStatus = helper.status();
    assert!(status.buffered_bytes < 1 << 20, "{}", status.buffered_bytes);
    // Once the client reads, the helper reads from it again.
    attacker.set_nonblocking(false).unwrap();
    let mut reader = attacker.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    attacker.write_all(&batch[sent % batch.len()..]).expect("the helper should read this client again");
    // Two batches only: the helper reads control messages at a limited rate.
    for _ in 0..2 {
        attacker.write_all(&batch).expect("the helper should read this client again");
    }
    drop(helper);
    let _ = reading.join();
}

/// A client sends credit endlessly. The helper forwards the credit only once in each batch, and all requests of other
/// clients succeed.
fn a_flood_of_credit_does_not_block_clients(place: &Place) {
    let server = place.echo_server();
    let (helper, target) = start(place, server.address, 1);
    let mut other_client = Client::connect_through_link(&target, None, Settings::default()).unwrap();
    let mut attacker = authenticated_link(&target);
    let client = attacker.local_addr().unwrap();
    let mut connect = Vec::new();
    Control::Connect(Connect { client, server: None, credit: 1000, session: None }).emit(Id(1), &mut connect);
    attacker.write_all(&connect).unwrap();
    let mut batch = Vec::new();
    (0..1000).for_each(|step| Control::Credit(2000 + step).emit(Id(1), &mut batch));
    let bytes_sent = || helper.status().services[0].bytes_sent;
    let before = bytes_sent();
    attacker.set_nonblocking(true).unwrap();
    let stop_flood = Arc::new(AtomicBool::new(false));
    let flood = std::thread::spawn({
        let stop_flood = stop_flood.clone();
        move || {
            let mut flooded = 0;
            while !stop_flood.load(Ordering::Relaxed) {
                match attacker.write(&batch[flooded % batch.len()..]) {
                    Ok(written) => flooded += written,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            flooded
        }
    });
    const ROUNDS: usize = 5_000;
    (0..ROUNDS).for_each(|round| round_trip(&mut other_client, round, 100));
    stop_flood.store(true, Ordering::Relaxed);
    let flooded = flood.join().expect("the flooded link should stay open");
    let sent = bytes_sent() - before;
    // A request has 141 bytes with its headers; 160 leaves a margin.
    let request_bytes = ROUNDS as u64 * 160;
    assert!(
        sent < request_bytes + (1 << 18),
        "the helper sent {sent} bytes to the server; the flood had {flooded} bytes"
    );
}
