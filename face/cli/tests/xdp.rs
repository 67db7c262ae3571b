//! A helper process on the user-level TCP stack (engine `xdp`), on a host whose kernel has TCP and UDP traffic of its
//! own. Skipped without root.

mod support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use spillway_bpf::attached_program;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Host, HostOptions, Lab, Launch, Place, Process, unavailable};
use support::{Client, PATIENCE, SPILLWAY, Scratch, SetOnDrop, eventually};

const HUP: i32 = 1;
const INT: i32 = 2;
const TERM: i32 = 15;

/// The interface at the helper's end of the veth pair.
const HELPER_END: &str = "helper0";
/// The interface at the other end of the veth pair, on the host of the clients and the server.
const PEERS_END: &str = "peers0";
const HELPER: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 2);
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 1);
/// Differs from the clients' address, because a server refuses clients whose address is the server's own.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 3);
/// The helper's port for plain clients.
const PORT: u16 = 11211;
/// The port of echo servers on kernel sockets of the helper's host.
const ECHO_PORT: u16 = 8000;
/// The user and the group `nobody`.
const NOBODY: u32 = 65_534;

/// A memcached under `spillway run` on the host `peers`, connected by a veth pair to the host `helper`.
struct Scene {
    lab: Lab,
    helper: Host,
    peers: Host,
    _server: Peer,
    scratch: Scratch,
}

impl Scene {
    /// Returns `None` and prints the reason if network namespaces cannot be created.
    fn start() -> Option<Scene> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if let Some(reason) = unavailable() {
            eprintln!("skipped: {reason}");
            return None;
        }
        let lab = Lab::new(&format!("cli-xdp-{}", NUMBER.fetch_add(1, Ordering::Relaxed))).unwrap();
        let host = |name| lab.host(name, HostOptions::default()).unwrap();
        let (helper, peers) = (host("helper"), host("peers"));
        let namespace = peers.namespace();
        run(&helper, &format!("ip link add {HELPER_END} type veth peer name {PEERS_END} netns {namespace}"));
        for (host, interface, address) in
            [(&helper, HELPER_END, HELPER), (&peers, PEERS_END, CLIENTS), (&peers, PEERS_END, SERVER)]
        {
            run(host, &format!("ethtool -K {interface} tx off tso off gro on"));
            run(host, &format!("ip addr add {address}/24 dev {interface}"));
            run(host, &format!("ip link set {interface} up"));
        }
        let scratch = Scratch::new();
        let (key, _) = scratch.key("helper.key");
        let link = SocketAddr::from((SERVER, 11411)).to_string();
        let wrapper = [SPILLWAY, "run", "--link", &link, "--key", &key, "--require", "--"];
        let server = Memcached::default().wrapper(wrapper).start(&Place::Host(peers.clone())).unwrap();
        Some(Scene { lab, helper, peers, _server: server, scratch })
    }

    /// Writes the helper's configuration file and returns its path. `helper` is appended to the section `[helper]`,
    /// `more_listen` to the list `listen`.
    fn configure(&self, helper: &str, more_listen: &str) -> String {
        let path = self.scratch.path("helper.toml");
        let text = format!(
            "[helper]\nengine = \"xdp\"\ninterface = \"{HELPER_END}\"\nsocket = \"{}\"\n{helper}\n[service.cache]\n\
             server = \"{SERVER}:11411\"\nlisten = [\"{HELPER}:{PORT}\"{more_listen}]\nkey_files = [\"helper.key\"]\n",
            self.scratch.path("helper.sock")
        );
        fs::write(&path, text).unwrap();
        path
    }

    fn start_helper(&self) -> Process {
        let launch = Launch::new(SPILLWAY).name("helper");
        self.helper.spawn(&launch.args(["helper", "--config", &self.scratch.path("helper.toml")])).unwrap()
    }

    /// Connects a client on the host `peers` to the helper. `None` if the connection fails.
    fn client(&self) -> Option<Client> {
        self.peers.run_inside(|| Client::try_new((HELPER, PORT).into())).unwrap()
    }

    fn await_served(&self, helper: &mut Process) {
        eventually("the helper serves", || {
            assert!(helper.exit_status().is_none(), "{}", helper.stderr().unwrap());
            self.client().is_some_and(|mut client| client.version().is_some())
        });
    }

    fn status(&self) -> Option<Value> {
        let output = std::process::Command::new(SPILLWAY)
            .args(["status", "--json", "--socket", &self.scratch.path("helper.sock")])
            .output()
            .unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Number of messages that the running helper has sent to the server; 0 if no helper runs.
    fn messages(&self) -> u64 {
        let status = self.status().unwrap_or_default();
        status["services"][0]["messages_sent"].as_u64().unwrap_or(0)
    }

    /// Starts a load generator through the helper. It continues after connections are reset (`--allow-resets`).
    fn load(&self, arguments: &[&str]) -> Process {
        let (port, report) = (format!("{HELPER}:{PORT}"), self.scratch.path("load.json"));
        let launch = Launch::new(SPILLWAY)
            .args([
                "load",
                "--server",
                &port,
                "-d",
                "0s",
                "--keys",
                "500",
                "--allow-resets",
                "--json",
                &report,
            ])
            .args(arguments);
        self.peers.spawn(&launch).unwrap()
    }

    /// Stops the load generator and returns its totals. Asserts that no reply was wrong and that at most one request
    /// was lost for each reset connection.
    fn totals(&self, mut load: Process) -> Value {
        load.signal(INT).unwrap();
        let status = load.wait(PATIENCE).expect("exit status");
        let printed = load.stdout().unwrap() + &load.stderr().unwrap();
        let report: Value =
            serde_json::from_slice(&fs::read(self.scratch.path("load.json")).unwrap()).unwrap();
        let total = &report["total"];
        let count = |name: &str| total[name].as_u64().unwrap();
        assert_eq!(count("wrong"), 0, "{status}: {printed}");
        assert!(count("answered") > 0 && count("lost") <= count("resets"), "{status}: {printed}");
        total.clone()
    }

    fn close(self) {
        self.lab.close().unwrap();
    }
}

fn run(host: &Host, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{line}: {}", process.stderr().unwrap());
}

/// Runs the command `spillway` on a host and waits until it exits. Returns whether it succeeded, and its output.
fn spillway(host: &Host, arguments: &[&str]) -> (bool, String) {
    let mut process = host.spawn(&Launch::new(SPILLWAY).args(arguments)).unwrap();
    let is_success = process.wait(PATIENCE).expect("the command should end").success();
    (is_success, process.stdout().unwrap() + &process.stderr().unwrap())
}

/// Starts a TCP and a UDP echo server on kernel sockets of the helper's host. They run until the test process exits.
fn start_kernel_echo(host: &Host) {
    let bind = || {
        let address = (HELPER, ECHO_PORT);
        (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap())
    };
    let (listener, datagrams) = host.run_inside(bind).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..length], from);
        }
    });
}

/// Exchanges messages with the TCP echo server until `stop`. Returns their number.
fn exchange(mut stream: &TcpStream, stop: &AtomicBool) -> u64 {
    let (mut messages, mut answer) = (0_u64, [0; 8]);
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&messages.to_be_bytes()).expect("TCP of the kernel");
        stream.read_exact(&mut answer).expect("TCP of the kernel");
        assert_eq!(u64::from_be_bytes(answer), messages);
        messages += 1;
    }
    messages
}

/// Exchanges datagrams with the UDP echo server until `stop`, each under the lock `in_flight`. Returns their number.
fn exchange_datagrams(socket: &UdpSocket, in_flight: &Mutex<()>, stop: &AtomicBool) -> u64 {
    let (mut messages, mut answer) = (0_u64, [0; 8]);
    while !stop.load(Ordering::Relaxed) {
        // Gives `resolve_and_ping` time to take the lock.
        std::thread::sleep(Duration::from_micros(100));
        let _in_flight = in_flight.lock().unwrap();
        socket.send_to(&messages.to_be_bytes(), (HELPER, ECHO_PORT)).unwrap();
        socket.recv(&mut answer).expect("UDP of the kernel lost a datagram");
        assert_eq!(u64::from_be_bytes(answer), messages);
        messages += 1;
    }
    messages
}

/// Flushes the ARP entry of the helper's host and pings the host, in a loop until `stop`. Holds the lock `in_flight`
/// while flushing: flushing a neighbour drops the packets that wait for its resolution. Returns the number of rounds.
fn resolve_and_ping(host: &Host, in_flight: &Mutex<()>, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let no_datagram = in_flight.lock().unwrap();
        run(host, &format!("ip neigh flush dev {PEERS_END}"));
        drop(no_datagram);
        // Ten echo requests; each must be answered.
        let line = format!("ping -c 10 -i 0.005 -W 20 {HELPER}");
        let words: Vec<_> = line.split(' ').collect();
        let mut ping = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
        assert!(ping.wait(PATIENCE).unwrap().success());
        let printed = ping.stdout().unwrap();
        assert!(printed.contains(" 0% packet loss"), "{printed}");
        rounds += 1;
    }
    rounds
}

#[test]
fn the_kernels_traffic_is_undisturbed_while_a_helper_starts_reloads_and_is_killed() {
    let Some(scene) = Scene::start() else { return };
    start_kernel_echo(&scene.helper);
    let connect = || {
        let stream = TcpStream::connect((HELPER, ECHO_PORT)).unwrap();
        let datagrams = UdpSocket::bind((CLIENTS, 0)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
        (stream, datagrams)
    };
    let (stream, datagrams) = scene.peers.run_inside(connect).unwrap();
    let (is_over, in_flight) = (AtomicBool::new(false), Mutex::new(()));
    std::thread::scope(|scope| {
        let tcp = scope.spawn(|| exchange(&stream, &is_over));
        let udp = scope.spawn(|| exchange_datagrams(&datagrams, &in_flight, &is_over));
        let ping = scope.spawn(|| resolve_and_ping(&scene.peers, &in_flight, &is_over));
        let end = SetOnDrop(&is_over);

        scene.configure("threads = 1", "");
        let mut helper = scene.start_helper();
        scene.await_served(&mut helper);
        let load = scene.load(&["-c", "50", "--rate", "1500"]);
        eventually("requests", || scene.messages() > 1_000);

        // Add a listener by a reload, then remove the listener by another reload.
        scene.configure("threads = 1", &format!(", \"{HELPER}:11212\""));
        helper.signal(HUP).unwrap();
        eventually("the new listener serves", || {
            let client = scene.peers.run_inside(|| Client::try_new((HELPER, 11212).into())).unwrap();
            client.is_some_and(|mut client| client.version().is_some())
        });
        scene.configure("threads = 1", "");
        helper.signal(HUP).unwrap();
        eventually("the kernel refuses there again", || {
            let refused = scene.peers.run_inside(|| TcpStream::connect((HELPER, 11212))).unwrap();
            refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });

        helper.kill();
        let program = || scene.helper.run_inside(|| attached_program(HELPER_END).unwrap()).unwrap();
        eventually("the kernel has detached the program", || program().is_none());
        let refused = scene.peers.run_inside(|| TcpStream::connect((HELPER, PORT))).unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut helper = scene.start_helper();
        scene.await_served(&mut helper);
        eventually("requests after the restart", || scene.messages() > 1_000);
        let totals = scene.totals(load);
        assert!(totals["resets"].as_u64().unwrap() >= 50, "{totals}");

        helper.signal(TERM).unwrap();
        assert!(
            helper.wait(PATIENCE).expect("the helper should end").success(),
            "{}",
            helper.stderr().unwrap()
        );
        assert_eq!(program(), None);
        drop(end);
        let [tcp, udp, ping] = [tcp.join(), udp.join(), ping.join()].map(Result::unwrap);
        assert!(tcp > 100 && udp > 100 && ping > 5, "{tcp} by TCP, {udp} by UDP, {ping} rounds of ping");
    });
    scene.close();
}

/// The new process finds the queue still bound by its predecessor's socket, which the kernel releases after a while.
#[test]
fn a_helper_killed_at_full_load_is_restarted_at_once() {
    let Some(scene) = Scene::start() else { return };
    scene.configure("threads = 1", "");
    let mut helper = scene.start_helper();
    scene.await_served(&mut helper);
    let load = scene.load(&["-c", "200", "--closed"]);
    for _ in 0..4 {
        eventually("many requests", || scene.messages() > 10_000);
        helper.kill();
        helper = scene.start_helper();
        scene.await_served(&mut helper);
    }
    eventually("many requests", || scene.messages() > 10_000);
    let totals = scene.totals(load);
    assert!(totals["resets"].as_u64().unwrap() >= 4 * 200, "{totals}");
    scene.close();
}

#[test]
fn three_capabilities_suffice_for_a_helper() {
    let Some(scene) = Scene::start() else { return };
    // Few frames, because RLIMIT_MEMLOCK limits a process without CAP_IPC_LOCK.
    scene.configure("threads = 1\nxdp.frames = 256", "");
    // Runs a copy of the program, because the user `nobody` may have no access to the build directory.
    let program = scene.scratch.path("spillway");
    fs::copy(SPILLWAY, &program).unwrap();
    fs::set_permissions(scene.scratch.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for file in ["", "helper.key"] {
        std::os::unix::fs::chown(scene.scratch.path(file), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let three = "-all,+net_admin,+net_raw,+bpf";
    let [inheritable, ambient, bounding] =
        ["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}={three}"));
    let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
    let wrapper = ["setpriv".to_owned()].into_iter().chain(user).chain([inheritable, ambient, bounding]);
    let launch = Launch::new(&program).name("helper");
    let launch = launch.args(["helper", "--config", &scene.scratch.path("helper.toml")]).wrapper(wrapper);
    let mut helper = scene.helper.spawn(&launch).unwrap();
    scene.await_served(&mut helper);
    let capabilities = |of: &str| {
        let status = fs::read_to_string(format!("/proc/{}/{of}/status", helper.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("capabilities");
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let of = |number: u64| 1_u64 << number;
    let (net_admin, bpf) = (of(12), of(39));
    for task in fs::read_dir(format!("/proc/{}/task", helper.pid())).unwrap().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        let of_task = capabilities(&format!("task/{}", task.file_name().to_str().unwrap()));
        let expected = if matches!(name.trim(), "log" | "notices" | "signals" | "history") {
            0
        } else {
            net_admin | bpf
        };
        assert_eq!(of_task, expected, "thread {name}: none reads packets of others");
    }
    scene.close();
}

#[test]
fn partial_checksums_are_logged_once_with_the_command() {
    let Some(scene) = Scene::start() else { return };
    scene.configure("threads = 1", "");
    let mut helper = scene.start_helper();
    scene.await_served(&mut helper);
    run(&scene.peers, &format!("ethtool -K {PEERS_END} tx on"));
    let hint = "ethtool -K INTERFACE tx off tso off";
    eventually("the hint", || {
        // The SYN's partial checksum is refused, so the connection attempt times out.
        let target = (HELPER, PORT).into();
        let brief = Duration::from_millis(50);
        let _ = scene.peers.run_inside(|| TcpStream::connect_timeout(&target, brief)).unwrap();
        helper.stderr().unwrap().contains(hint)
    });
    run(&scene.peers, &format!("ethtool -K {PEERS_END} tx off tso off"));
    scene.await_served(&mut helper);
    assert_eq!(helper.stderr().unwrap().matches(hint).count(), 1);
    scene.close();
}

#[test]
fn a_helper_whose_interface_goes_away_ends_with_the_reason() {
    let Some(scene) = Scene::start() else { return };
    scene.configure("threads = 1", "");
    let mut helper = scene.start_helper();
    scene.await_served(&mut helper);
    run(&scene.helper, &format!("ip link del {HELPER_END}"));
    let status = helper.wait(PATIENCE).expect("the helper should end");
    let printed = helper.stderr().unwrap();
    assert!(!status.success(), "the service manager restarts only a helper that failed: {printed}");
    assert!(printed.contains("interface helper0 was removed"), "{printed}");
    scene.close();
}

#[test]
fn mistakes_that_this_host_shows_have_line_and_column() {
    let Some(scene) = Scene::start() else { return };
    let check = |helper: &str, more_listen: &str| {
        let path = scene.configure(helper, more_listen);
        let result = spillway(&scene.helper, &["check", &path]);
        (result, path)
    };
    let ((is_fine, printed), _) = check("", "");
    assert!(is_fine, "{printed}");
    let taken = "xdp.ports = \"30000-30999\"";
    let foreign = ", \"10.79.2.99:1\"";
    for (helper, more_listen, expected) in [
        (taken, "", "5:13: the kernel may use the local ports 30000 to 30999"),
        ("", foreign, "8:30: interface helper0 does not have this address; it has 10.79.2.2"),
    ] {
        let ((is_fine, printed), path) = check(helper, more_listen);
        assert!(!is_fine && printed.starts_with(&format!("{path}:{expected}")), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        // A helper that starts with this file reports the same error.
        let mut helper = scene.start_helper();
        assert!(!helper.wait(PATIENCE).expect("the helper should end").success());
        assert!(helper.stderr().unwrap().contains(expected), "{}", helper.stderr().unwrap());
        // Without reading this host's state, the check finds no error.
        let (is_fine, printed) = spillway(&scene.helper, &["check", "--without-keys", &path]);
        assert!(is_fine, "{printed}");
    }
    scene.configure("", "");
    for (change, expected) in [
        ("ip link set helper0 down", "3:13: interface helper0 is down: `ip link set helper0 up`"),
        ("ip link del helper0", "3:13: interface helper0: cannot be found"),
    ] {
        run(&scene.helper, change);
        let (is_fine, printed) = spillway(&scene.helper, &["check", &scene.scratch.path("helper.toml")]);
        assert!(!is_fine && printed.contains(expected), "{printed}");
    }
    scene.close();
}

#[test]
fn doctor_finds_a_host_fit_for_the_engine_and_names_what_is_missing() {
    let Some(scene) = Scene::start() else { return };
    let doctor = || spillway(&scene.helper, &["doctor", "--engine", "xdp", "--interface", HELPER_END]);
    let (is_fit, printed) = doctor();
    assert!(is_fit, "{printed}");
    scene.configure("threads = 1", "");
    let mut helper = scene.start_helper();
    scene.await_served(&mut helper);
    let (is_fit, printed) = doctor();
    assert!(!is_fit && printed.contains("bpftool prog show id"), "{printed}");
    drop(helper);
    let widen = || fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535").unwrap();
    scene.helper.run_inside(widen).unwrap();
    let (is_fit, printed) = doctor();
    assert!(!is_fit && printed.contains("sysctl -w net.ipv4.ip_local_reserved_ports="), "{printed}");
    scene.close();
}

#[test]
fn operators_see_and_drain_the_clients_of_the_stack() {
    let Some(scene) = Scene::start() else { return };
    scene.configure("threads = 1\nname = \"here\"", "");
    let mut helper = scene.start_helper();
    scene.await_served(&mut helper);
    let mut client = scene.client().expect("a client");
    client.set("key", b"value");
    let socket = scene.scratch.path("helper.sock");
    let command = |arguments: &[&str]| spillway(&scene.helper, &[arguments, &["--socket", &socket]].concat());
    let from = client.stream().local_addr().unwrap().to_string();
    for (arguments, expected) in [
        (&["status"][..], "engine xdp on helper0"),
        (&["connections", "cache"], &from),
        (&["top", "--once", "--interval", "100ms"], "cache"),
        (&["relief", "cache", "off", "--for", "1ms"], ""),
    ] {
        let (is_success, printed) = command(arguments);
        assert!(is_success && printed.contains(expected), "{arguments:?}: {printed}");
    }
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    let (is_success, printed) = command(&["drain", "here", "--deadline", "100ms", "--wait"]);
    assert!(!is_success, "a client was reset: {printed}");
    assert!(client.ended());
    scene.close();
}

/// Runs without root, unlike the other tests of this file.
#[test]
fn the_engine_auto_falls_back_and_says_why() {
    let scratch = Scratch::new();
    let place = Place::local().unwrap();
    for (interface, reason) in [
        (&[][..], "the engine xdp needs the network interface that it uses"),
        (&["--interface", "lo"], "the user-level stack needs an Ethernet interface"),
    ] {
        let launch = Launch::new(SPILLWAY)
            .name("helper")
            .args(["helper", "--service", "cache=192.0.2.5:11411", "--listen", "192.0.2.9:11211"])
            .args(["--key", &scratch.key(&format!("{}.key", interface.len())).0, "--engine", "auto"])
            .args(interface);
        // The helper also fails on kernel sockets, because 192.0.2.9 is not an address of this host.
        let mut helper = place.spawn(&launch).unwrap();
        helper.wait(PATIENCE).expect("the helper should end");
        let printed = helper.stderr().unwrap();
        let choice = "engine auto: kernel sockets, because xdp is not possible: ";
        let line = printed.lines().find(|line| line.contains(choice));
        assert!(line.is_some_and(|line| line.contains(reason)), "{printed}");
    }
}

#[test]
fn a_helper_does_not_take_an_address_that_another_host_has() {
    const OWN: Ipv4Addr = Ipv4Addr::new(10, 79, 2, 9);
    let Some(scene) = Scene::start() else { return };
    let path = scene.configure(&format!("threads = 1\nxdp.address = \"{OWN}/24\""), "");
    let text = fs::read_to_string(&path).unwrap().replace(&format!("\"{HELPER}:"), &format!("\"{OWN}:"));
    fs::write(&path, text).unwrap();
    run(&scene.peers, &format!("ip addr add {OWN}/32 dev {PEERS_END}"));
    let mut helper = scene.start_helper();
    let status = helper.wait(PATIENCE).expect("the helper should end");
    let printed = helper.stderr().unwrap();
    assert!(
        !status.success() && printed.contains(&format!("has the address {OWN}, which is to be")),
        "{printed}"
    );
    run(&scene.peers, &format!("ip addr del {OWN}/32 dev {PEERS_END}"));
    let mut helper = scene.start_helper();
    eventually("the helper serves", || {
        assert!(helper.exit_status().is_none(), "{}", helper.stderr().unwrap());
        let client = scene.peers.run_inside(|| Client::try_new((OWN, PORT).into())).unwrap();
        client.is_some_and(|mut client| client.version().is_some())
    });
    helper.signal(TERM).unwrap();
    assert!(helper.wait(PATIENCE).expect("the helper should end").success());
    scene.close();
}
