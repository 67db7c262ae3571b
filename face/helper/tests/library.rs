//! Library clients through a helper's link port, and moves between it and the server's ordinary port.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_auth::Key;
use spillway_batch::{
    Connect, Control, Encryption, Fresh, Id, Limits, OpenerConfig, OpenerLink, PolicyKind, RefuseReason,
    Role, Scratch,
};
use spillway_helper::{Helper, HelperConfig, HelperStatus, Service};
use spillway_moving_client::blocking::Client;
use spillway_moving_client::{Carrier, LinkTarget, MoveError, Route, Settings};
use spillway_transport::Time;
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
    (helper, LinkTarget { address, key: client_key(), server: None, encryption: Default::default() })
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
    let (_helper, target) = start(server.address, 1);
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
}

/// An authenticated client of the helper's link port, in the hands of somebody who writes whatever frames.
fn rude_link(target: &LinkTarget) -> TcpStream {
    let mut stream = TcpStream::connect(target.address).expect("the helper listens");
    let config = OpenerConfig {
        role: Role::Client,
        key: target.key.clone(),
        limits: Limits::default(),
        policy: PolicyKind::Fixed { delay: std::time::Duration::ZERO, bytes: 0 },
        // The test writes frames itself.
        encryption: Encryption::Off,
    };
    let mut link = OpenerLink::new(&config, Time::ZERO, Fresh::from_random([9; Fresh::BYTES]));
    let mut buffer = [0; 4096];
    while !link.is_established() {
        while let Some(batch) = link.flush(Time::ZERO) {
            stream.write_all(batch.as_slice()).expect("a hello");
        }
        let received = stream.read(&mut buffer).expect("a welcome");
        assert!(received > 0, "the helper closed");
        let mut scratch = Scratch::new();
        let mut input = link.unseal(Time::ZERO, &buffer[..received], &mut scratch);
        link.decompose(Time::ZERO, &mut input).expect("a welcome");
    }
    while let Some(batch) = link.flush(Time::ZERO) {
        stream.write_all(batch.as_slice()).expect("a proof");
    }
    stream
}

/// One client asks for connections which are refused, for ever, and does not read the answers: it is not read any more,
/// what waits for it is bounded, and all requests of others succeed.
#[test]
fn refusals_that_nobody_reads_stop_their_client_only() {
    const ENOUGH: usize = 64 << 20;
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 1);
    let mut kept = Client::pm_connect(&target, None, Settings::default()).expect("accepted");
    let mut rude = rude_link(&target);
    rude.set_nonblocking(true).expect("a socket");
    let elsewhere =
        Connect { client: "10.1.1.1:1".parse().expect("an address"), server: None, credit: 0, session: None };
    let mut batch = Vec::new();
    (0..1000).for_each(|_| Control::Connect(elsewhere).emit(Id(1), &mut batch));
    let (mut sent, mut stuck, mut round) = (0, 0, 0);
    // Stuck: the helper serves others, and takes nothing of this.
    while stuck < 200 && sent < ENOUGH {
        match rude.write(&batch[sent % batch.len()..]) {
            Ok(written) => (sent, stuck) = (sent + written, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stuck += 1;
                round += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
                round_trip(&mut kept, round, 100);
            }
        }
    }
    assert!(sent < ENOUGH, "it is read for ever");
    let status: HelperStatus = helper.status();
    assert!(status.buffered_bytes < 1 << 20, "{}", status.buffered_bytes);
    // It reads now, and is read again.
    rude.set_nonblocking(false).expect("a socket");
    let mut reader = rude.try_clone().expect("a descriptor");
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    rude.write_all(&batch[sent % batch.len()..]).expect("it goes on");
    // Slowly, for none of it is data.
    for _ in 0..2 {
        rude.write_all(&batch).expect("it goes on");
    }
    drop(helper);
    let _ = reading.join();
}

/// One client repeats its credit for ever: the server hears of it once in a batch, and all requests of others succeed.
#[test]
fn a_flood_of_credit_keeps_nobody_away() {
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 1);
    let mut kept = Client::pm_connect(&target, None, Settings::default()).expect("accepted");
    let mut rude = rude_link(&target);
    let client = rude.local_addr().expect("an address");
    let mut first = Vec::new();
    Control::Connect(Connect { client, server: None, credit: 1000, session: None }).emit(Id(1), &mut first);
    rude.write_all(&first).expect("a connection");
    let mut batch = Vec::new();
    (0..1000).for_each(|step| Control::Credit(2000 + step).emit(Id(1), &mut batch));
    let bytes_sent = || helper.status().services[0].bytes_sent;
    let before = bytes_sent();
    rude.set_nonblocking(true).expect("a socket");
    let over = Arc::new(AtomicBool::new(false));
    let flood = std::thread::spawn({
        let over = over.clone();
        move || {
            let mut flooded = 0;
            while !over.load(Ordering::Relaxed) {
                match rude.write(&batch[flooded % batch.len()..]) {
                    Ok(written) => flooded += written,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            flooded
        }
    });
    const ROUNDS: usize = 5_000;
    (0..ROUNDS).for_each(|round| round_trip(&mut kept, round, 100));
    over.store(true, Ordering::Relaxed);
    let flooded = flood.join().expect("its link is not closed");
    let sent = bytes_sent() - before;
    // A request takes 141 bytes with its headers.
    let of_requests = ROUNDS as u64 * 160;
    assert!(sent < of_requests + (1 << 18), "{sent} bytes are sent, and {flooded} came of the flood");
}
