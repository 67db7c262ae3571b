//! A helper in this process, between plain clients and an echo server.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use spillway_auth::Key;
use spillway_helper::{Helper, HelperConfig, HelperStatus, Service, StartError};
use support::{EchoServer, Place, client_key, connect, echo, helper_key, is_served, on_each_engine, wait};

on_each_engine! {
    listeners_come_and_go_while_clients_stay,
    clients_and_servers_of_both_families_are_served,
    clients_are_served_on_several_threads,
    clients_are_refused_while_the_server_is_down_and_accepted_again,
    clients_are_refused_while_the_helper_has_a_wrong_key,
    misbehaving_clients_do_not_affect_others,
    two_thousand_clients_are_served_and_one_more_is_refused,
    drained_clients_may_finish_until_the_deadline,
    status_over_the_socket_is_that_of_the_helper,
    clients_that_a_load_balancer_announces_are_served,
    a_service_that_drains_leaves_others_alone,
    idle_clients_notice_the_end_of_a_helper,
}

fn idle_clients_notice_the_end_of_a_helper(place: &Place) {
    let server = place.echo_server();
    let helper = start(place, service(place, server.address), 1);
    wait("the link", || links_up(&helper) == 1);
    let mut clients: Vec<_> = (0..200).map(|_| connect(port(&helper))).collect();
    clients.iter_mut().enumerate().for_each(|(seed, client)| echo(client, seed, 100));
    drop(helper);
    for client in &mut clients {
        let end = client.read(&mut [0]);
        let is_timeout =
            |error: &std::io::Error| [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind());
        assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(|error| !is_timeout(error)), "{end:?}");
    }
}

fn service(place: &Place, server: SocketAddr) -> Service {
    let mut service = Service::new("cache", server);
    service.listen.push(place.listen());
    service.keys = vec![helper_key()];
    service
}

fn start(place: &Place, service: Service, threads: usize) -> Helper {
    place.start(HelperConfig { threads, ..HelperConfig::new(vec![service]) }).unwrap()
}

fn port(helper: &Helper) -> SocketAddr {
    helper.status().services[0].listen[0]
}

fn links_up(helper: &Helper) -> usize {
    helper.status().services[0].links_up()
}

fn clients_are_served_on_several_threads(place: &Place) {
    let server = place.echo_server();
    let helper = start(place, service(place, server.address), 2);
    wait("both links", || links_up(&helper) == 2);
    let mut clients: Vec<TcpStream> = (0..200).map(|_| connect(port(&helper))).collect();
    for round in 0..5 {
        for (index, client) in clients.iter_mut().enumerate() {
            echo(client, round * 1000 + index, 1 + index * 7);
        }
    }
    // Eight clients at once send more than the buffers on the way hold.
    std::thread::scope(|scope| {
        for (index, client) in clients.iter_mut().take(8).enumerate() {
            let mut reading = client.try_clone().unwrap();
            scope.spawn(move || client.write_all(&vec![index as u8; 3 << 20]).unwrap());
            scope.spawn(move || {
                let mut back = vec![0; 3 << 20];
                reading.read_exact(&mut back).unwrap();
                assert!(back.iter().all(|byte| *byte == index as u8));
            });
        }
    });
    let status = helper.status();
    assert_eq!((status.clients, status.services[0].plain_clients), (200, 200));
    assert_eq!(status.services[0].refused.total, 0);
    assert!(status.services[0].links.iter().all(|link| link.connections > 0), "{status}");
    // The end of a client's stream reaches the server, and the server's end comes back after the last byte.
    for client in &mut clients {
        client.write_all(b"last").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
    }
    for mut client in clients {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"last");
    }
    wait("the last client to leave", || helper.status().clients == 0);
    wait("the last virtual connection to end", || server.connections() == 0);
    helper.stop();
}

fn clients_and_servers_of_both_families_are_served(place: &Place) {
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: this host has no IPv6");
        return;
    }
    let servers = [place.echo_server(), EchoServer::start_at(place.own_v6())];
    let services = servers.iter().zip(["v4", "v6"]).map(|(server, name)| Service {
        name: name.to_owned(),
        listen: vec![place.listen(), place.listen_v6()],
        ..service(place, server.address)
    });
    let config = HelperConfig { threads: 2, ..HelperConfig::new(services.collect()) };
    let helper = place.start(config).unwrap();
    wait("all links", || helper.status().services.iter().all(|service| service.links_up() == 2));
    for service in helper.status().services {
        for (seed, address) in service.listen.iter().enumerate() {
            let mut client = connect(*address);
            (0..10).for_each(|round| echo(&mut client, seed + round, 1 + round * 1000));
        }
    }
    helper.stop();
}

fn clients_are_refused_while_the_server_is_down_and_accepted_again(place: &Place) {
    let server = place.echo_server();
    let address = server.address;
    let helper = start(place, service(place, address), 2);
    let port = port(&helper);
    wait("both links", || links_up(&helper) == 2);
    let mut client = connect(port);
    echo(&mut client, 1, 100);
    drop(server);
    // The client is reset, and new clients are refused.
    let end = client.read(&mut [0; 1]);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    wait("the loss of both links", || links_up(&helper) == 0);
    let refused = TcpStream::connect(port).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let status = helper.status();
    assert_eq!((status.services[0].threads_listening, status.services[0].clients_lost_with_link), (0, 1));
    let _server = EchoServer::start_at(address);
    wait("a client to be served again", || is_served(port));
    wait("both links", || links_up(&helper) == 2);
}

fn listeners_come_and_go_while_clients_stay(place: &Place) {
    let server = place.echo_server();
    let first = service(place, server.address);
    let config = |services| HelperConfig { threads: 2, ..HelperConfig::new(services) };
    let helper = place.start(config(vec![first.clone()])).unwrap();
    wait("both links", || links_up(&helper) == 2);
    let old_port = port(&helper);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| connect(old_port)).collect();
    clients.iter_mut().for_each(|client| echo(client, 1, 1000));
    // Another address replaces the first; the host has chosen the ports of both.
    let free = place.free_address();
    place.change(&helper, config(vec![Service { listen: vec![free], ..first.clone() }])).unwrap();
    wait("the new address to serve", || is_served(free));
    wait("the old address to refuse", || TcpStream::connect(old_port).is_err());
    clients.iter_mut().for_each(|client| echo(client, 2, 3000));
    assert_eq!(helper.status().services[0].listen, [free]);
    // The first address comes back while its clients are still connected.
    place.change(&helper, config(vec![Service { listen: vec![old_port, free], ..first }])).unwrap();
    wait("the old address to serve again", || is_served(old_port));
    clients.iter_mut().for_each(|client| echo(client, 3, 100));
    helper.stop();
}

fn clients_are_refused_while_the_helper_has_a_wrong_key(place: &Place) {
    let server = place.echo_server();
    for key in [Key::from_secret([9; 32]), client_key()] {
        let helper = start(place, Service { keys: vec![key], ..service(place, server.address) }, 1);
        wait("the failed attempt", || helper.status().services[0].links[0].state == "waiting");
        let refused = TcpStream::connect(port(&helper)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(helper.status().services[0].links_up, 0);
    }
}

fn misbehaving_clients_do_not_affect_others(place: &Place) {
    let server = place.echo_server();
    let mut service = service(place, server.address);
    service.link_listen.push(place.listen());
    service.client_keys = vec![client_key()];
    let helper = start(place, service, 1);
    let (port, link_port) = (port(&helper), helper.status().services[0].link_listen[0]);
    wait("the link", || links_up(&helper) == 1);
    let mut reader = connect(port);

    // The replies to a client that does not read fill only bounded buffers.
    let mut non_reader = connect(port);
    non_reader.set_nonblocking(true).unwrap();
    let (mut sent, mut blocked_rounds) = (0_usize, 0);
    while blocked_rounds < 100 {
        match non_reader.write(&[7; 65536]) {
            Ok(length) => (sent, blocked_rounds) = (sent + length, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                blocked_rounds += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        assert!(sent < 256 << 20, "back-pressure should stop the client before 256 MiB");
        echo(&mut reader, blocked_rounds, 50);
    }
    assert!(helper.status().buffered_bytes < 2 << 20, "{}", helper.status());

    // Clients reset their connections while they send.
    for round in 0..50 {
        let mut client = connect(port);
        client.write_all(&vec![3; 1 + round * 999]).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        echo(&mut reader, round, 70);
    }
    // Peers send garbage to the link port.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4000], &[0xff; 1]] {
        let mut peer = connect(link_port);
        peer.write_all(garbage).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        // The helper refuses or resets the connection.
        let _ = peer.read_to_end(&mut rest);
        echo(&mut reader, garbage.len(), 90);
    }
    wait("all but two clients to leave", || {
        let status = helper.status();
        status.clients == 2 && status.services[0].library_clients == 0
    });
    assert_eq!(links_up(&helper), 1);
    drop(non_reader);
    wait("all but one client to leave", || helper.status().clients == 1);
    echo(&mut reader, 5, 5000);
}

fn two_thousand_clients_are_served_and_one_more_is_refused(place: &Place) {
    let server = place.echo_server();
    let config = HelperConfig {
        threads: 1,
        max_connections: 2000,
        ..HelperConfig::new(vec![service(place, server.address)])
    };
    let helper = place.start(config).unwrap();
    wait("the link", || links_up(&helper) == 1);
    let port = port(&helper);
    let mut clients: Vec<TcpStream> = (0..2000).map(|_| connect(port)).collect();
    for client in &mut clients {
        client.write_all(b"hello, hello").unwrap();
    }
    for client in &mut clients {
        let mut back = [0; 12];
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello, hello");
    }
    assert!(!is_served(port), "a client beyond max_connections should be refused");
    wait("the refusal to be counted", || helper.status().services[0].refused.of("clients_max") == 1);
    let status = helper.status();
    assert!(status.services[0].messages_per_batch > 1.0, "a burst should be sent in batches: {status}");
    clients.truncate(1000);
    wait("a client to be accepted again", || is_served(port));
    clients.iter_mut().enumerate().for_each(|(index, client)| echo(client, index, 10));
}

fn drained_clients_may_finish_until_the_deadline(place: &Place) {
    let server = place.echo_server();
    let helper = start(place, service(place, server.address), 1);
    wait("the link", || links_up(&helper) == 1);
    let port = port(&helper);
    let mut client = connect(port);
    echo(&mut client, 1, 1000);
    helper.drain(Duration::from_secs(30));
    wait("new clients to be refused", || TcpStream::connect(port).is_err());
    assert!(helper.status().draining && !helper.is_drained());
    // The connected client continues until it has finished.
    echo(&mut client, 2, 1000);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    wait("the end of the drain", || helper.is_drained());
    helper.stop();

    // A client that stays is reset at the deadline.
    let helper = start(place, service(place, server.address), 1);
    wait("the link", || links_up(&helper) == 1);
    let mut client = connect(helper.status().services[0].listen[0]);
    echo(&mut client, 3, 10);
    helper.drain(Duration::from_millis(50));
    let end = client.read(&mut [0; 1]);
    assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    wait("the end of the drain", || helper.is_drained());
}

#[test]
fn start_error_gives_the_reason() {
    let server = EchoServer::start();
    let other_program = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut service = service(&Place::Loopback, server.address);
    service.listen = vec![other_program.local_addr().unwrap()];
    let error = Helper::start(HelperConfig::new(vec![service.clone()]))
        .err()
        .expect("a port in use should be an error");
    assert!(matches!(error, StartError::Bind(_)), "{error}");
    assert!(error.to_string().contains("another program listens there"), "{error}");
    service.listen = vec!["127.0.0.1:0".parse().unwrap()];
    service.server = "192.0.2.5:11411".parse().unwrap();
    service.keys.clear();
    let error =
        Helper::start(HelperConfig::new(vec![service])).err().expect("a missing key should be an error");
    assert!(error.to_string().contains("no key"), "{error}");
}

fn status_over_the_socket_is_that_of_the_helper(place: &Place) {
    let server = place.echo_server();
    let path = std::env::temp_dir().join(format!("spillway-helper-test-{}.sock", std::process::id()));
    let config = HelperConfig {
        threads: 2,
        socket: Some(path.clone()),
        ..HelperConfig::new(vec![service(place, server.address)])
    };
    let helper = place.start(config).unwrap();
    wait("both links", || links_up(&helper) == 2);
    let mut status = spillway_helper::request_status(&path).unwrap();
    let reread: HelperStatus = serde_json::from_str(&status.to_json()).unwrap();
    assert_eq!(reread, status);
    assert_eq!(status.per_thread.len(), 2);
    // Uptime and CPU time change between the two snapshots.
    (status.uptime_ms, status.per_thread) = (0, Vec::new());
    assert_eq!(status, HelperStatus { uptime_ms: 0, per_thread: Vec::new(), ..helper.status() });
    assert_eq!((status.threads, status.pid), (2, std::process::id()));
    helper.stop();
    assert!(!path.exists(), "the socket's file should be removed");
}

/// The load balancer announces each client by a PROXY header.
fn clients_that_a_load_balancer_announces_are_served(place: &Place) {
    let server = place.echo_server();
    let from = [format!("{}/32", place.clients()).parse().unwrap()];
    let service = Service { proxy_protocol_from: from.to_vec(), ..service(place, server.address) };
    let helper = start(place, service, 2);
    wait("both links", || links_up(&helper) == 2);
    for (number, header) in ["TCP4 10.1.2.3 10.1.2.4 1111 11211", "UNKNOWN"].into_iter().enumerate() {
        let mut client = connect(port(&helper));
        client.write_all(format!("PROXY {header}\r\n").as_bytes()).unwrap();
        echo(&mut client, number, 5000);
    }
    // A client whose address is not allowed, and one without a header, are refused.
    for bytes in [&b"PROXY TCP4 8.8.8.8 10.1.2.4 1111 11211\r\nx"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut client = connect(port(&helper));
        let _ = client.write_all(bytes);
        assert!(!matches!(client.read(&mut [0; 1]), Ok(1..)), "{}", bytes.escape_ascii());
    }
    wait("the refusals to be counted", || helper.status().services[0].refused.total == 2);
    helper.stop();
}

fn a_service_that_drains_leaves_others_alone(place: &Place) {
    let server = place.echo_server();
    let services =
        ["first", "second"].map(|name| Service { name: name.to_owned(), ..service(place, server.address) });
    let helper = place.start(HelperConfig { threads: 2, ..HelperConfig::new(services.to_vec()) }).unwrap();
    wait("all links", || helper.status().services.iter().all(|service| service.links_up() == 2));
    let [first, second] = [0, 1].map(|index| helper.status().services[index].listen[0]);
    let mut clients = [connect(first), connect(second)];
    clients.iter_mut().for_each(|client| echo(client, 1, 1000));
    assert!(helper.drain_service("first", Duration::from_secs(60)));
    wait("no new clients", || TcpStream::connect(first).is_err());
    assert!(is_served(second));
    clients.iter_mut().for_each(|client| echo(client, 2, 3000));
    helper.stop();
}
