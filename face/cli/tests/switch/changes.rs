//! Ports that come and go, files in another order, and reloads that take places away.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_lab::{LabError, Launch, Process};

use super::daemon::terminate;
use super::datagrams::Stream;
use super::scene::{PLACE_PORT, Scene};
use super::support::{PATIENCE, SPILLWAY, eventually};
use super::{connect, connect_and_move_rule, memcached, say_hello, send_heartbeats};

/// Runs `ip` in the namespace of the switch.
pub fn ip(scene: &Scene, arguments: &str) {
    run_ip(|launch| scene.switch.spawn(launch), arguments);
}

/// Runs `ip` in the namespace in which `spawn` starts processes.
pub fn run_ip(spawn: impl FnOnce(&Launch) -> Result<Process, LabError>, arguments: &str) {
    let launch = Launch::new("ip").args(arguments.split(' ').map(str::to_owned)).name("ip");
    let mut process = spawn(&launch).unwrap();
    let ended = process.wait(PATIENCE).expect("ip should end");
    assert!(ended.success(), "ip {arguments}: {}", process.last_output());
}

/// Changes the configuration file.
pub fn edit(scene: &Scene, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(scene.config()).unwrap();
    fs::write(scene.config(), change(text)).unwrap();
}

/// The numbers of ports and the ids of servers, by name.
fn numbers(status: &Value) -> Value {
    let all = |list: &str, name: &str, number: &str| -> Value {
        let items = status[list].as_array().unwrap().iter();
        items
            .map(|item| (item[name].as_str().unwrap().to_owned(), item[number].clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    json!({ "ports": all("ports", "interface", "number"), "servers": all("servers", "name", "id") })
}

pub fn problem_of(scene: &Scene, interface: &str) -> Option<String> {
    let status = scene.result(&["status"]);
    let port =
        status["ports"].as_array().unwrap().iter().find(|port| port["interface"] == interface).cloned();
    port.unwrap()["problem"].as_str().map(str::to_owned)
}

/// The daemon is stopped, the file gets a new port in front of the others and the servers in another order, and the new
/// port's interface does not exist yet.
#[test]
fn numbers_stay_over_a_restart_and_a_missing_interface_stops_nothing() {
    let Some(scene) = Scene::start(0) else { return };
    // Without ids in the file, which would keep the servers apart in any case.
    edit(&scene, |text| text.replace("id = 1\n", "").replace("id = 2\n", ""));
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    client.set("key", b"value");
    let mut agents = scene.agents();
    say_hello(&scene, &mut agents);
    let before = numbers(&scene.result(&["status"]));
    let stream = Stream::start(&scene.client, &scene.a);
    terminate(daemon);
    edit(&scene, |text| {
        let (head, servers) = text.split_at(text.find("[[server]]\nname = \"a\"").unwrap());
        let (a, b) = servers.split_at(servers.find("[[server]]\nname = \"b\"").unwrap());
        let head = head.replacen("[[port]]", "[[port]]\ninterface = \"late0\"\n[[port]]", 1);
        format!("{head}{b}{a}")
    });
    let daemon = scene.start_daemon();
    let after = numbers(&scene.result(&["status"]));
    assert_eq!(after["servers"], before["servers"]);
    for (interface, number) in before["ports"].as_object().unwrap() {
        assert_eq!(after["ports"][interface], *number, "{interface}: {after}");
    }
    assert!(problem_of(&scene, "late0").unwrap().contains("late0: cannot be found"));
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    // The servers' terms have stayed.
    send_heartbeats(&scene, &mut agents);
    // A reload works without the interface, too.
    scene.result(&["reload"]);

    ip(&scene, "link add late0 type veth peer name late1");
    eventually("the new interface is attached", || problem_of(&scene, "late0").is_none());
    ip(&scene, "link del late0");
    eventually("the interface is missed", || problem_of(&scene, "late0").is_some());
    ip(&scene, "link add late0 type veth peer name late1");
    eventually("another interface with this name is attached", || problem_of(&scene, "late0").is_none());
    let log = daemon.stderr().unwrap();
    assert!(log.contains("tries again once a second") && log.contains("forwards again"), "{log}");
    let counts = stream.stop();
    assert!(counts.sent > 20, "{counts:?}");
    assert_eq!(counts.received, counts.sent, "no datagram is lost");

    // The port goes again, by a reload.
    edit(&scene, |text| text.replacen("[[port]]\ninterface = \"late0\"\n", "", 1));
    scene.result(&["reload"]);
    assert_eq!(numbers(&scene.result(&["status"]))["ports"], before["ports"]);
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    terminate(daemon);
    scene.close();
}

#[test]
fn a_start_without_any_port_is_refused_and_leaves_nothing() {
    let Some(scene) = Scene::start(0) else { return };
    edit(&scene, |text| text.replace("interface = \"", "interface = \"x").replace("port = \"", "port = \"x"));
    let check = Command::new(SPILLWAY).args(["check", &scene.config()]).output().unwrap();
    let stderr = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(
        check.status.success() && stderr.matches("does not exist: the switch starts").count() == 3,
        "{stderr}"
    );
    let run = |arguments: &[&str]| {
        let launch =
            scene.launch(SPILLWAY, &[], &[&["switch", "--config", &scene.config()], arguments].concat());
        let mut process = scene.switch.spawn(&launch).unwrap();
        let ended = process.wait(PATIENCE).expect("the program should end");
        assert!(!ended.success());
        process.stderr().unwrap()
    };
    let stderr = run(&[]);
    assert!(stderr.contains("no port can be attached: "), "{stderr}");
    let stderr = run(&["--detach"]);
    assert!(stderr.contains("there is no switch with this name"), "{stderr}");
    scene.close();
}

#[test]
fn a_reload_ends_the_flows_that_lose_their_place_and_says_so() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let (_moved, _agents) = connect_and_move_rule(&scene);
    scene.configure("owner_timeout = \"50s\"", "");
    let outcome = scene.result(&["reload"]);
    assert_eq!(outcome["changes"], json!(["switch: owner_timeout = \"50s\""]));
    assert_eq!(scene.result(&["flows"])["total"], 1);
    edit(&scene, |text| text.replace(&format!(":{PLACE_PORT}\""), ":21212\""));
    let outcome = scene.result(&["reload"]);
    let changes = outcome["changes"].as_array().unwrap();
    assert!(changes.last().unwrap().as_str().unwrap().starts_with("flows: 1 entries ended: "), "{outcome}");
    assert_eq!(scene.result(&["flows"])["total"], 0);
    terminate(daemon);
    scene.close();
}

/// No packet and no heartbeat comes any more: all servers have died, and the client has vanished.
#[test]
fn flows_return_when_all_servers_have_died() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let (_moved, _agents) = connect_and_move_rule(&scene);
    assert_eq!(scene.result(&["flows"])["flows"][0]["owner"]["server"], "b");
    let began = Instant::now();
    eventually("the flow returns to its original server", || {
        scene.result(&["flows"])["flows"][0]["owner"]["server"] == "a"
    });
    assert!(began.elapsed() > Duration::from_millis(500), "not before the owner timeout");
    terminate(daemon);
    scene.close();
}
