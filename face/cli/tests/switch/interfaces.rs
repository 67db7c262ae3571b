//! Interfaces of ports that go to another network namespace, are set down, or get another name.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::changes::{edit, ip, problem_of, run_ip};
use super::support::eventually;
use super::{Scene, connect, memcached, terminate};

/// A TCP port at which server `b` listens.
const LISTENED: u16 = 9000;

/// Whether the client reaches server `b` through the switch.
fn reaches_b(scene: &Scene) -> bool {
    let at = SocketAddr::new(scene.b.address(), LISTENED);
    scene.client.run_inside(|| TcpStream::connect_timeout(&at, Duration::from_millis(500)).is_ok()).unwrap()
}

fn listen(scene: &Scene) -> TcpListener {
    scene.b.run_inside(|| TcpListener::bind((scene.b.address(), LISTENED))).unwrap().unwrap()
}

fn port_of_b(scene: &Scene) -> String {
    scene.switch.port_of(&scene.b).unwrap().interface().to_owned()
}

/// The status of a port.
fn port(scene: &Scene, interface: &str) -> Value {
    let status = scene.result(&["status"]);
    let ports = status["ports"].as_array().unwrap();
    ports.iter().find(|port| port["interface"] == interface).unwrap().clone()
}

/// Moves the interface to the namespace of the client's host.
fn take(scene: &Scene, interface: &str) {
    ip(scene, &format!("link set {interface} netns {}", scene.client.namespace()));
}

/// Moves the interface back, and sets it up.
fn give_back(scene: &Scene, interface: &str) {
    run_ip(
        |launch| scene.client.spawn(launch),
        &format!("link set {interface} netns {}", scene.switch.namespace()),
    );
    ip(scene, &format!("link set {interface} up"));
}

/// The reason is reported; all other work of the daemon goes on: traffic, figures, a reload, a restart.
#[test]
fn an_interface_in_another_namespace_stops_no_other_port() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    client.set("key", b"value");
    let _listener = listen(&scene);
    eventually("server b is reached", || reaches_b(&scene));
    let interface = port_of_b(&scene);

    take(&scene, &interface);
    eventually("the reason is reported", || {
        problem_of(&scene, &interface).is_some_and(|why| why.contains("another network namespace"))
    });
    let switched = || scene.result(&["status"])["packets"]["switched"].as_u64().unwrap();
    let before = switched();
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    eventually("the figures go on", || switched() > before);
    let healthy = scene.result(&["status"])["ports"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|port| port["problem"].is_null())
        .count();
    assert_eq!(healthy, 2);
    scene.configure("owner_timeout = \"3s\"", "");
    assert_eq!(scene.result(&["reload"])["changes"], json!(["switch: owner_timeout = \"3s\""]));
    let log = daemon.stderr().unwrap();
    assert!(!log.contains("cannot read the switch's tables"), "{log}");
    terminate(daemon);

    let daemon = scene.start_daemon();
    assert!(problem_of(&scene, &interface).unwrap().contains("cannot be found"));
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    give_back(&scene, &interface);
    eventually("the port is attached again", || problem_of(&scene, &interface).is_none());
    scene.switch.prepare_hosts().unwrap();
    eventually("server b is reached again", || reaches_b(&scene));
    terminate(daemon);
    scene.close();
}

/// The interface goes while the daemon is stopped.
#[test]
fn a_start_adopts_the_other_ports_of_a_switch_whose_interface_has_gone() {
    let Some(scene) = Scene::start(0) else { return };
    terminate(scene.start_first_daemon());
    let _memcached = memcached(&scene);
    let mut client = connect(&scene.client, scene.service());
    client.set("key", b"value");
    let interface = port_of_b(&scene);
    take(&scene, &interface);
    let daemon = scene.start_daemon();
    let log = daemon.stderr().unwrap();
    assert!(log.contains("was detached: the interface has gone to another network namespace"), "{log}");
    assert!(problem_of(&scene, &interface).is_some());
    assert_eq!(client.get("key").as_deref(), Some(&b"value"[..]));
    give_back(&scene, &interface);
    terminate(daemon);
    scene.close();
}

#[test]
fn a_port_whose_interface_comes_back_at_once_forwards_again() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _listener = listen(&scene);
    eventually("server b is reached", || reaches_b(&scene));
    let interface = port_of_b(&scene);
    take(&scene, &interface);
    give_back(&scene, &interface);
    scene.switch.prepare_hosts().unwrap();
    eventually("server b is reached again", || reaches_b(&scene));
    eventually("the port has no problem", || problem_of(&scene, &interface).is_none());
    let log = daemon.stderr().unwrap();
    assert!(log.contains("attached again; it was detached because"), "{log}");
    terminate(daemon);
    scene.close();
}

#[test]
fn an_interface_that_is_down_or_renamed_is_reported() {
    let Some(scene) = Scene::start(0) else { return };
    let daemon = scene.start_first_daemon();
    let _listener = listen(&scene);
    let interface = port_of_b(&scene);
    assert_eq!(
        (&port(&scene, &interface)["down"], &port(&scene, &interface)["renamed"]),
        (&Value::Null, &Value::Null)
    );

    ip(&scene, &format!("link set {interface} down"));
    eventually("the port is down", || {
        port(&scene, &interface)["down"].as_str().is_some_and(|why| why.contains("link set"))
    });
    assert_eq!(port(&scene, &interface)["problem"], Value::Null);
    ip(&scene, &format!("link set {interface} up"));
    eventually("the port is up", || port(&scene, &interface)["down"].is_null());
    scene.switch.prepare_hosts().unwrap();
    eventually("it forwards again", || reaches_b(&scene));

    // Older kernels rename only interfaces that are down.
    ip(&scene, &format!("link set {interface} down name lan7"));
    ip(&scene, "link set lan7 up");
    eventually("the present name is reported", || {
        let port = port(&scene, &interface);
        port["renamed"] == "lan7" && port["down"].is_null()
    });
    let text = String::from_utf8(scene.command(&["status"]).stdout).unwrap();
    assert!(text.contains(&format!("{interface}: native, renamed to lan7")), "{text}");
    let log = daemon.stderr().unwrap();
    for line in ["the interface is down", "the interface is up again", "has the name lan7 now"] {
        assert!(log.contains(line), "{line}: {log}");
    }

    // With the new name in the file the port stays the same.
    let number = port(&scene, &interface)["number"].clone();
    edit(&scene, |text| text.replace(&format!("\"{interface}\""), "\"lan7\""));
    scene.result(&["reload"]);
    let after = port(&scene, "lan7");
    assert_eq!(
        (&after["number"], &after["renamed"], &after["problem"]),
        (&number, &Value::Null, &Value::Null)
    );
    ip(&scene, &format!("link set lan7 down name {interface} up"));
    terminate(daemon);
    scene.close();
}
