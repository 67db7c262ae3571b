//! Runs on the user-level stack, in a lab of two hosts. They need root, and are skipped otherwise.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::link::link_port_on;
use common::{ControlledRun, config, echo_back, server};
use spillway_auth::Key;
use spillway_bpf::Pass;
use spillway_lab::peers::{Memcached, Redis};
use spillway_lab::{Host, HostOptions, Lab, Launch, Place, unavailable};
use spillway_load::config::{Config, EngineKind, Helpers, ProtocolKind, RequestLoop, XdpOptions};
use spillway_load::control::ScheduledCommand;
use spillway_load::report::Event;
use spillway_load::{Report, RunIo, failed};

/// A client that shares its interface with the stack, and a server.
struct Scene {
    lab: Lab,
    client: Host,
    server: Host,
}

impl Scene {
    /// `None`, with the reason printed, where no lab can be made.
    fn new(name: &str) -> Option<Scene> {
        if let Some(reason) = unavailable() {
            println!("skipped: {reason}");
            return None;
        }
        let lab = Lab::new(name).unwrap();
        let options = || HostOptions { tx_checksums: false, ..HostOptions::default() };
        let (client, server) =
            (lab.host("client", options()).unwrap(), lab.host("server", options()).unwrap());
        Some(Scene { lab, client, server })
    }

    /// Options of a run on the client's stack.
    fn config(&self, server: SocketAddr) -> Config {
        let options = XdpOptions { interface: self.client.interface().to_owned(), ports: None };
        Config { engine: EngineKind::Xdp(options), ..config(server) }
    }

    fn run(&self, config: &Config) -> Report {
        self.client.run_inside(|| spillway_load::run(config, RunIo::default()).unwrap()).unwrap()
    }

    fn error(&self, config: &Config) -> String {
        let outcome = self.client.run_inside(|| spillway_load::run(config, RunIo::default())).unwrap();
        outcome.map(drop).unwrap_err().to_string()
    }

    fn start(&self, config: &Config) -> ControlledRun {
        self.client.run_inside(|| ControlledRun::start(config)).unwrap()
    }

    /// An echo server on the server's host.
    fn echo(&self, alter: impl FnMut(&mut [u8]) + Clone + Send + Sync + 'static) -> Config {
        let address = SocketAddr::new(self.server.address(), 0).to_string();
        let serve = move |stream| echo_back(stream, alter.clone());
        let address = self.server.run_inside(|| server(&address, serve).unwrap()).unwrap();
        Config { protocol: ProtocolKind::Echo, ..self.config(address) }
    }
}

fn run_command(host: &Host, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(common::TIMEOUT).unwrap().success(), "{command}: {}", process.stderr().unwrap());
}

fn assert_flawless(config: &Config, report: &Report) {
    let total = &report.total;
    assert!(!failed(config, report), "{total:?} {:?}", report.problems);
    assert!(total.offered > 0);
    assert_eq!(total.offered, total.answered + total.dropped + total.unsent, "{total:?}");
    assert_eq!((total.wrong, total.lost, total.resets), (0, 0, 0));
}

#[test]
fn memcached_and_redis_give_right_replies_in_both_loops() {
    let Some(scene) = Scene::new("load-xdp") else { return };
    let place = Place::Host(scene.server.clone());
    let memcached = Memcached::default().start(&place).unwrap();
    let redis = Redis::default().start(&place).unwrap();
    for (address, protocol) in
        [(memcached.address(), ProtocolKind::Memcached), (redis.address(), ProtocolKind::Redis)]
    {
        let mut open = Config { protocol, get_ratio: 0.8, connections: 300, ..scene.config(address) };
        open.schedule = ScheduledCommand::parse("300ms=rate:4000,mark:more").unwrap();
        let report = scene.run(&open);
        assert_flawless(&open, &report);
        let offered = |from, to| report.span(from, to).offered;
        assert!((200..400).contains(&offered(0, 300)), "{}", offered(0, 300));
        assert!((1000..1400).contains(&offered(300, 600)), "{}", offered(300, 600));
        let closed = Config {
            request_loop: RequestLoop::Closed,
            value_size: 100_000,
            keys: 50,
            zipf: None,
            duration: Some(Duration::from_millis(200)),
            ..open.clone()
        };
        let closed = Config { schedule: vec![], ..closed };
        assert_flawless(&closed, &scene.run(&closed));
    }
    // The generator closes its connections: none is left at the server.
    let mut process = scene.server.spawn(&Launch::new("ss").args(["-Htn", "state", "established"])).unwrap();
    assert!(process.wait(common::TIMEOUT).unwrap().success());
    assert_eq!(process.stdout().unwrap(), "");
    scene.lab.close().unwrap();
}

#[test]
fn large_echoes_fill_windows_and_an_altered_bit_is_detected() {
    let Some(scene) = Scene::new("load-xdp-echo") else { return };
    let mut large = scene.echo(|_| {});
    (large.value_size, large.connections, large.request_loop) = (1 << 20, 8, RequestLoop::Closed);
    assert_flawless(&large, &scene.run(&large));

    let messages = std::sync::Arc::new(AtomicU32::new(0));
    let mut altered = scene.echo(move |bytes| {
        if messages.fetch_add(1, Ordering::Relaxed) == 100 {
            bytes[bytes.len() / 2] ^= 1;
        }
    });
    altered.connections = 8;
    let report = scene.run(&altered);
    assert_eq!(report.total.wrong, 1, "{:?}", report.problems);
    assert_eq!(report.total.offered, report.total.answered);
    assert!(report.problems[0].contains("wrong reply"), "{:?}", report.problems);
    assert!(failed(&altered, &report));
    scene.lab.close().unwrap();
}

#[test]
fn connections_reset_by_a_killed_server_reopen_after_its_restart() {
    let Some(scene) = Scene::new("load-xdp-killed") else { return };
    let place = Place::Host(scene.server.clone());
    let mut memcached = Memcached::default().start(&place).unwrap();
    let address = memcached.address();
    let mut config = scene.config(address);
    // The restarted server is empty: all replies are misses. The test checks only the connections.
    (config.duration, config.request_loop, config.keys) = (None, RequestLoop::Closed, 1);
    let controlled = scene.start(&config);
    let lines = &controlled.lines;
    let has_replies = |wrong| {
        move |event: &Event| match event {
            Event::Bins { bins, .. } => {
                bins.iter().any(|bin| if wrong { bin.direct.wrong > 0 } else { bin.direct.answered > 0 })
            }
            _ => false,
        }
    };
    lines.wait_for("answers", has_replies(false));
    memcached.kill();
    lines.wait_for("trouble", |event| matches!(event, Event::Trouble { .. }));
    let _memcached = Memcached::default().port(address.port()).start(&place).unwrap();
    lines.wait_for("replies (misses) of the new server", has_replies(true));
    let report = controlled.stop();
    assert!(report.total.resets >= 40, "{:?}", report.total);
    assert!(report.total.lost <= report.total.resets, "{:?}", report.total);
    assert!(failed(&config, &report));
    scene.lab.close().unwrap();
}

#[test]
fn a_held_run_keeps_its_connections_and_takes_commands() {
    let Some(scene) = Scene::new("load-xdp-hold") else { return };
    let mut config = scene.echo(|_| {});
    (config.duration, config.hold) = (None, true);
    let mut controlled = scene.start(&config);
    let lines = controlled.lines.clone();
    lines.wait_for("ready", |event| matches!(event, Event::Ready { connections: 40 }));
    controlled.command("start\n");
    lines.wait_for("start", |event| matches!(event, Event::Start { .. }));
    controlled.command("rate 2000\nmark half\n");
    lines.wait_for("mark", |event| matches!(event, Event::Command { command, .. } if command == "mark half"));
    lines.wait_for(
        "answers",
        |event| matches!(event, Event::Bins { bins, .. } if bins[0].direct.answered > 50),
    );
    assert_flawless(&config, &controlled.stop());
    scene.lab.close().unwrap();
}

#[test]
fn connections_move_to_helpers_and_back() {
    let Some(scene) = Scene::new("load-xdp-moves") else { return };
    let key = || Key::from_secret([5; 32]);
    let address = SocketAddr::new(scene.server.address(), 0).to_string();
    let ports = || scene.server.run_inside(|| link_port_on(&address, key())).unwrap();
    let (addresses, _streams): (Vec<_>, Vec<_>) = (0..2).map(|_| ports()).unzip();
    for (request_loop, value_size) in
        [(RequestLoop::Closed, 300_000), (Config::new(addresses[0]).request_loop, 64)]
    {
        let mut config = scene.echo(|_| {});
        (config.request_loop, config.value_size) = (request_loop, value_size);
        config.helpers = Helpers { addresses: addresses.clone(), key: Some(key()), ..Helpers::default() };
        // On a busy machine a connection can lose its SYN twice, and retransmits it after 1 s and 2 s more.
        config.schedule = ["100ms=move:helper:pace=50us", "4s=move:direct", "8s=move:helper"]
            .into_iter()
            .flat_map(|text| ScheduledCommand::parse(text).unwrap())
            .collect();
        config.duration = Some(Duration::from_secs(12));
        let report = scene.run(&config);
        assert_flawless(&config, &report);
        let moved: Vec<_> = report.moves.iter().map(|one| (one.failed, one.first_replies_us.len())).collect();
        assert_eq!(moved, [(0, 40); 3], "{:?}", report.problems);
        assert!(report.total.helped > 0 && report.total.helped < report.total.answered);
    }
    scene.lab.close().unwrap();
}

#[test]
fn runs_that_cannot_start_name_the_next_step() {
    let Some(scene) = Scene::new("load-xdp-errors") else { return };
    let good = scene.echo(|_| {});
    let interface = scene.client.interface();
    let with = |options: XdpOptions| Config { engine: EngineKind::Xdp(options), ..good.clone() };
    let on = |name: &str| with(XdpOptions { interface: name.into(), ports: None });
    let expect = |config: &Config, parts: &[&str]| {
        let error = scene.error(config);
        assert!(!error.contains('\n') && parts.iter().all(|part| error.contains(part)), "{error}");
    };
    expect(&on("no-such-if"), &["no-such-if", "`ip link`"]);
    expect(&on("lo"), &["Ethernet"]);
    expect(&Config { threads: 2, ..good.clone() }, &["1 receive queues", "--threads 1"]);
    let reserved = with(XdpOptions { interface: interface.into(), ports: Some(30_000..=30_100) });
    expect(&reserved, &["ip_local_reserved_ports"]);
    let few = with(XdpOptions { interface: interface.into(), ports: Some(10_000..=10_010) });
    expect(&few, &["--ports", "--connections"]);
    let used = scene.client.run_inside(|| std::net::TcpListener::bind("0.0.0.0:10000").unwrap()).unwrap();
    expect(&good, &["0.0.0.0:10000 listening", "--ports"]);
    drop(used);
    let closed = Config { server: SocketAddr::new(scene.server.address(), 1), ..good.clone() };
    expect(&closed, &["refused"]);

    let other = Pass::load().unwrap();
    let attached = scene.client.run_inside(|| other.attach(interface).unwrap()).unwrap();
    expect(&good, &["bpftool prog show id"]);
    drop(attached);
    run_command(&scene.client, &format!("ip addr flush dev {interface}"));
    expect(&good, &["no IPv4 address"]);
    run_command(&scene.client, &format!("ip link set {interface} down"));
    expect(&good, &["ip"]);
    scene.lab.close().unwrap();
}

/// Half of the frames arrive on the other thread's queue.
#[test]
fn two_queues_serve_two_threads() {
    let Some(scene) = Scene::new("load-xdp-queues") else { return };
    let (client, other) = (&scene.client, &scene.server);
    let queues = "numrxqueues 2 numtxqueues 2";
    let namespace = other.namespace();
    run_command(
        client,
        &format!("ip link add two0 {queues} type veth peer name two1 {queues} netns {namespace}"),
    );
    for (host, interface, address) in [(client, "two0", "10.79.0.1"), (other, "two1", "10.79.0.2")] {
        run_command(host, &format!("ethtool -K {interface} tx off tso off gro on"));
        run_command(host, &format!("ip addr add {address}/24 dev {interface}"));
        run_command(host, &format!("ip link set {interface} up"));
    }
    let address =
        other.run_inside(|| server("10.79.0.2:0", |stream| echo_back(stream, |_| {})).unwrap()).unwrap();
    let options = XdpOptions { interface: "two0".into(), ports: None };
    let config = Config {
        engine: EngineKind::Xdp(options),
        protocol: ProtocolKind::Echo,
        threads: 2,
        connections: 100,
        ..config(address)
    };
    let report = scene.run(&config);
    assert_flawless(&config, &report);
    let mut process = client.spawn(&Launch::new("ethtool").args(["-S", "two0"])).unwrap();
    assert!(process.wait(common::TIMEOUT).unwrap().success());
    let counters = process.stdout().unwrap();
    for queue in 0..2 {
        let name = format!("rx_queue_{queue}_xdp_packets: ");
        let packets: u64 =
            counters.lines().find_map(|line| line.trim().strip_prefix(&name)?.parse().ok()).unwrap();
        assert!(packets > 0, "queue {queue} got no packets: {counters}");
    }
    scene.lab.close().unwrap();
}
