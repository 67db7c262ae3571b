//! Switches in host mode, as processes: on the servers' own interfaces, on one Ethernet segment or in two racks. Skipped without root.

// Its test needs only a part of them.
#[allow(dead_code)]
#[path = "moves/clients.rs"]
mod clients;
#[path = "switch/daemon.rs"]
mod daemon;
#[path = "switch/datagrams.rs"]
mod datagrams;
#[path = "switch_host/faults.rs"]
mod faults;
#[path = "switch/lab.rs"]
mod lab;
#[path = "switch_host/racks.rs"]
mod racks;
#[path = "switch/rule.rs"]
mod rule;
#[path = "switch_host/scene.rs"]
mod scene;
#[path = "switch_host/stack.rs"]
mod stack;
mod support;
#[path = "switch_host/tunnels.rs"]
mod tunnels;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use daemon::terminate;
use datagrams::Stream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use scene::{FAMILIES, SERVICE_PORT, Scene, addresses};
use serde_json::json;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Agent, Host, Place};
use spillway_wire::switch::{Flow, Request, ServerId, Status};
use support::{Client, PATIENCE, eventually, value_of};

/// A memcached on a host, at both its addresses.
fn memcached(host: &Host, port: u16) -> Peer {
    let ipv6 = format!("[{}]", addresses(host)[1]);
    Memcached::default().port(port).args(["-l", &ipv6]).start(&Place::Host(host.clone())).unwrap()
}

/// An address of a client with a free port.
fn free_address(client: &Host, family: usize) -> SocketAddr {
    let address = addresses(client)[family];
    client.run_inside(|| TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()).unwrap()
}

/// Connects from this address and port.
fn connect_from(client: &Host, source: SocketAddr, target: SocketAddr) -> TcpStream {
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let open = || {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &source).unwrap();
        connect(&socket, &target).unwrap();
        TcpStream::from(socket)
    };
    let stream = client.run_inside(open).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a command of memcached, and returns the reply up to this end.
fn exchange(stream: &mut TcpStream, request: &[u8], end: &[u8]) -> Vec<u8> {
    stream.write_all(request).unwrap();
    let mut reply = Vec::new();
    let mut chunk = [0; 65_536];
    while !reply.ends_with(end) {
        let bytes = stream.read(&mut chunk).unwrap();
        assert!(bytes > 0, "the connection has ended after {} bytes", reply.len());
        reply.extend_from_slice(&chunk[..bytes]);
    }
    reply
}

/// The rule of the client's flow moves before the client connects, because the laboratory moves no connection: the client
/// then connects to the service's address, and a listener of another host's kernel serves the connection.
#[test]
fn another_host_serves_a_connection_under_the_services_address() {
    let Some(scene) = Scene::start() else { return };
    let daemons = [&scene.a, &scene.b].map(|host| scene.start_daemon(host));
    let _here = memcached(&scene.a, SERVICE_PORT);
    let _there = memcached(&scene.b, scene.place(0).port());
    for family in FAMILIES {
        let service = scene.service(family);
        // Without an entry a connection belongs to the original server.
        let mut plain = scene.client.run_inside(|| TcpStream::connect(service).unwrap()).unwrap();
        exchange(&mut plain, b"set host 0 0 1\r\na\r\n", b"STORED\r\n");

        let mut agents = scene.agents(family);
        let source = free_address(&scene.client, family);
        let generation = scene.move_rule(&mut agents, source, family);
        let mut moved = connect_from(&scene.client, source, service);
        assert_eq!(moved.peer_addr().unwrap(), service);
        assert_eq!(exchange(&mut moved, b"get host\r\n", b"END\r\n"), b"END\r\n", "another memcached");
        exchange(&mut moved, b"set host 0 0 1\r\nb\r\n", b"STORED\r\n");
        let value = value_of("large", 500_000);
        let set = [format!("set large 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        exchange(&mut moved, &set, b"STORED\r\n");
        let reply = exchange(&mut moved, b"get large\r\n", b"\r\nEND\r\n");
        assert!(reply.windows(value.len()).any(|window| window == value), "the value comes back unchanged");
        // The other connection has stayed.
        assert_eq!(exchange(&mut plain, b"get host\r\n", b"END\r\n"), b"VALUE host 0 1\r\na\r\nEND\r\n");

        let listed = scene.result(&scene.a, &["flows", "--client", &source.to_string()]);
        let flow = &listed["flows"][0];
        assert_eq!(
            (&flow["owner"]["server"], &flow["original"]["server"], &flow["generation"]),
            (&json!("b"), &json!("a"), &json!(generation)),
            "{listed}"
        );
        exchange(&mut moved, b"flush_all\r\n", b"OK\r\n");
    }
    eventually("both switches count the packets", || {
        // Each value of 500,000 bytes has 345 segments; the kernel of `b` sends up to 45 of them as one packet.
        scene.packets(&scene.a, "to_owner") > 690 && scene.packets(&scene.b, "from_owner") > 22
    });
    let status = scene.result(&scene.a, &["status"]);
    assert_eq!(status["mode"], "host");
    assert!(status["local_messages"].as_u64() >= Some(6), "{status}");
    let text = String::from_utf8_lossy(&scene.command(&scene.b, &["status"]).stdout).into_owned();
    assert!(text.contains("in host mode"), "{text}");
    daemons.into_iter().for_each(terminate);
    scene.close();
}

#[test]
fn the_old_owner_is_mute_until_it_owns_the_flow_again() {
    let Some(scene) = Scene::start() else { return };
    let daemons = [&scene.a, &scene.b].map(|host| scene.start_daemon(host));
    for family in FAMILIES {
        let service = scene.service(family);
        let listener = scene.a.run_inside(|| TcpListener::bind(service).unwrap()).unwrap();
        let mut client = scene.client.run_inside(|| TcpStream::connect(service).unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut server, source) = listener.accept().unwrap();
        server.write_all(b"early").unwrap();
        let mut received = [0; 5];
        client.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"early");

        let mut agents = scene.agents(family);
        scene.move_rule(&mut agents, source, family);
        let before = scene.packets(&scene.a, "drop_not_owner");
        server.write_all(b"later").unwrap();
        eventually("the old owner's packets are dropped", || {
            scene.heartbeats(&mut agents, family);
            scene.packets(&scene.a, "drop_not_owner") > before
        });
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.read(&mut received).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.set_nonblocking(false).unwrap();
        // Its kernel repeats the segment when the flow is its own again.
        scene.result(&scene.a, &["flows", "clear", "--client", &source.to_string()]);
        client.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"later");

        // A server that does not know the connection resets it, under the service's address.
        scene.move_rule(&mut agents, source, family);
        client.write_all(b"for the new owner").unwrap();
        assert_eq!(client.read(&mut received).unwrap_err().kind(), ErrorKind::ConnectionReset);
        scene.result(&scene.a, &["flows", "clear", "--all"]);
    }
    daemons.into_iter().for_each(terminate);
    scene.close();
}

/// Without the daemon of `a`, remote servers' messages are answered, and those of the host's own server are not.
#[test]
fn control_messages_of_the_hosts_own_server_need_the_daemon() {
    let Some(scene) = Scene::start() else { return };
    let mut daemon = scene.start_daemon(&scene.a);
    let mut agents = scene.agents(0);
    let source = free_address(&scene.client, 0);
    scene.move_rule(&mut agents, source, 0);
    daemon.kill();
    let flow = Flow::new(source.into(), scene.service(0).into()).unwrap();
    let [local, remote] = &mut agents;
    assert_eq!(remote.ask(Request::Get { flow }).unwrap().status, Status::Ok);
    let refused = local.ask(Request::Get { flow }).unwrap_err().to_string();
    assert!(refused.contains("not a control endpoint"), "the port is closed: {refused}");
    let daemon = scene.start_daemon(&scene.a);
    assert_eq!(local.ask(Request::Get { flow }).unwrap().status, Status::Ok);
    for mut agent in scene.agents_at(1) {
        agent.hello().unwrap();
        assert_eq!(agent.ask(Request::Get { flow }).unwrap().status, Status::Ok);
    }

    // Another host's datagrams do not reach the daemon, whatever they contain.
    let control = SocketAddr::new(scene.a.address(), 9511);
    let key = spillway_auth::SwitchKey::from_bytes([1; 16]);
    let forger = scene.client.run_inside(|| {
        let socket = UdpSocket::bind((scene.client.address(), 0)).unwrap();
        socket.send_to(b"short", control).unwrap();
        Agent::open(None, control, ServerId(1), key, Duration::from_millis(200)).unwrap().hello()
    });
    assert!(forger.unwrap().is_err());
    let status = scene.result(&scene.a, &["status"]);
    assert_eq!(status["local_messages_dropped"], 0, "{status}");
    eventually("the program counts them", || {
        scene.packets(&scene.a, "drop_control_tag") > 0 && scene.packets(&scene.a, "drop_control_invalid") > 0
    });
    terminate(daemon);
    scene.close();
}

#[test]
fn a_restart_of_the_daemon_loses_no_packet_and_no_flow() {
    let Some(scene) = Scene::start() else { return };
    let mut daemon = scene.start_daemon(&scene.a);
    let other = scene.start_daemon(&scene.b);
    let _memcached = memcached(&scene.b, scene.place(0).port());
    let mut agents = scene.agents(0);
    let source = free_address(&scene.client, 0);
    scene.move_rule(&mut agents, source, 0);
    let mut moved = connect_from(&scene.client, source, scene.service(0));
    exchange(&mut moved, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
    let [to_a, to_b] = [&scene.a, &scene.b].map(|host| Stream::start(&scene.client, host));
    let restarts = 10;
    for restart in 0..restarts {
        // Half of the daemons are killed, the others end in order.
        if restart % 2 == 0 {
            daemon.kill()
        } else {
            terminate(daemon)
        }
        exchange(&mut moved, b"get key\r\n", b"END\r\n");
        daemon = scene.start_daemon(&scene.a);
        exchange(&mut moved, b"get key\r\n", b"END\r\n");
        scene.heartbeats(&mut agents, 0);
    }
    for counts in [to_a, to_b].map(Stream::stop) {
        assert!(counts.sent > 200, "{counts:?}");
        assert_eq!(counts.received, counts.sent, "every datagram should arrive over {restarts} restarts");
    }
    assert_eq!(scene.result(&scene.a, &["flows"])["total"], 1, "the flow should outlive the daemons");
    terminate(daemon);
    terminate(other);
    scene.close();
}

#[test]
fn two_capabilities_suffice_for_the_daemon() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface();
    let sets = ["inh-caps", "ambient-caps", "bounding-set"];
    let sets = sets.map(|set| format!("--{set}=-all,+net_admin,+bpf"));
    let wrapper: Vec<String> = ["setpriv".to_owned()].into_iter().chain(sets).collect();
    let daemon = scene.a.spawn(&scene.launch(&scene.a, &wrapper, &[])).unwrap();
    let daemon = daemon::answering(daemon, &scene.socket(&scene.a));
    scene.run(&scene.a, &format!("tc filter del dev {interface} egress"));
    eventually("the filter is attached again", || scene.has_filter(&scene.a, interface));
    let mut agents = scene.agents(0);
    scene.move_rule(&mut agents, free_address(&scene.client, 0), 0);
    terminate(daemon);
    let mut detach = scene.a.spawn(&scene.launch(&scene.a, &wrapper, &["--detach"])).unwrap();
    assert!(detach.wait(PATIENCE).is_some_and(|ended| ended.success()), "{}", detach.last_output());
    assert!(!scene.has_filter(&scene.a, interface));
    scene.close();
}

#[test]
fn a_host_without_its_own_server_in_the_file_is_refused() {
    let Some(scene) = Scene::start() else { return };
    scene.configure(&scene.a, scene.a.interface(), spillway_wire::packet::ethernet::Mac([2, 0, 0, 0, 0, 9]));
    let mut daemon = scene.a.spawn(&scene.launch(&scene.a, &[], &[])).unwrap();
    let ended = daemon.wait(PATIENCE).expect("the daemon should end");
    let stderr = daemon.stderr().unwrap();
    assert!(!ended.success() && stderr.contains("no [[server]] has mac = "), "{stderr}");
    assert!(!scene.has_filter(&scene.a, scene.a.interface()));
    let _memcached = memcached(&scene.a, SERVICE_PORT);
    let mut client = scene.client.run_inside(|| Client::new(scene.service(0))).unwrap();
    assert!(client.version().is_some());
    scene.close();
}
