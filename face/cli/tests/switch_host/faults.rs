//! Faults, reloads and ends of a switch in host mode: none of them ends a connection to the host itself, such as that of `ssh`.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::json;
use spillway_lab::{Host, Process};
use spillway_wire::packet::ethernet::Mac;

use super::scene::{FAMILIES, Scene, addresses};
use super::support::{PATIENCE, SPILLWAY, eventually};
use super::{connect_from, exchange, free_address, memcached, terminate};

/// The Ethernet address of the interface `spare0`.
const SPARE_MAC: Mac = Mac([2, 0, 0, 0, 0x99, 1]);

/// Connections to a host by both families, whose bytes come back.
struct Connections(Vec<TcpStream>);

impl Connections {
    fn open(client: &Host, host: &Host) -> Connections {
        let open = |family: usize| {
            let address = SocketAddr::new(addresses(host)[family], 0);
            let listener = host.run_inside(|| TcpListener::bind(address).unwrap()).unwrap();
            let target = listener.local_addr().unwrap();
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut chunk = [0; 65_536];
                while let Ok(bytes) = stream.read(&mut chunk)
                    && bytes > 0
                {
                    stream.write_all(&chunk[..bytes]).unwrap();
                }
            });
            let stream = client.run_inside(|| TcpStream::connect(target).unwrap()).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        Connections(FAMILIES.map(open).into())
    }

    /// Sends bytes in each connection, and waits for them.
    #[track_caller]
    fn check(&mut self) {
        for stream in &mut self.0 {
            let sent = [7; 20_000];
            stream.write_all(&sent).unwrap();
            let mut received = [0; 20_000];
            stream.read_exact(&mut received).unwrap();
            assert_eq!(received, sent);
        }
    }
}

/// Whether an interface has an XDP program, according to `ip`.
fn has_program(scene: &Scene, interface: &str) -> bool {
    scene.run(&scene.a, &format!("ip link show dev {interface}")).contains("prog/xdp")
}

fn add_spare_interface(scene: &Scene) {
    scene.run(&scene.a, &format!("ip link add spare0 address {SPARE_MAC} type veth peer name spare1"));
    scene.run(&scene.a, "ip link set spare0 up");
    scene.run(&scene.a, "ip link set spare1 up");
}

#[test]
fn a_removed_filter_is_attached_again_and_detach_leaves_nothing() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface().to_owned();
    let mut connections = Connections::open(&scene.client, &scene.a);
    connections.check();
    let daemon = scene.start_daemon(&scene.a);
    connections.check();
    assert!(scene.has_filter(&scene.a, &interface) && has_program(&scene, &interface));
    for command in ["filter del dev IF egress", "qdisc del dev IF clsact"] {
        scene.run(&scene.a, &format!("tc {}", command.replace("IF", &interface)));
        eventually("the filter is attached again", || scene.has_filter(&scene.a, &interface));
        connections.check();
    }
    let log = daemon.stderr().unwrap();
    assert!(
        log.contains("another program has removed the filter") && log.contains("attached again"),
        "{log}"
    );
    // A filter of somebody else stays.
    let file = scene.scratch.path("bytecode");
    fs::write(&file, "1,6 0 0 0").unwrap();
    let other = format!("tc filter add dev {interface} egress prio 9 protocol all bpf bytecode-file {file}");
    scene.run(&scene.a, &other);
    terminate(daemon);
    connections.check();
    assert!(scene.has_filter(&scene.a, &interface), "the filter outlives the daemon");
    scene.detach(&scene.a);
    assert!(!scene.has_filter(&scene.a, &interface) && !has_program(&scene, &interface));
    let left = scene.run(&scene.a, &format!("tc filter show dev {interface} egress"));
    assert!(left.contains("pref 9 bpf"), "{left}");
    connections.check();
    scene.close();
}

#[test]
fn a_reload_moves_the_switch_to_another_interface_or_changes_nothing() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface().to_owned();
    let mut connections = Connections::open(&scene.client, &scene.a);
    let daemon = scene.start_daemon(&scene.a);
    add_spare_interface(&scene);
    let is_at = |name: &str| scene.has_filter(&scene.a, name) && has_program(&scene, name);
    let is_free = |name: &str| !scene.has_filter(&scene.a, name) && !has_program(&scene, name);

    scene.configure(&scene.a, "spare0", SPARE_MAC);
    scene.result(&scene.a, &["reload"]);
    assert!(is_at("spare0") && is_free(&interface));
    connections.check();
    scene.configure(&scene.a, &interface, Mac(scene.a.mac()));
    scene.result(&scene.a, &["reload"]);
    assert!(is_at(&interface) && is_free("spare0"));
    connections.check();

    // A file with a mistake, and one with another mode, in which the host cannot be a server.
    let text = fs::read_to_string(scene.config(&scene.a)).unwrap();
    let gateway = text
        .replace("mode = \"host\"", "mode = \"gateway\"")
        .replace("[[service]]", "[[port]]\ninterface = \"spare0\"\n[[service]]");
    let files = [
        (text.replace("a-at-a.key", "absent.key"), "absent.key"),
        (gateway, "an address of the switch itself"),
    ];
    for (file, expected) in files {
        fs::write(scene.config(&scene.a), file).unwrap();
        let refused = scene.command(&scene.a, &["reload"]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && stderr.contains(expected), "{stderr}");
        assert!(is_at(&interface) && is_free("spare0"));
        connections.check();
    }
    terminate(daemon);
    scene.close();
}

/// Numbers of the daemon's calls of bpf(2) at which it is killed: the first ones after it has attached the program, when its
/// port is closed still, and later ones, while the tables are written. `None`, with a message, without `strace`.
fn points_after_the_attachment(scene: &Scene) -> Option<Vec<usize>> {
    if !Path::new("/usr/bin/strace").exists() {
        eprintln!("skipped: killing the daemon between two calls needs strace");
        return None;
    }
    let calls = scene.scratch.path("calls");
    let wrapper = ["strace", "-f", "-qq", "-o", &calls, "-e", "trace=bpf"].map(str::to_owned);
    let daemon = scene.a.spawn(&scene.launch(&scene.a, &wrapper, &[])).unwrap();
    terminate(super::daemon::answering(daemon, &scene.socket(&scene.a)));
    let text = fs::read_to_string(calls).unwrap();
    // `strace` counts the calls of each thread, whose number is in front of the line.
    let thread = |call: &str| call.split_whitespace().next().map(str::to_owned);
    let main = thread(text.lines().next().expect("a call"));
    let calls: Vec<&str> = text.lines().filter(|call| thread(call) == main).collect();
    let attached = calls.iter().position(|call| call.contains("BPF_LINK_CREATE")).expect("a link is created");
    let later = calls.len() - attached - 1;
    assert!(later > 20, "{later} calls after the attachment");
    let points = [1, 2, 3, 4, 5, 6, 8, 12, 20].into_iter().chain([later / 2, later - 1]);
    Some(points.map(|point| attached + 1 + point).collect())
}

/// Starts a daemon that is killed at its n-th call of bpf(2).
fn start_and_kill(scene: &Scene, point: usize) {
    let inject = format!("inject=bpf:signal=KILL:when={point}");
    let wrapper =
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", &inject].map(str::to_owned);
    let mut daemon = scene.a.spawn(&scene.launch(&scene.a, &wrapper, &[])).unwrap();
    assert!(daemon.wait(PATIENCE).is_some_and(|ended| !ended.success()), "killed at call {point}");
}

#[test]
fn a_daemon_that_is_killed_while_it_starts_breaks_no_connection() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface().to_owned();
    let mut connections = Connections::open(&scene.client, &scene.a);
    let Some(points) = points_after_the_attachment(&scene) else { return };
    scene.detach(&scene.a);
    let mut attached = 0;
    for point in &points {
        start_and_kill(&scene, *point);
        attached += usize::from(has_program(&scene, &interface));
        connections.check();
        let daemon = scene.start_daemon(&scene.a);
        assert!(scene.has_filter(&scene.a, &interface) && has_program(&scene, &interface));
        connections.check();
        terminate(daemon);
        scene.detach(&scene.a);
    }
    assert!(attached >= points.len() - 1, "the program was attached when the daemon was killed: {attached}");
    scene.close();
}

/// As above, when pins exist, and the file has another interface now.
#[test]
fn a_daemon_that_is_killed_while_it_changes_the_interface_breaks_no_connection() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface().to_owned();
    add_spare_interface(&scene);
    let mut connections = Connections::open(&scene.client, &scene.a);
    terminate(scene.start_daemon(&scene.a));
    scene.configure(&scene.a, "spare0", SPARE_MAC);
    let Some(points) = points_after_the_attachment(&scene) else { return };
    for (number, point) in points.into_iter().enumerate() {
        // The interface changes to the other one, and back.
        let (name, mac) = match number % 2 {
            0 => (interface.as_str(), Mac(scene.a.mac())),
            _ => ("spare0", SPARE_MAC),
        };
        scene.configure(&scene.a, name, mac);
        start_and_kill(&scene, point);
        connections.check();
        let daemon = scene.start_daemon(&scene.a);
        for other in [interface.as_str(), "spare0"] {
            assert_eq!(scene.has_filter(&scene.a, other), other == name, "filter at {other}, call {point}");
            assert_eq!(has_program(&scene, other), other == name, "program at {other}, call {point}");
        }
        connections.check();
        terminate(daemon);
    }
    scene.close();
}

/// Reloads that are interrupted by the end of the daemon.
const KILLED_RELOADS: u64 = 12;

/// Applies the file of `a`, and kills the daemon at a random time of the reload. `took`: the duration of a whole reload. Returns
/// whether the reload had ended.
fn reload_and_kill(scene: &Scene, daemon: &mut Process, took: Duration) -> bool {
    let socket = scene.socket(&scene.a);
    let mut reload = Command::new(SPILLWAY)
        .args(["reload", "--socket", &socket])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let delay = took.mul_f64(RandomState::new().hash_one(0) as f64 / u64::MAX as f64);
    println!("killed {delay:?} after the beginning of a reload of {took:?}");
    thread::sleep(delay);
    daemon.kill();
    reload.wait().unwrap().success()
}

/// The duration of a whole reload.
fn reload(scene: &Scene) -> Duration {
    let began = Instant::now();
    scene.result(&scene.a, &["reload"]);
    began.elapsed()
}

#[test]
fn a_daemon_that_is_killed_during_a_reload_loses_no_flow() {
    let Some(scene) = Scene::start() else { return };
    let other = scene.start_daemon(&scene.b);
    let plain = fs::read_to_string(scene.config(&scene.a)).unwrap();
    // Without agents that send heartbeats all the time.
    let plain = plain.replace("[[port]]", "owner_timeout = \"600s\"\n[[port]]");
    // Numbers of services, endpoints and stations are given anew, and other keys change.
    let service = scene.service(0).ip();
    let endpoint = format!("endpoints = [{{ address = \"{service}:9\", server = \"a\" }}]");
    let changed = plain
        .replace("[[service]]", &format!("[[service]]\nname = \"another\"\n{endpoint}\n[[service]]"))
        .replace("600s", "500s")
        .replace("may_own = [\"cache\"]", "may_own = [\"another\", \"cache\"]")
        .replace("name = \"cache\"", "name = \"cache\"\nflows_max = 100");
    assert_eq!(changed.matches("another").count(), 2);
    fs::write(scene.config(&scene.a), &plain).unwrap();
    let mut daemon = scene.start_daemon(&scene.a);
    let _memcached = memcached(&scene.b, scene.place(0).port());
    let mut connections = Connections::open(&scene.client, &scene.a);
    let mut agents = scene.agents(0);
    let source = free_address(&scene.client, 0);
    scene.move_rule(&mut agents, source, 0);
    let mut moved = connect_from(&scene.client, source, scene.service(0));
    exchange(&mut moved, b"set key 0 0 5\r\nvalue\r\n", b"STORED\r\n");
    let (pins, took) = (scene.pins(&scene.a), reload(&scene));
    let mut ended = 0;
    for round in 0..KILLED_RELOADS {
        let is_plain = round % 2 == 1;
        fs::write(scene.config(&scene.a), if is_plain { &plain } else { &changed }).unwrap();
        ended += u64::from(reload_and_kill(&scene, &mut daemon, took));
        // Whatever part of the tables is written, the flow's packets go to its owner.
        exchange(&mut moved, b"get key\r\n", b"\r\nEND\r\n");
        connections.check();
        daemon = scene.start_daemon(&scene.a);
        exchange(&mut moved, b"get key\r\n", b"\r\nEND\r\n");
        connections.check();
        let flows = scene.result(&scene.a, &["flows"]);
        assert_eq!(
            (&flows["total"], &flows["flows"][0]["owner"]["server"]),
            (&json!(1), &json!("b")),
            "{flows}"
        );
        let status = scene.result(&scene.a, &["status"]);
        let services = if is_plain { 1 } else { 2 };
        assert_eq!(status["services"].as_array().map(Vec::len), Some(services), "{status}");
        assert_eq!(
            (&status["unrestored"], &status["ports"][0]["problem"]),
            (&json!(null), &json!(null)),
            "{status}"
        );
        assert!(scene.has_filter(&scene.a, scene.a.interface()) && has_program(&scene, scene.a.interface()));
        assert_eq!(scene.pins(&scene.a), pins);
    }
    println!("{ended} of {KILLED_RELOADS} reloads had ended before");
    assert_eq!(scene.packets(&scene.a, "drop_not_owner"), 0);
    terminate(daemon);
    terminate(other);
    scene.close();
}

#[test]
fn a_daemon_that_is_killed_during_a_reload_to_another_interface_leaves_no_program_behind() {
    let Some(scene) = Scene::start() else { return };
    let interface = scene.a.interface().to_owned();
    add_spare_interface(&scene);
    let mut connections = Connections::open(&scene.client, &scene.a);
    let mut daemon = scene.start_daemon(&scene.a);
    let (pins, took) = (scene.pins(&scene.a), reload(&scene));
    for round in 0..KILLED_RELOADS {
        let (name, mac) = match round % 2 {
            0 => ("spare0", SPARE_MAC),
            _ => (interface.as_str(), Mac(scene.a.mac())),
        };
        scene.configure(&scene.a, name, mac);
        // The kernel removes a program some milliseconds later.
        reload_and_kill(&scene, &mut daemon, took * 2);
        connections.check();
        daemon = scene.start_daemon(&scene.a);
        for other in [interface.as_str(), "spare0"] {
            assert_eq!(scene.has_filter(&scene.a, other), other == name, "filter at {other}");
            assert_eq!(has_program(&scene, other), other == name, "program at {other}");
        }
        assert_eq!(scene.pins(&scene.a), pins);
        connections.check();
    }
    terminate(daemon);
    scene.close();
}
