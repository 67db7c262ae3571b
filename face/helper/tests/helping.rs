//! A helper in this process, between plain clients and an echo server.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use spillway_auth::Key;
use spillway_helper::{Helper, HelperConfig, HelperStatus, Service, StartError};
use support::{EchoServer, client_key, connect, echo, helper_key, is_served, wait};

fn service(server: SocketAddr) -> Service {
    let mut service = Service::new("cache", server);
    service.listen.push("127.0.0.1:0".parse().expect("an address"));
    service.keys = vec![helper_key()];
    service
}

fn start(service: Service, threads: usize) -> Helper {
    Helper::start(HelperConfig { threads, ..HelperConfig::new(vec![service]) }).expect("a helper")
}

fn port(helper: &Helper) -> SocketAddr {
    helper.status().services[0].listen[0]
}

fn links_up(helper: &Helper) -> usize {
    helper.status().services[0].links_that_are_up()
}

#[test]
fn carries_clients_of_several_threads() {
    let server = EchoServer::start();
    let helper = start(service(server.address), 2);
    wait("both links", || links_up(&helper) == 2);
    let mut clients: Vec<TcpStream> = (0..200).map(|_| connect(port(&helper))).collect();
    for round in 0..5 {
        for (index, client) in clients.iter_mut().enumerate() {
            echo(client, round * 1000 + index, 1 + index * 7);
        }
    }
    // Larger than any buffer on the way, from several clients at once.
    std::thread::scope(|scope| {
        for (index, client) in clients.iter_mut().take(8).enumerate() {
            let mut reading = client.try_clone().expect("a descriptor");
            scope.spawn(move || client.write_all(&vec![index as u8; 3 << 20]).expect("a live connection"));
            scope.spawn(move || {
                let mut back = vec![0; 3 << 20];
                reading.read_exact(&mut back).expect("an answer");
                assert!(back.iter().all(|byte| *byte == index as u8));
            });
        }
    });
    let status = helper.status();
    assert_eq!((status.clients, status.services[0].raw_clients), (200, 200));
    assert_eq!(status.services[0].refused.total, 0);
    assert!(status.services[0].links.iter().all(|link| link.connections > 0), "{status}");
    // An end is answered by an end, after the last byte.
    for client in &mut clients {
        client.write_all(b"last").expect("a live connection");
        client.shutdown(std::net::Shutdown::Write).expect("a live connection");
    }
    for mut client in clients {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).expect("an end");
        assert_eq!(rest, b"last");
    }
    wait("no client left", || helper.status().clients == 0);
    wait("no virtual connection left", || server.connections() == 0);
    helper.stop();
}

#[test]
fn refuses_clients_while_the_server_is_away_and_takes_them_again() {
    let server = EchoServer::start();
    let address = server.address;
    let helper = start(service(address), 2);
    let port = port(&helper);
    wait("both links", || links_up(&helper) == 2);
    let mut client = connect(port);
    echo(&mut client, 1, 100);
    drop(server);
    // The client is told, and new ones are refused by the host itself.
    let end = client.read(&mut [0; 1]);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    wait("both links down", || links_up(&helper) == 0);
    let refused = TcpStream::connect(port).expect_err("no link is up");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let status = helper.status();
    assert_eq!((status.services[0].threads_listening, status.services[0].clients_lost_with_link), (0, 1));
    let _server = EchoServer::start_at(address);
    wait("a client served again", || is_served(port));
    wait("both links", || links_up(&helper) == 2);
}

#[test]
fn a_wrong_key_keeps_clients_out_and_says_so() {
    let server = EchoServer::start();
    for key in [Key::from_secret([9; 32]), client_key()] {
        let helper = start(Service { keys: vec![key], ..service(server.address) }, 1);
        wait("an attempt", || helper.status().services[0].links[0].state == "waiting");
        let refused = TcpStream::connect(port(&helper)).expect_err("no link is up");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(helper.status().services[0].links_up, 0);
    }
}

#[test]
fn clients_that_misbehave_harm_nobody_else() {
    let server = EchoServer::start();
    let mut service = service(server.address);
    service.link_listen.push("127.0.0.1:0".parse().expect("an address"));
    service.client_keys = vec![client_key()];
    let helper = start(service, 1);
    let (port, link_port) = (port(&helper), helper.status().services[0].link_listen[0]);
    wait("the link", || links_up(&helper) == 1);
    let mut good = connect(port);

    // One that never reads: what it asked for is bounded on the way.
    let mut deaf = connect(port);
    deaf.set_nonblocking(true).expect("a socket");
    let (mut sent, mut idle) = (0_usize, 0);
    while idle < 100 {
        match deaf.write(&[7; 65536]) {
            Ok(length) => (sent, idle) = (sent + length, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                idle += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        assert!(sent < 256 << 20, "back-pressure reaches the client");
        echo(&mut good, idle, 50);
    }
    assert!(helper.status().buffered_bytes < 2 << 20, "{}", helper.status());

    // Some that are cut, in the middle of what they send.
    for round in 0..50 {
        let mut cut = connect(port);
        cut.write_all(&vec![3; 1 + round * 999]).expect("a live connection");
        rustix::net::sockopt::set_socket_linger(&cut, Some(Duration::ZERO)).expect("a socket");
        drop(cut);
        echo(&mut good, round, 70);
    }
    // Garbage, and half a greeting, where library clients come in.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4000], &[0xff; 1]] {
        let mut stranger = connect(link_port);
        stranger.write_all(garbage).expect("a live connection");
        stranger.shutdown(std::net::Shutdown::Write).expect("a live connection");
        let mut rest = Vec::new();
        // Told why, or reset.
        let _ = stranger.read_to_end(&mut rest);
        echo(&mut good, garbage.len(), 90);
    }
    wait("the misbehaved gone", || {
        let status = helper.status();
        status.clients == 2 && status.services[0].library_clients == 0
    });
    assert_eq!(links_up(&helper), 1);
    drop(deaf);
    wait("the deaf one gone", || helper.status().clients == 1);
    echo(&mut good, 5, 5000);
}

#[test]
fn two_thousand_clients_and_a_limit() {
    let server = EchoServer::start();
    let config = HelperConfig {
        threads: 1,
        max_connections: 2000,
        ..HelperConfig::new(vec![service(server.address)])
    };
    let helper = Helper::start(config).expect("a helper");
    wait("the link", || links_up(&helper) == 1);
    let port = port(&helper);
    let mut clients: Vec<TcpStream> = (0..2000).map(|_| connect(port)).collect();
    for client in &mut clients {
        client.write_all(b"hello, hello").expect("a live connection");
    }
    for client in &mut clients {
        let mut back = [0; 12];
        client.read_exact(&mut back).expect("an answer");
        assert_eq!(&back, b"hello, hello");
    }
    assert!(!is_served(port), "one more is refused");
    wait("the refusal counted", || helper.status().services[0].refused.of("clients_max") == 1);
    let status = helper.status();
    assert!(status.services[0].messages_per_batch > 1.0, "a burst travels in batches: {status}");
    clients.truncate(1000);
    wait("room again", || is_served(port));
    clients.iter_mut().enumerate().for_each(|(index, client)| echo(client, index, 10));
}

#[test]
fn drains_what_is_in_flight() {
    let server = EchoServer::start();
    let helper = start(service(server.address), 1);
    wait("the link", || links_up(&helper) == 1);
    let port = port(&helper);
    let mut client = connect(port);
    echo(&mut client, 1, 1000);
    helper.drain(Duration::from_secs(30));
    wait("no new clients", || TcpStream::connect(port).is_err());
    assert!(helper.status().draining && !helper.is_drained());
    // The one that is there goes on until it is done.
    echo(&mut client, 2, 1000);
    client.shutdown(std::net::Shutdown::Write).expect("a live connection");
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("an end");
    assert!(rest.is_empty());
    wait("drained", || helper.is_drained());
    helper.stop();

    // One that does not go is reset at the deadline.
    let helper = start(service(server.address), 1);
    wait("the link", || links_up(&helper) == 1);
    let mut client = connect(helper.status().services[0].listen[0]);
    echo(&mut client, 3, 10);
    helper.drain(Duration::from_millis(50));
    let end = client.read(&mut [0; 1]);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    wait("drained", || helper.is_drained());
}

#[test]
fn what_cannot_start_says_why() {
    let server = EchoServer::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut service = service(server.address);
    service.listen = vec![taken.local_addr().expect("bound")];
    let error = Helper::start(HelperConfig::new(vec![service.clone()])).err().expect("the port is taken");
    assert!(matches!(error, StartError::Bind(_)), "{error}");
    assert!(error.to_string().contains("another program listens there"), "{error}");
    service.listen = vec!["127.0.0.1:0".parse().expect("an address")];
    service.server = "192.0.2.5:11411".parse().expect("an address");
    service.keys.clear();
    let error = Helper::start(HelperConfig::new(vec![service])).err().expect("no key");
    assert!(error.to_string().contains("no key"), "{error}");
}

#[test]
fn status_travels_as_json() {
    let server = EchoServer::start();
    let path = std::env::temp_dir().join(format!("spillway-helper-test-{}.sock", std::process::id()));
    let config = HelperConfig {
        threads: 2,
        socket: Some(path.clone()),
        ..HelperConfig::new(vec![service(server.address)])
    };
    let helper = Helper::start(config).expect("a helper");
    wait("both links", || links_up(&helper) == 2);
    let mut status = spillway_helper::query(&path).expect("it answers");
    let again: HelperStatus = serde_json::from_str(&status.to_json()).expect("JSON");
    assert_eq!(again, status);
    assert_eq!(status.contexts.len(), 2);
    // Time goes on.
    (status.uptime_ms, status.contexts) = (0, Vec::new());
    assert_eq!(status, HelperStatus { uptime_ms: 0, contexts: Vec::new(), ..helper.status() });
    assert_eq!((status.threads, status.pid), (2, std::process::id()));
    helper.stop();
    assert!(!path.exists(), "the socket goes with the helper");
}
