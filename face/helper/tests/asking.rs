//! Questions of load over UDP, and clients that choose a helper by the answers.

#[path = "../../../host/metrics/tests/support/strict.rs"]
mod strict;
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType};
use spillway_auth::Key;
use spillway_client::{Ask, Asked, LinkTarget};
use spillway_helper::{Helper, HelperConfig, Service};
use support::{EchoServer, client_key, helper_key, wait};

fn start(server: SocketAddr, threads: usize, address: &str) -> (Helper, LinkTarget) {
    start_with(server, |config| HelperConfig { threads, ..config }, address)
}

fn start_with(
    server: SocketAddr,
    with: impl FnOnce(HelperConfig) -> HelperConfig,
    address: &str,
) -> (Helper, LinkTarget) {
    let mut service = Service::new("cache", server);
    service.link_listen.push(address.parse().expect("an address"));
    service.keys = vec![helper_key()];
    service.client_keys = vec![client_key()];
    let metrics = Some("127.0.0.1:0".parse().expect("an address"));
    let config = with(HelperConfig { metrics, ..HelperConfig::new(vec![service]) });
    let threads = config.threads;
    let helper = Helper::start(config).expect("a helper");
    wait("the links", || helper.status().services[0].threads_listening == threads);
    let address = helper.status().services[0].link_listen[0];
    (helper, LinkTarget { address, key: client_key(), server: None, encryption: Default::default() })
}

/// Waits for the outcome, at most 60 s, because the machine may be busy.
fn outcome(ask: &mut Ask) -> Asked {
    let start = Instant::now();
    loop {
        let mut descriptors = [PollFd::new(&*ask, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).expect("a descriptor");
        ask.handle_ready();
        if let Some(outcome) = ask.poll(Instant::now()) {
            return outcome;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "an ask ends within its time");
    }
}

const PATIENCE: Duration = Duration::from_secs(5);

fn ask(targets: &[LinkTarget]) -> Asked {
    outcome(&mut Ask::start_within(Instant::now(), targets, 2, PATIENCE).expect("a socket"))
}

/// Connects from this port; `None` if another socket uses the port.
fn connect_from(port: u16, target: SocketAddr) -> Option<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let any: IpAddr =
        if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let fd = rustix::net::socket(family, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&fd, &SocketAddr::new(any, port)).ok()?;
    rustix::net::connect(&fd, &target).expect("it listens");
    Some(TcpStream::from(fd))
}

fn metrics(helper: &Helper) -> BTreeMap<String, strict::Told> {
    let mut stream = support::connect(helper.metrics_address().expect("it serves metrics"));
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").expect("a live connection");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    strict::read(text.split_once("\r\n\r\n").expect("an answer").1)
}

#[test]
fn the_thread_that_answers_is_the_one_that_serves() {
    let server = EchoServer::start();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        if address.starts_with('[') && UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
            println!("skipped: this host has no IPv6");
            continue;
        }
        let (helper, target) = start(server.address, 3, address);
        let mut streams = Vec::new();
        let mut asked = 0;
        while streams.len() < 40 {
            let Asked::Helper { local_port, heard, .. } = ask(std::slice::from_ref(&target)) else {
                panic!("the helper accepts clients");
            };
            assert!(heard);
            asked += 1;
            streams.extend(connect_from(local_port, target.address));
            assert!(asked < 400, "all ports of this host are in use");
        }
        wait("all clients", || helper.status().clients == 40);
        let metrics = metrics(&helper);
        for context in ["0", "1", "2"] {
            let labels = [("thread", context)];
            let answered = metrics["spillway_helper_load_queries_total"].sum(&labels);
            let clients = metrics["spillway_helper_clients"].sum(&labels);
            // A client whose port was in use has asked and not connected.
            let unconnected = (asked - streams.len()) as f64;
            assert!(
                answered >= clients && answered <= clients + unconnected,
                "{context}: {answered}, {clients}"
            );
            assert!(clients > 0.0, "context {context} has its share");
        }
        assert_eq!(helper.status().services[0].load_queries_answered, asked as u64);
    }
}

#[test]
fn questions_with_a_wrong_key_or_format_are_counted_and_not_answered() {
    let server = EchoServer::start();
    let (helper, target) = start(server.address, 1, "127.0.0.1:0");
    let stranger = LinkTarget { key: Key::from_secret([9; 32]), ..target.clone() };
    let mut ask = Ask::start(Instant::now(), &[stranger], 1).expect("a socket");
    let refused = |reason: &str| helper.status().services[0].load_queries_refused[reason];
    wait("the question to be counted", || refused("key") == 1);
    ask.handle_ready();
    assert!(matches!(outcome(&mut ask), Asked::Helper { heard: false, .. }), "no helper has answered");
    let noise = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    noise.send_to(b"hello?", target.address).expect("loopback");
    wait("the noise to be counted", || refused("malformed") == 1);
    assert_eq!(helper.status().services[0].load_queries_answered, 0);
    assert!(helper.status().to_string().contains("0 load queries answered, 2 not"));
}

#[test]
fn without_answers_clients_choose_at_random() {
    let server = EchoServer::start();
    let off = |config| HelperConfig { threads: 1, load_answers: false, ..config };
    let (_helper, target) = start_with(server.address, off, "127.0.0.1:0");
    let mut ask = Ask::start(Instant::now(), &[target.clone(), target], 2).expect("a socket");
    assert!(matches!(outcome(&mut ask), Asked::Helper { heard: false, .. }));
}

#[test]
fn helpers_that_drain_or_are_full_or_have_no_server_are_not_chosen() {
    let server = EchoServer::start();
    let (idle, target) = start(server.address, 1, "127.0.0.1:0");
    let (draining, draining_target) = start(server.address, 1, "127.0.0.1:0");
    let full = |mut config: HelperConfig| {
        config.services[0].listen.push("127.0.0.1:0".parse().expect("an address"));
        HelperConfig { threads: 1, max_connections: 1, ..config }
    };
    let (full, full_target) = start_with(server.address, full, "127.0.0.1:0");
    // One client keeps the draining helper up. A plain client fills the other helper: a library client that has not
    // authenticated would be replaced.
    let plain = full.status().services[0].listen[0];
    let _clients = [support::connect(draining_target.address), support::connect(plain)];
    wait("both clients", || draining.status().clients == 1 && full.status().clients == 1);
    draining.drain(Duration::from_secs(60));
    for other in [&draining_target, &full_target] {
        let both = [other.clone(), target.clone()];
        assert!(matches!(ask(&both), Asked::Helper { helper: 1, heard: true, .. }));
        assert_eq!(ask(std::slice::from_ref(other)), Asked::Nobody);
    }
    drop(server);
    wait("the link to be lost", || idle.status().services[0].threads_listening == 0);
    assert_eq!(ask(&[target]), Asked::Nobody);
}

/// The promise itself (1.15 times the mean) is tested by simulation over many seeds in `spillway-policy`; this test
/// shows that the choice works on sockets.
#[test]
fn a_thousand_clients_at_once_spread_over_four_helpers() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < 8_000 {
        println!("skipped: this process may open {limit} files, 8000 are needed");
        return;
    }
    let server = EchoServer::start();
    let helpers: Vec<(Helper, LinkTarget)> =
        (0..4).map(|_| start(server.address, 1, "127.0.0.1:0")).collect();
    let targets: Vec<LinkTarget> = helpers.iter().map(|(_, target)| target.clone()).collect();
    let start = || Ask::start_within(Instant::now(), &targets, 2, PATIENCE).expect("a socket");
    let mut asks: Vec<Ask> = (0..1000).map(|_| start()).collect();
    let mut chosen = [0_u32; 4];
    let mut streams = Vec::new();
    for ask in &mut asks {
        let Asked::Helper { helper, local_port, heard } = outcome(ask) else { panic!("no helper is full") };
        assert!(heard);
        chosen[helper] += 1;
        let target = targets[helper].address;
        streams.push(connect_from(local_port, target).unwrap_or_else(|| support::connect(target)));
    }
    let max_over_mean = f64::from(*chosen.iter().max().expect("four")) / 250.0;
    println!("{chosen:?}: max over mean {max_over_mean:.3}");
    assert!(max_over_mean <= 1.3, "{chosen:?}");
    for (helper, expected) in helpers.iter().zip(chosen) {
        wait("its clients", || helper.0.status().clients == expected);
    }
}
