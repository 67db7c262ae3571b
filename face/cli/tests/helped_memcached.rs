//! The real memcached, unmodified, under `spillway run`, behind a helper.

mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use spillway_lab::peers::Memcached;
use support::{Client, Options, Scene, eventually, resident, value_of};

/// Runs Debian's protocol test with all ASCII and binary tests.
fn memccapable(address: SocketAddr) {
    let output = std::process::Command::new("memccapable")
        .args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-t", "20"])
        .output()
        .expect("run memccapable of libmemcached-tools (make setup)");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = text.matches("[pass]").count() + errors.matches("[pass]").count();
    assert!(output.status.success(), "{text}{errors}");
    assert!(!text.contains("[FAIL]") && !errors.contains("[FAIL]"), "{text}{errors}");
    assert!(passed >= 50, "{passed} tests passed: {text}{errors}");
}

#[test]
fn memccapable_passes_without_spillway() {
    let place = spillway_lab::Place::local().unwrap();
    memccapable(Memcached::default().start(&place).unwrap().address());
}

#[test]
fn memccapable_passes_on_the_ordinary_port_under_the_shim() {
    for threads in [1, 4] {
        let options = Options { memcached: Memcached::default().threads(threads), ..Options::default() };
        memccapable(Scene::with(options).direct());
    }
}

#[test]
fn memccapable_passes_through_a_helper() {
    for threads in [1, 4] {
        let options = Options { memcached: Memcached::default().threads(threads), ..Options::default() };
        memccapable(Scene::with(options).plain_port);
    }
}

#[test]
fn direct_and_helped_clients_see_the_same_data() {
    let scene = Scene::with(Options { memcached: Memcached::default().threads(4), ..Options::default() });
    let (mut direct, mut helped) = (Client::new(scene.direct()), Client::new(scene.plain_port));
    for size in [0, 1, 64, 1_000, 65_528, 70_000, 500_000, 1_000_000] {
        let key = format!("key-{size}");
        helped.set(&key, &value_of(&key, size));
        assert_eq!(direct.get(&key), Some(value_of(&key, size)));
        let other = format!("other-{size}");
        direct.set(&other, &value_of(&other, size));
        assert_eq!(helped.get(&other), Some(value_of(&other, size)));
    }
    assert_eq!(helped.get("missing"), None);
}

#[test]
fn five_thousand_helped_connections_get_right_values() {
    let memcached = Memcached::default().threads(4).connections(12_000);
    let scene = Scene::with(Options { memcached, ..Options::default() });
    let keys: Vec<String> = (0..100).map(|i| format!("key-{i}")).collect();
    let mut writer = Client::new(scene.plain_port);
    keys.iter().for_each(|key| writer.set(key, &value_of(key, 64)));
    raise_descriptor_limit();
    let mut clients: Vec<Client> = (0..5_000).map(|_| Client::new(scene.plain_port)).collect();
    for round in 0..3 {
        for (i, client) in clients.iter_mut().enumerate() {
            client.send(format!("get {}\r\n", keys[(i + round) % keys.len()]).as_bytes());
        }
        for (i, client) in clients.iter_mut().enumerate() {
            let key = &keys[(i + round) % keys.len()];
            assert_eq!(client.value(key), Some(value_of(key, 64)), "connection {i}");
        }
    }
    assert!(scene.stat("curr_connections") >= 5_000, "memcached should count virtual connections");
    drop(clients);
    eventually("memcached has closed the connections", || scene.stat("curr_connections") < 50);
    assert_eq!(Client::new(scene.plain_port).get(&keys[0]), Some(value_of(&keys[0], 64)));
}

fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
}

/// A client that requests much data and reads nothing uses bounded memory and does not slow other clients down.
#[test]
fn client_that_never_reads_uses_bounded_memory() {
    let mut scene = Scene::start();
    let mut other = Client::new(scene.plain_port);
    let key = "large";
    other.set(key, &value_of(key, 500_000));
    let (server, helper) = (scene.server.pid(), scene.helper.pid());
    let before = (resident(server), resident(helper));

    let mut never_reading = Client::new(scene.plain_port).stream().try_clone().unwrap();
    never_reading.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let request = format!("get {key}\r\n").repeat(100);
    // Each batch requests 50 MB of replies. The loop ends when the helper does not read further requests.
    let mut batches_sent = 0;
    while batches_sent < 10_000 && never_reading.write_all(request.as_bytes()).is_ok() {
        batches_sent += 1;
    }
    // At least 20 times the bound on memory below, if the replies were kept.
    assert!((30..10_000).contains(&batches_sent), "{batches_sent} batches accepted");
    for _ in 0..200 {
        assert_eq!(other.get(key), Some(value_of(key, 500_000)), "other clients should be served");
    }
    let grown = (resident(server).saturating_sub(before.0), resident(helper).saturating_sub(before.1));
    let bound = 64 << 20;
    assert!(grown.0 < bound && grown.1 < bound, "server and helper grew by {grown:?} bytes");

    never_reading.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let expected =
        format!("VALUE {key} 0 500000\r\n{}\r\nEND\r\n", String::from_utf8(value_of(key, 500_000)).unwrap());
    let mut reply = vec![0; expected.len()];
    for _ in 0..100 {
        never_reading.read_exact(&mut reply).unwrap();
        assert!(reply == expected.as_bytes(), "a reply should be the stored value");
    }
    assert!(scene.helper.exit_status().is_none());
}

#[test]
fn client_that_ends_within_a_message_does_not_affect_others() {
    let scene = Scene::start();
    let mut other = Client::new(scene.plain_port);
    other.set("k", b"before");
    for cut in ["set k 0 0 100\r\nhalf", "ge", "set k 0 0 5\r\nafter"] {
        let mut client = Client::new(scene.plain_port);
        client.send(cut.as_bytes());
        drop(client);
        let mut reset = Client::new(scene.plain_port);
        reset.send(cut.as_bytes());
        reset.send(b"\r\n");
        rustix::net::sockopt::set_socket_linger(reset.stream(), Some(Duration::ZERO)).unwrap();
    }
    eventually("memcached has closed the connections", || scene.stat("curr_connections") < 20);
    let value = other.get("k").unwrap();
    assert!(value == b"before" || value == b"after", "the value should be whole: {value:?}");
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let scene = Scene::start();
    let mut client = Client::new(scene.plain_port);
    client.set("k", b"v");
    client.send(b"get k\r\n");
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.value("k"), Some(b"v".to_vec()));
    assert!(client.ended());
}

#[test]
fn memcached_killed_and_restarted_is_helped_again() {
    let mut scene = Scene::start();
    let mut client = Client::new(scene.plain_port);
    client.set("k", b"v");
    scene.server.kill();
    assert!(client.ended(), "the client's connection should end");
    eventually("the helper refuses while its link is down", || TcpStream::connect(scene.plain_port).is_err());
    scene.server.restart().unwrap();
    scene.await_helped();
    let mut client = Client::new(scene.plain_port);
    assert_eq!(client.get("k"), None, "a restarted memcached should be empty");
    client.set("k", b"w");
    assert_eq!(Client::new(scene.direct()).get("k"), Some(b"w".to_vec()));
}

#[test]
fn a_killed_helper_does_not_affect_direct_clients() {
    let mut scene = Scene::start();
    let (mut direct, mut helped) = (Client::new(scene.direct()), Client::new(scene.plain_port));
    direct.set("k", b"v");
    assert_eq!(helped.get("k"), Some(b"v".to_vec()));
    scene.helper.kill();
    assert!(helped.ended(), "a plain client should be reset, as with any proxy");
    assert_eq!(direct.get("k"), Some(b"v".to_vec()));
    eventually("the server closed the helper's connections", || scene.stat("curr_connections") < 10);
}

#[test]
fn a_helper_out_of_descriptors_serves_its_present_clients() {
    let scene = Scene::with(Options { helper_files: 128, ..Options::default() });
    let mut first = Client::new(scene.plain_port);
    first.set("k", b"v");
    let more_clients: Vec<Option<TcpStream>> =
        (0..300).map(|_| TcpStream::connect(scene.plain_port).ok()).collect();
    for _ in 0..50 {
        assert_eq!(first.get("k"), Some(b"v".to_vec()));
    }
    drop(more_clients);
    scene.await_helped();
    assert_eq!(first.get("k"), Some(b"v".to_vec()));
}

#[test]
fn a_server_out_of_connections_refuses_new_and_serves_present_clients() {
    let memcached = Memcached::default().connections(40);
    let scene = Scene::with(Options { memcached, ..Options::default() });
    let mut first = Client::new(scene.plain_port);
    first.set("k", b"v");
    let more_clients: Vec<Option<Client>> = (0..100).map(|_| Client::try_new(scene.plain_port)).collect();
    for _ in 0..50 {
        assert_eq!(first.get("k"), Some(b"v".to_vec()));
    }
    drop(more_clients);
    scene.await_helped();
    assert_eq!(first.get("k"), Some(b"v".to_vec()));
}

#[test]
fn many_clients_write_and_read_what_they_wrote() {
    let scene = Scene::with(Options { memcached: Memcached::default().threads(4), ..Options::default() });
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let scene = &scene;
            scope.spawn(move || {
                let mut client = Client::new(if worker % 4 == 0 { scene.direct() } else { scene.plain_port });
                let mut written: HashMap<String, Vec<u8>> = HashMap::new();
                for i in 0..300 {
                    let key = format!("{worker}-{}", i % 37);
                    let value = value_of(&format!("{key}-{i}"), (i * 97) % 9_000);
                    client.set(&key, &value);
                    written.insert(key, value);
                    if i % 50 == 49 {
                        client = Client::new(scene.plain_port);
                    }
                }
                for (key, value) in &written {
                    assert_eq!(client.get(key).as_ref(), Some(value));
                }
            });
        }
    });
}

#[test]
fn the_helpers_status_names_its_service() {
    let scene = Scene::start();
    let mut client = Client::new(scene.plain_port);
    client.set("k", b"v");
    let status = scene.status();
    let text = status.to_string();
    assert!(text.contains("cache"), "{text}");
}
