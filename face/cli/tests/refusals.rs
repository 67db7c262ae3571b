//! Wrong keys, forged addresses and malformed bytes are refused, and other clients are not affected.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use spillway_auth::Key;
use spillway_batch::{
    Encryption, Limits, LinkRandomness, OpenerConfig, OpenerLink, PolicyKind, RefuseReason, Role,
};
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use spillway_transport::Time;
use support::link::{End, LinkPeer};
use support::{Client, SPILLWAY, Scene, Scratch, eventually, loopback};

/// Runs `attack`; one direct and one helped client must be served afterwards.
fn check_others_unaffected(scene: &Scene, attack: impl FnOnce()) {
    let (mut direct, mut helped) = (Client::new(scene.direct()), Client::new(scene.plain_port));
    helped.set("k", b"v");
    attack();
    assert_eq!(direct.get("k"), Some(b"v".to_vec()));
    assert_eq!(helped.get("k"), Some(b"v".to_vec()));
    assert_eq!(Client::new(scene.plain_port).get("k"), Some(b"v".to_vec()), "new clients should be served");
}

fn refusal(port: SocketAddr, role: Role, key: &Key) -> End {
    LinkPeer::open(port, role, key).err().expect("refusal of the link")
}

#[test]
fn links_with_accepted_keys_are_established() {
    let scene = Scene::start();
    let mut helper = LinkPeer::open(scene.link, Role::Helper, &scene.helper_key).ok().unwrap();
    let id = helper.connect("127.0.0.1:999".parse().unwrap()).unwrap();
    assert!(helper.exchange(id, b"version\r\n", b"\r\n").starts_with(b"VERSION "));
    for port in [scene.link, scene.client_link] {
        let mut client = LinkPeer::open(port, Role::Client, &scene.client_key).ok().unwrap();
        let local = client.local();
        let id = client.connect(local).unwrap();
        assert!(client.exchange(id, b"version\r\n", b"\r\n").starts_with(b"VERSION "));
    }
}

#[test]
fn wrong_keys_are_refused_on_both_link_ports() {
    let scene = Scene::start();
    check_others_unaffected(&scene, || {
        let unknown_key = Key::from_secret([77; 32]);
        let our_key = "the server does not accept our key for this role";
        for (port, role, key) in [
            (scene.link, Role::Helper, &unknown_key),
            (scene.link, Role::Client, &unknown_key),
            (scene.link, Role::Helper, &scene.client_key),
            (scene.link, Role::Client, &scene.helper_key),
            (scene.link, Role::Helper, &Key::loopback_only()),
            (scene.client_link, Role::Client, &unknown_key),
            (scene.client_link, Role::Client, &scene.helper_key),
            (scene.client_link, Role::Helper, &scene.helper_key),
        ] {
            assert_eq!(refusal(port, role, key), End::Refused(our_key.to_owned()), "{port} {role}");
        }
    });
}

#[test]
fn forged_client_addresses_are_refused() {
    let scene = Scene::start();
    check_others_unaffected(&scene, || {
        let mut helper = LinkPeer::open(scene.link, Role::Helper, &scene.helper_key).ok().unwrap();
        let public: SocketAddr = "203.0.113.5:4".parse().unwrap();
        assert_eq!(helper.connect(public), Err(RefuseReason::Forbidden));
        assert!(helper.connect("10.3.2.1:4".parse().unwrap()).is_ok(), "the link should stay open");
        for port in [scene.link, scene.client_link] {
            let mut client = LinkPeer::open(port, Role::Client, &scene.client_key).ok().unwrap();
            let other = SocketAddr::new(client.local().ip(), client.local().port() ^ 1);
            assert_eq!(client.connect(other), Err(RefuseReason::Forbidden), "{port}");
        }
    });
}

fn hello(role: Role, key: &Key) -> Vec<u8> {
    let policy = PolicyKind::Fixed { interval: std::time::Duration::ZERO, size_bytes: 0 };
    let config = OpenerConfig {
        role,
        key: key.clone(),
        limits: Limits::default(),
        policy,
        encryption: Encryption::Preferred,
    };
    let mut link =
        OpenerLink::new(&config, Time::ZERO, LinkRandomness::from_random([5; LinkRandomness::BYTES]));
    link.flush(Time::ZERO).unwrap().as_slice().to_vec()
}

#[test]
fn truncated_preambles_and_garbage_do_not_affect_other_clients() {
    let scene = Scene::start();
    check_others_unaffected(&scene, || {
        for port in [scene.link, scene.client_link] {
            let hello = hello(Role::Client, &scene.client_key);
            for cut in [0, 1, 8, hello.len() - 1] {
                let mut socket = TcpStream::connect(port).unwrap();
                socket.write_all(&hello[..cut]).unwrap();
            }
            let garbage: Vec<u8> =
                (0..10_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            for bytes in
                [&b"GET / HTTP/1.1\r\nHost: cache.example.com\r\n\r\n"[..], b"stats\r\n\r\n\r\n", &garbage]
            {
                let bytes = [bytes, &[0; 64]].concat();
                let mut socket = TcpStream::connect(port).unwrap();
                socket.set_read_timeout(Some(support::PATIENCE)).unwrap();
                let _ = socket.write_all(&bytes);
                let mut answer = Vec::new();
                let outcome = socket.read_to_end(&mut answer);
                let is_reset =
                    outcome.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
                assert!(is_reset || outcome.is_ok(), "{port} should close the connection: {outcome:?}");
                assert!(answer.is_empty(), "{port} should send nothing to a peer that has not authenticated");
            }
        }
    });
}

#[test]
fn an_authenticated_peer_that_sends_garbage_loses_its_link_only() {
    let scene = Scene::start();
    check_others_unaffected(&scene, || {
        let mut helper = LinkPeer::open(scene.link, Role::Helper, &scene.helper_key).ok().unwrap();
        helper.connect("10.0.0.9:1".parse().unwrap()).unwrap();
        // An unexpected frame for a connected id is a protocol error: the server must close the link.
        let id = spillway_batch::Id(1);
        helper.link().relay_control(id, spillway_batch::Control::Accepted);
        let end = loop {
            if let Err(end) = helper.turn(|_| {}) {
                break end;
            }
        };
        assert_eq!(end, End::Closed);
    });
}

#[test]
fn a_helper_with_a_wrong_key_logs_it_and_refuses_clients() {
    let scene = Scene::start();
    let (unknown_key, _) = scene.scratch.key("stranger.key");
    let port = loopback(free_port());
    let launch = Launch::new(SPILLWAY)
        .name("stranger")
        .args(["helper", "--service", &format!("cache={}", scene.link), "--listen", &port.to_string()])
        .args(["--key", &unknown_key, "--threads", "1"]);
    let helper = scene.place.spawn(&launch).unwrap();
    eventually("the log has the reason", || {
        let text = helper.stderr().unwrap() + &helper.stdout().unwrap();
        text.contains("does not accept our key")
    });
    assert!(TcpStream::connect(port).is_err(), "a helper without a link should refuse clients");
    check_others_unaffected(&scene, || {});
}

fn assert_fails_with(arguments: &[&str], message: &str) {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{arguments:?} should be refused");
    assert!(text.contains(message), "{arguments:?} should report {message:?}: {text}");
}

#[test]
fn without_a_key_nothing_listens_beyond_loopback() {
    assert_fails_with(&["run", "--link", "0.0.0.0:11411", "--", "memcached"], "--key");
    assert_fails_with(&["run", "--link", ":11411", "--", "memcached"], "--key");
    let arguments = ["helper", "--service", "cache=127.0.0.1:1", "--link-listen", "0.0.0.0:0"];
    assert_fails_with(&arguments, "--client-key");
}

#[test]
fn key_files_that_others_can_read_are_refused() {
    let scratch = Scratch::new();
    let (file, _) = scratch.key("open.key");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_fails_with(&["run", "--link", "127.0.0.1:11411", "--key", &file, "--", "memcached"], "chmod 600");
    assert_fails_with(
        &["helper", "--service", "cache=127.0.0.1:1", "--listen", "127.0.0.1:0", "--key", &file],
        "chmod 600",
    );
    assert_fails_with(&["key", "new", &file], "exist");
}

#[test]
fn errors_name_the_program_or_the_address() {
    assert_fails_with(
        &["run", "--link", "127.0.0.1:11411", "--", "no-such-server-program"],
        "no-such-server-program",
    );
    assert_fails_with(&["run", "--link", "nonsense", "--", "memcached"], "nonsense");
    let place = Place::local().unwrap();
    let occupied = std::net::TcpListener::bind((place.address(), 0)).unwrap();
    let port = occupied.local_addr().unwrap().to_string();
    assert_fails_with(&["helper", "--service", "cache=127.0.0.1:1", "--listen", &port], &port);
}
