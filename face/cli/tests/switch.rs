//! A switch process between the hosts of a client and two servers: traffic, flows, restarts, privileges. Skipped without
//! root.

#[path = "switch/changes.rs"]
mod changes;
#[path = "switch/daemon.rs"]
mod daemon;
#[path = "switch/datagrams.rs"]
mod datagrams;
#[path = "switch/directory.rs"]
mod directory;
#[path = "switch/interfaces.rs"]
mod interfaces;
#[path = "switch/lab.rs"]
mod lab;
#[path = "switch/rule.rs"]
mod rule;
#[path = "switch/scene.rs"]
mod scene;
#[path = "switch/script.rs"]
mod script;
mod support;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use daemon::terminate;
use datagrams::Stream;
use scene::Scene;
use serde_json::json;
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Agent, Host, Launch, Place};
use support::{Client, PATIENCE, SPILLWAY, eventually, value_of};

/// The user and the group `nobody`.
const NOBODY: u32 = 65_534;

fn memcached(scene: &Scene) -> Peer {
    Memcached::default().port(scene::SERVICE_PORT).start(&Place::Host(scene.a.clone())).unwrap()
}

fn connect(host: &Host, address: SocketAddr) -> Client {
    host.run_inside(|| Client::new(address)).unwrap()
}

/// Makes both servers owners of the service.
fn say_hello(scene: &Scene, agents: &mut [Agent; 2]) {
    rule::say_hello(agents, scene.service().into());
}

/// Moves the rule of a connection to server `b`.
fn move_rule(scene: &Scene, agents: &mut [Agent; 2], client: SocketAddr) -> u64 {
    rule::move_rule(agents, scene.flow(client), scene.place())
}

/// Opens a connection, makes both servers owners, and moves the rule of the connection to server `b`.
fn connect_and_move_rule(scene: &Scene) -> (Client, [Agent; 2]) {
    let client = connect(&scene.client, scene.service());
    let mut agents = scene.agents();
    say_hello(scene, &mut agents);
    move_rule(scene, &mut agents, client.stream().local_addr().unwrap());
    (client, agents)
}

#[test]
fn traffic_crosses_the_switch_and_flows_are_shown_and_cleared() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    let large = value_of("large", 500_000);
    client.set("large", &large);
    assert_eq!(client.get("large"), Some(large));
    assert_eq!(scene.result(&["flows"]), json!({ "total": 0, "flows": [] }));

    let mut agents = scene.agents();
    say_hello(&scene, &mut agents);
    let address = client.stream().local_addr().unwrap();
    let generation = move_rule(&scene, &mut agents, address);
    let listed = scene.result(&["flows", "--service", "cache", "--client", &address.to_string()]);
    assert_eq!(listed["total"], 1, "{listed}");
    let flow = &listed["flows"][0];
    assert_eq!(flow["client"], address.to_string());
    assert_eq!(
        (&flow["state"], &flow["owner"]["server"], &flow["original"]["server"], &flow["generation"]),
        (&json!("owned"), &json!("b"), &json!("a"), &json!(generation))
    );
    let line = scene.command(&["flows"]);
    let line = String::from_utf8_lossy(&line.stdout).into_owned();
    assert!(
        line.starts_with(&format!("service=cache client={address} ")) && line.contains(" owner=b@"),
        "{line}"
    );
    assert_eq!(scene.result(&["flows", "--client", "192.0.2.1"])["total"], 0);
    let unknown = scene.command(&["flows", "--service", "web"]);
    let stderr = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && stderr.contains("there are: cache"), "{stderr}");

    // The connection itself has stayed at `a`, and continues there without the rule.
    assert_eq!(
        scene.result(&["flows", "clear", "--client", &address.to_string()]),
        json!({ "cleared": 1, "changed": 0 })
    );
    client.set("small", b"value");
    assert_eq!(client.get("small").as_deref(), Some(&b"value"[..]));
    eventually("status of the servers and packets", || {
        let status = scene.result(&["status"]);
        let alive = status["servers"].as_array().unwrap().iter().filter(|server| server["load"] == 5).count();
        alive == 2 && status["packets"]["switched"].as_u64().unwrap() > 100 && status["flows"]["owned"] == 0
    });
    terminate(daemon);
    scene.close();
}

/// A server that does not know the connection resets it; the daemon then removes the entry.
#[test]
fn entries_of_reset_connections_are_swept() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    assert!(client.version().is_some());
    let mut agents = scene.agents();
    say_hello(&scene, &mut agents);
    move_rule(&scene, &mut agents, client.stream().local_addr().unwrap());
    client.send(b"version\r\n");
    assert!(client.ended(), "the server without the connection should reset it");
    eventually("the entry is swept", || {
        // The servers' heartbeats keep the flow at `b` until the entry ends.
        send_heartbeats(&scene, &mut agents);
        let status = scene.result(&["status"]);
        status["flows"]["swept"] == 1 && status["flows"]["owned"] == 0
    });
    assert_eq!(scene.result(&["flows"])["total"], 0);
    terminate(daemon);
    scene.close();
}

fn send_heartbeats(scene: &Scene, agents: &mut [Agent; 2]) {
    rule::send_heartbeats(agents, scene.service().into());
}

#[test]
fn a_restart_of_the_daemon_loses_no_packet_and_no_flow() {
    let Some(scene) = Scene::start(0) else { return };
    let mut daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    client.set("key", b"value");
    let (_other, mut agents) = connect_and_move_rule(&scene);
    let before = scene.result(&["status"]);

    let stream = Stream::start(&scene.client, &scene.a);
    let restarts = 20;
    for restart in 0..restarts {
        // Half of the daemons are killed, the others end in order.
        if restart % 2 == 0 {
            daemon.kill()
        } else {
            terminate(daemon)
        }
        // Control messages are answered without a daemon.
        send_heartbeats(&scene, &mut agents);
        assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
        daemon = scene.start_daemon();
        assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    }
    let counts = stream.stop();
    assert!(counts.sent > 300, "{counts:?}");
    assert_eq!(counts.received, counts.sent, "every datagram should arrive over {restarts} restarts");
    send_heartbeats(&scene, &mut agents);
    assert_eq!(scene.result(&["flows"])["total"], 1, "the flow should outlive the daemons");
    let after = scene.result(&["status"]);
    assert_eq!(after["epoch"], before["epoch"]);
    assert_ne!(after["pid"], before["pid"]);
    assert!(after["packets"]["switched"].as_u64() > before["packets"]["switched"].as_u64(), "{after}");
    terminate(daemon);

    // A table keeps its size as long as its pins.
    scene.configure("flows_max = 9", "");
    let daemon = scene.start_daemon();
    assert_eq!(scene.result(&["status"])["flows"]["max"], before["flows"]["max"]);
    let log = daemon.stderr().unwrap();
    assert!(log.contains("room for 131072 flows") && log.contains("--detach"), "{log}");
    terminate(daemon);

    // Without its pins the switch forwards nothing.
    let detach = scene.launch(SPILLWAY, &[], &["switch", "--config", &scene.config(), "--detach"]);
    let mut detach = scene.switch.spawn(&detach).unwrap();
    assert!(detach.wait(PATIENCE).is_some_and(|status| status.success()), "{}", detach.last_output());
    let refused = scene
        .client
        .run_inside(|| TcpStream::connect_timeout(&scene.service(), Duration::from_millis(500)).is_err());
    assert!(refused.unwrap());
    scene.close();
}

/// The load generator checks every byte of every reply.
#[test]
fn curl_and_the_load_generator_lose_nothing_over_restarts() {
    let Some(scene) = Scene::start(0) else { return };
    let mut daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let (page, report) = (scene.scratch.path("page.txt"), scene.scratch.path("load.json"));
    fs::write(&page, value_of("page", 1 << 20)).unwrap();
    let directory = scene.scratch.path("");
    let bind = scene.a.address().to_string();
    let arguments = ["-m", "http.server", "8080", "--bind", &bind, "--directory", &directory];
    let _web = scene.a.spawn(&Launch::new("python3").args(arguments)).unwrap();
    let reaches_web =
        || scene.a.run_inside(|| TcpStream::connect((scene.a.address(), 8080)).is_ok()).unwrap();
    eventually("the web server listens", reaches_web);

    let server = scene.service().to_string();
    let load = ["load", "--server", &server, "-c", "50", "-d", "3s", "--keys", "500", "--json", &report];
    let mut load = scene.client.spawn(&Launch::new(SPILLWAY).args(load)).unwrap();
    let url = format!("http://{bind}:8080/page.txt");
    let mut fetched = 0;
    while load.exit_status().is_none() {
        let curl = Launch::new("curl").args(["--silent", "--show-error", "--fail", "--max-time", "20", &url]);
        let mut curl = scene.client.spawn(&curl.name(format!("curl-{fetched}"))).unwrap();
        let ended = curl.wait(PATIENCE).expect("curl should end");
        assert!(ended.success(), "{}", curl.stderr().unwrap());
        assert_eq!(curl.stdout().unwrap().as_bytes(), value_of("page", 1 << 20));
        fetched += 1;
        daemon.kill();
        daemon = scene.start_daemon();
    }
    let ended = load.wait(PATIENCE).expect("the load generator should end");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let count = |name: &str| report["total"][name].as_u64().unwrap();
    assert!(ended.success() && count("answered") > 1000 && fetched > 2, "{fetched} {}", report["total"]);
    assert_eq!((count("wrong"), count("lost"), count("resets")), (0, 0, 0));
    terminate(daemon);
    scene.close();
}

#[test]
fn a_second_daemon_is_refused() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let launch = scene.launch(SPILLWAY, &[], &["switch", "--config", &scene.config()]);
    let mut second = scene.switch.spawn(&launch).unwrap();
    let ended = second.wait(PATIENCE).expect("the second daemon should end");
    let stderr = second.stderr().unwrap();
    assert!(!ended.success() && stderr.contains("another daemon runs for the switch"), "{stderr}");
    let detach = scene.launch(SPILLWAY, &[], &["switch", "--config", &scene.config(), "--detach"]);
    let mut detach = scene.switch.spawn(&detach).unwrap();
    let ended = detach.wait(PATIENCE).expect("the command should end");
    assert!(
        !ended.success() && detach.stderr().unwrap().contains("another daemon runs"),
        "{}",
        detach.last_output()
    );
    assert!(scene.command(&["status"]).status.success());
    terminate(daemon);
    scene.close();
}

#[test]
fn a_reload_applies_the_file_or_changes_nothing() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    assert!(client.version().is_some());
    scene.configure(
        "owner_timeout = \"2s\"\nflows_max = 7",
        "[[station]]\nmac = \"02:00:00:00:00:99\"\nport = \"none\"",
    );
    let refused = scene.command(&["reload"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("no [[port]] has interface = \"none\""), "{stderr}");
    assert!(client.version().is_some());

    scene.configure("owner_timeout = \"2s\"\nflows_max = 7", "");
    let outcome = scene.result(&["reload"]);
    assert_eq!(
        outcome,
        json!({ "changes": ["switch: owner_timeout = \"2s\""], "restart": ["switch.flows_max"] })
    );
    assert!(client.version().is_some());

    // The client's station goes: its packets are not forwarded any more; and comes back.
    let text = fs::read_to_string(scene.config()).unwrap();
    let start = text.find("[[station]]").unwrap();
    let end = start + text[start..].find("[[service]]").unwrap();
    fs::write(scene.config(), format!("{}{}", &text[..start], &text[end..])).unwrap();
    let outcome = scene.result(&["reload"]);
    assert!(outcome["changes"][0].as_str().unwrap().ends_with(": removed"), "{outcome}");
    let connected = scene
        .client
        .run_inside(|| TcpStream::connect_timeout(&scene.service(), Duration::from_millis(500)).is_ok());
    assert!(!connected.unwrap());
    eventually("unknown stations are counted", || {
        scene.result(&["status"])["packets"]["drop_unknown_station"].as_u64() > Some(0)
    });
    scene.configure("owner_timeout = \"2s\"", "");
    scene.result(&["reload"]);
    assert!(connect(&scene.client, scene.service()).version().is_some());
    terminate(daemon);
    scene.close();
}

#[test]
fn two_capabilities_suffice_for_the_daemon() {
    let Some(scene) = Scene::start(NOBODY) else { return };
    // Runs a copy of the program, because the user `nobody` may have no access to the build directory.
    let program = scene.scratch.path("spillway");
    fs::copy(SPILLWAY, &program).unwrap();
    fs::set_permissions(scene.scratch.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for file in ["", "a.key", "b.key", "switch.toml"] {
        std::os::unix::fs::chown(scene.scratch.path(file), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let two = "-all,+net_admin,+bpf";
    let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}={two}"));
    let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
    let wrapper: Vec<String> = ["setpriv".to_owned()].into_iter().chain(user).chain(sets).collect();
    let launch: Launch = scene.launch(&program, &wrapper, &["switch", "--config", &scene.config()]);
    let daemon = scene.start_launch(&launch);
    scene.switch.prepare_hosts().unwrap();
    let _memcached = memcached(&scene);
    assert!(connect(&scene.client, scene.service()).version().is_some());
    scene.configure("owner_timeout = \"3s\"", "");
    let outcome = scene.result(&["reload"]);
    assert_eq!(outcome["changes"], json!(["switch: owner_timeout = \"3s\""]));
    assert_eq!(scene.result(&["flows", "clear", "--all"]), json!({ "cleared": 0, "changed": 0 }));
    let of = |number: u64| 1_u64 << number;
    let (net_admin, bpf) = (of(12), of(39));
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("capabilities");
        let capabilities = u64::from_str_radix(line.trim(), 16).unwrap();
        let expected = if matches!(name.trim(), "http" | "log" | "signals") { 0 } else { net_admin | bpf };
        assert_eq!(capabilities, expected, "thread {name}");
    }
    // The daemon has started again as this user.
    terminate(daemon);
    terminate(scene.start_launch(&launch));
    scene.close();
}
