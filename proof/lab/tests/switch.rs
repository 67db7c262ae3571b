//! Hosts joined by Spillway's switch: real programs, control messages, a moved flow, several switches in a row. Skips
//! without root.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::JoinHandle;

use spillway_auth::SwitchKey;
use spillway_lab::peers::Memcached;
use spillway_lab::{
    Agent, Forwarding, Host, HostOptions, Lab, LabError, LabOptions, LabSwitch, Launch, Place,
};
use spillway_rules::config::{Config, Place as ServicePlace};
use spillway_rules::{ServiceId, Verdict};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Flow, FlowState, Import, Relay, Request, ServerId, Site, Status};
use support::{TIMEOUT, command, exchange, exchange_datagram, host, lab};

const LARGE: usize = 300_000;
/// Indexes of IPv4 and IPv6 in pairs of addresses.
const FAMILIES: [usize; 2] = [0, 1];

fn switch_lab(name: &str, more_switches: usize) -> Option<Lab> {
    lab(name, LabOptions { forwarding: Forwarding::Switch, more_switches, ..LabOptions::default() })
}

fn addresses(host: &Host) -> [IpAddr; 2] {
    [host.address(), host.ipv6_address().unwrap()]
}

#[test]
fn all_traffic_between_hosts_passes_unchanged() {
    let Some(lab) = switch_lab("switch", 0) else { return };
    let hosts = ["left", "right", "third"].map(|name| host(&lab, name));
    let switch = &lab.switches()[0];
    let running = switch.load(&switch.config()).unwrap();
    let [left, right, third] = &hosts;
    // A host may send, of its own accord, before the ports are open.
    let early = running.program().counters().unwrap();
    for (from, to) in [(left, right), (right, third), (third, left)] {
        for (own, address) in addresses(from).into_iter().zip(addresses(to)) {
            // The first packet between two hosts needs ARP or NDP, which the switch floods.
            let ping = ["-c", "3", "-i", "0.01", "-w", "20", &address.to_string()];
            assert!(command(from, "ping", &ping).contains(" 0% packet loss"));
            exchange(from, to, address);
            exchange_datagram((from, own), (to, address));
        }
    }
    let counters = running.program().counters().unwrap();
    assert!(counters.of(Verdict::Flooded) >= 6, "{counters:?}");
    // 1 MiB is 725 segments of 1,448 bytes; six exchanges in two directions.
    assert!(counters.of(Verdict::Switched) > 12 * 725, "{counters:?}");
    for verdict in [Verdict::DropUnknownPort, Verdict::DropShort, Verdict::DropUnknownStation] {
        assert_eq!(counters.of(verdict), early.of(verdict), "{counters:?}");
    }
    assert_eq!(left.interface_threads().len(), 1);
    lab.close().unwrap();
}

#[test]
fn curl_and_memcached_work_over_both_families() {
    let Some(lab) = switch_lab("switch-real", 0) else { return };
    let (client, server) = (host(&lab, "client"), host(&lab, "server"));
    let switch = &lab.switches()[0];
    let _running = switch.load(&switch.config()).unwrap();
    let body: String = (0..LARGE).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    for address in addresses(&server) {
        let web = WebServer::start(&server, SocketAddr::new(address, 8_080), body.clone());
        let fetched = command(&client, "curl", &["-sS", "--max-time", "30", &url(web.address)]);
        assert!(fetched == body, "curl fetched {} bytes of {}", fetched.len(), body.len());
        web.stop();
    }

    let value = "v".repeat(100_000);
    let set = format!("set k 0 0 {}\r\n{value}\r\n", value.len());
    let found = format!("VALUE k 0 {}\r\n{value}\r\nEND\r\n", value.len());
    let converse = |address: SocketAddr| {
        client
            .run_inside(|| {
                let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                stream.write_all(format!("{set}get k\r\n").as_bytes()).unwrap();
                let mut reply = vec![0; "STORED\r\n".len() + found.len()];
                stream.read_exact(&mut reply).unwrap();
                String::from_utf8(reply).unwrap()
            })
            .unwrap()
    };
    let peer = match Memcached::default().start(&Place::from(&server)) {
        Ok(peer) => peer,
        Err(error @ LabError::MissingTool { .. }) => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(converse(peer.address()), format!("STORED\r\n{found}"));
    let listen = SocketAddr::new(server.ipv6_address().unwrap(), 11_211);
    let launch = Launch::new("memcached").args(["-l", &listen.ip().to_string(), "-p", "11211", "-U", "0"]);
    let _memcached = server.spawn(&launch.args(["-u", "root"])).unwrap();
    let connects = || client.run_inside(|| TcpStream::connect_timeout(&listen, TIMEOUT)).unwrap().is_ok();
    support::wait_until("memcached accepts connections", connects);
    assert_eq!(converse(listen), format!("STORED\r\n{found}"));
}

#[test]
fn frames_pass_only_while_the_program_is_attached() {
    let Some(lab) = switch_lab("switch-restart", 0) else { return };
    let (left, right) = (host(&lab, "left"), host(&lab, "right"));
    let switch = &lab.switches()[0];
    let ping = |count: &str, wait: &str| {
        let arguments = ["-c", count, "-i", "0.01", "-w", wait, &right.address().to_string()];
        let mut process = left.spawn(&Launch::new("ping").args(arguments)).unwrap();
        process.wait(TIMEOUT).unwrap().success()
    };
    assert!(!ping("1", "1"), "no program should forward before the switch is loaded");
    for _ in 0..2 {
        let running = switch.load(&switch.config()).unwrap();
        assert!(ping("3", "20"));
        assert!(switch.load(&switch.config()).is_err(), "the ports should be occupied");
        drop(running);
        assert!(!ping("1", "1"), "the program should be detached");
    }
}

#[test]
fn agents_exchange_control_messages_over_both_families() {
    let Some(lab) = switch_lab("switch-control", 0) else { return };
    let servers = [host(&lab, "one"), host(&lab, "two")];
    let switch = &lab.switches()[0];
    for family in FAMILIES {
        let service = SocketAddr::new(addresses(&servers[0])[family], 80);
        let config = configuration(switch, &servers, family, &[(service, service, 1)]);
        let running = switch.load(&config).unwrap();
        let client = SocketAddr::new(addresses(&servers[1])[family], 5_000);
        let flow = Flow::new(client.into(), service.into()).unwrap();
        let control = switch.control()[family];
        let mut agent = Agent::new(&servers[0], control, ServerId(1), key(1)).unwrap();
        let term = agent.hello().unwrap();
        assert_eq!(agent.epoch(), running.epoch());
        assert!(term > running.epoch(), "generations should start at the epoch");
        let answer = agent.ask(Request::Get { flow }).unwrap();
        assert_eq!((answer.status, answer.state), (Status::NoEntry, FlowState::None));
        assert_eq!(agent.ask(heartbeat(service)).unwrap().status, Status::Ok);

        let dropped = || running.program().counters().unwrap().of(Verdict::DropControlTag);
        assert_eq!(dropped(), 0);
        let mut stranger = Agent::new(&servers[0], control, ServerId(1), key(9)).unwrap();
        stranger.send(Request::Hello).unwrap();
        support::wait_until("the message with a wrong tag is counted", || dropped() == 1);
    }
}

#[test]
fn a_moved_flow_reaches_its_new_owner_and_other_flows_do_not() {
    let Some(lab) = switch_lab("switch-move", 0) else { return };
    let servers = [host(&lab, "one"), host(&lab, "two")];
    let client = host(&lab, "client");
    let switch = &lab.switches()[0];
    for (family, first_port) in FAMILIES.into_iter().zip([30_001, 30_011]) {
        // Ports that no connection of the other family has used: curl binds to all addresses.
        let [before, moved, after] = [0, 1, 2].map(|number| first_port + number);
        let [service, import] = [(&servers[0], 80), (&servers[1], 8_080)]
            .map(|(host, port)| SocketAddr::new(addresses(host)[family], port));
        let config = configuration(switch, &servers, family, &[(service, service, 1), (import, service, 2)]);
        let running = switch.load(&config).unwrap();
        let original = WebServer::start(&servers[0], service, "from one".into());
        let target = WebServer::start(&servers[1], import, "from two".into());
        let fetch = |port: u16| {
            let port = port.to_string();
            command(&client, "curl", &["-sS", "--max-time", "30", "--local-port", &port, &url(service)])
        };
        assert_eq!(fetch(before), "from one");

        let control = switch.control()[family];
        let agent = |host: &Host, number: u8| {
            let mut agent = Agent::new(host, control, ServerId(number), key(number)).unwrap();
            agent.hello().unwrap();
            assert_eq!(agent.ask(heartbeat(service)).unwrap().status, Status::Ok);
            agent
        };
        let (mut one, mut two) = (agent(&servers[0], 1), agent(&servers[1], 2));
        let end = SocketAddr::new(addresses(&client)[family], moved);
        let flow = Flow::new(end.into(), service.into()).unwrap();
        let site = Site::new(import.into(), Mac(servers[1].mac())).unwrap();
        one.send(Request::Prepare { flow, replaces: 0, target: Some(site), lifetime_ms: 60_000 }).unwrap();
        let relayed = two.relayed().unwrap();
        let Relay::Prepare { generation: asked, .. } = relayed else { panic!("not a prepare: {relayed:?}") };
        two.send(Request::Prepared { flow, asked, import: Import::Ready(site) }).unwrap();
        let relayed = one.relayed().unwrap();
        assert_eq!(relayed, Relay::Prepared { flow, generation: asked, import: Import::Ready(site) });
        assert_eq!(one.ask(Request::Get { flow }).unwrap().state, FlowState::Held);
        let owned = two.ask(Request::Own { flow, replaces: asked }).unwrap();
        assert_eq!((owned.status, owned.state, owned.owner), (Status::Ok, FlowState::Owned, Some(site)));

        assert_eq!(fetch(moved), "from two", "the moved flow should reach its new owner");
        assert_eq!(fetch(after), "from one", "another flow should reach the service");
        let counters = running.program().counters().unwrap();
        assert!(counters.of(Verdict::ToOwner) >= 4 && counters.of(Verdict::FromOwner) >= 4, "{counters:?}");
        assert_eq!(counters.of(Verdict::DropNotOwner), 0, "{counters:?}");
        original.stop();
        target.stop();
    }
}

#[test]
fn hosts_at_both_ends_of_a_row_of_switches_reach_each_other() {
    let Some(lab) = switch_lab("switch-row", 4) else { return };
    let at = |name: &str, switch: usize| {
        lab.host(name, HostOptions { tx_checksums: false, switch, ..HostOptions::default() }).unwrap()
    };
    let (first, middle, last) = (at("first", 0), at("middle", 2), at("last", 4));
    let switches = lab.switches();
    assert_eq!(switches.len(), 5);
    let running: Vec<_> = switches.iter().map(|switch| switch.load(&switch.config()).unwrap()).collect();
    for (from, to) in [(&first, &last), (&last, &middle), (&middle, &first)] {
        for address in addresses(to) {
            exchange(from, to, address);
        }
    }
    for (switch, running) in switches.iter().zip(&running) {
        let switched = running.program().counters().unwrap().of(Verdict::Switched);
        assert!(switched > 2 * 725, "switch {} forwarded only {switched} packets", switch.index());
    }
    let error =
        switches[1].add_server(&mut switches[1].config(), (&last, last.address()), ServerId(1), key(1));
    assert!(matches!(error, Err(LabError::BadOption(_))), "the host is at another switch");
    assert!(matches!(
        lab.host("nowhere", HostOptions { tx_checksums: false, switch: 5, ..HostOptions::default() }),
        Err(LabError::BadOption(_))
    ));
}

#[test]
fn receive_work_can_run_inline() {
    let options =
        LabOptions { forwarding: Forwarding::Switch, receive_inline: true, ..LabOptions::default() };
    let Some(lab) = lab("switch-inline", options) else { return };
    let (left, right) = (host(&lab, "left"), host(&lab, "right"));
    let switch = &lab.switches()[0];
    let _running = switch.load(&switch.config()).unwrap();
    exchange(&left, &right, right.address());
    assert!(left.interface_threads().is_empty());
}

#[test]
fn a_datagram_to_the_switchs_own_address_reaches_its_kernel() {
    let Some(lab) = switch_lab("switch-own", 0) else { return };
    let (client, switch) = (host(&lab, "client"), lab.switches()[0].clone());
    let _running = switch.load(&switch.config()).unwrap();
    for (own, client_address) in switch.addresses().into_iter().zip(addresses(&client)) {
        let bind = |address| {
            let socket = UdpSocket::bind((address, 0)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        let daemon = switch.run_inside(|| bind(own)).unwrap();
        let asking = client.run_inside(|| bind(client_address)).unwrap();
        asking.send_to(b"question", daemon.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        let (length, from) = daemon.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"question"[..], asking.local_addr().unwrap()));
        daemon.send_to(b"answer", from).unwrap();
        let (length, from) = asking.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"answer"[..], daemon.local_addr().unwrap()));
    }
}

#[test]
fn options_that_a_switch_does_not_support_are_refused() {
    let Some(lab) = switch_lab("switch-refuses", 1) else { return };
    let error = lab.host("partial", HostOptions::default()).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("tx_checksums")), "{error}");
    let error = host(&lab, "lossy").drop_packets(0.1).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("Forwarding::Bridge")), "{error}");
    let options = || HostOptions { tx_checksums: false, ..HostOptions::default() };
    for taken in ["switch", "switch-2", "lossy"] {
        assert!(matches!(lab.host(taken, options()), Err(LabError::BadOption(_))), "{taken}");
    }
    assert!(lab.host("bridge", options()).is_ok(), "a lab with switches has no bridge");
    let options = LabOptions { more_switches: 1, ..LabOptions::default() };
    assert!(matches!(Lab::with_options("no-row", options), Err(LabError::BadOption(_))));
}

fn key(number: u8) -> SwitchKey {
    SwitchKey::from_bytes([number; 16])
}

fn heartbeat(service: SocketAddr) -> Request {
    Request::Heartbeat { service: service.into(), load: 1, free_places: 9, weight: 1 }
}

/// The switch's configuration with these hosts as the servers 1, 2, …, which take control messages of one family, and
/// with places, each with its service endpoint and its server.
fn configuration(
    switch: &LabSwitch,
    servers: &[Host],
    family: usize,
    places: &[(SocketAddr, SocketAddr, u8)],
) -> Config {
    let mut config = switch.config();
    config.owner_timeout = TIMEOUT;
    for (number, host) in (1..).zip(servers) {
        let address = addresses(host)[family];
        switch.add_server(&mut config, (host, address), ServerId(number), key(number)).unwrap();
    }
    for &(at, service, server) in places {
        config.places.push(ServicePlace {
            at: at.into(),
            service: service.into(),
            number: ServiceId(7),
            server: ServerId(server),
        });
    }
    config
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

/// An HTTP server that gives each client the same body, and then closes the connection.
struct WebServer {
    host: Host,
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl WebServer {
    fn start(host: &Host, address: SocketAddr, body: String) -> WebServer {
        let listener = host.run_inside(|| TcpListener::bind(address).unwrap()).unwrap();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut request = [0; 4_096];
                // A connection without a request is the one of `stop`.
                if stream.read(&mut request).unwrap() == 0 {
                    return;
                }
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        });
        WebServer { host: host.clone(), address, thread }
    }

    fn stop(self) {
        // From its own host: the switch drops connections to a place of imports.
        drop(self.host.run_inside(|| TcpStream::connect(self.address).unwrap()).unwrap());
        self.thread.join().unwrap();
    }
}
