//! A helper process on the user-level TCP stack (engine `xdp`), on a host whose kernel has TCP and UDP traffic of its
//! own. Skipped without root.

#[path = "xdp/kernel_traffic.rs"]
mod kernel_traffic;
#[path = "xdp/scene.rs"]
mod scene;
mod support;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use scene::{HELPER, HELPER_END, PEERS_END, PORT, Scene, run, spillway};
use spillway_lab::{Launch, Place};
use support::{Client, PATIENCE, SPILLWAY, Scratch, eventually};

const HUP: i32 = 1;
const TERM: i32 = 15;
/// The user and the group `nobody`.
const NOBODY: u32 = 65_534;

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
    scene.configure("threads = 1\nmetrics = \"127.0.0.1:0\"\nxdp.frames = 256", "");
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
        let expected = if matches!(name.trim(), "http" | "log" | "notices" | "signals" | "history") {
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
        (&["--interface", "lo"], "not an Ethernet interface: choose one"),
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
