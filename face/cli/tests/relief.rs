//! `spillway relief`: overrides at a real memcached and its helper, while sessions are in use.

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use spillway_client::LinkTarget;
use spillway_client::session::{BlockingSession, SessionSettings};
use support::{Client, Options, PATIENCE, SPILLWAY, Scene, eventually};

fn relief(scene: &Scene, arguments: &[&str]) -> (bool, String, String) {
    let socket = ["--socket", &scene.status_socket];
    let output = Command::new(SPILLWAY).arg("relief").args(arguments).args(socket).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Sessions with two routes: the server's own link port and the helper's.
struct Sessions(Vec<BlockingSession>);

impl Sessions {
    fn open(scene: &Scene, count: usize) -> Sessions {
        let target = |address| LinkTarget {
            address,
            key: scene.client_key.clone(),
            server: None,
            encryption: Default::default(),
        };
        let routes = vec![target(scene.link), target(scene.client_link)];
        let settings = SessionSettings { server_port: Some(scene.link), ..SessionSettings::default() };
        Sessions((0..count).map(|_| BlockingSession::open(routes.clone(), settings).unwrap()).collect())
    }

    fn exchange_on_all(&mut self) {
        for (number, session) in self.0.iter_mut().enumerate() {
            let request = format!("set k{number} 0 0 6\r\nv{number:05}\r\nget k{number}\r\n");
            let reply = format!("STORED\r\nVALUE k{number} 0 6\r\nv{number:05}\r\nEND\r\n");
            session.write_all(request.as_bytes()).unwrap();
            let mut received = vec![0; reply.len()];
            session.read_exact(&mut received).unwrap();
            assert_eq!(String::from_utf8_lossy(&received), reply);
        }
    }

    #[track_caller]
    fn exchange_until_carried_by(&mut self, port: SocketAddr) {
        let deadline = Instant::now() + PATIENCE;
        while !self.0.iter_mut().all(|session| session.session().carrier() == Some(port)) {
            assert!(Instant::now() < deadline, "all sessions should move to {port}");
            self.exchange_on_all();
        }
        self.exchange_on_all();
    }
}

#[test]
fn override_moves_present_and_later_sessions() {
    let scene = Scene::start();
    let pid = scene.server.pid().to_string();
    let mut sessions = Sessions::open(&scene, 20);
    sessions.exchange_until_carried_by(scene.link);

    let (is_fine, text, error) = relief(&scene, &[&pid, "on"]);
    assert!(is_fine, "{error}");
    assert_eq!(text, format!("server {pid} memcached: relief on\n"));
    sessions.exchange_until_carried_by(scene.client_link);

    // `off` at the helper: new clients are refused, present plain clients stay, library clients move to the server.
    let mut plain = Client::new(scene.plain_port);
    relief(&scene, &[&pid, "auto"]);
    let (is_fine, text, error) = relief(&scene, &["cache", "off"]);
    assert!(is_fine && text.contains(": relief off, 20 clients still have to move"), "{text} {error}");
    sessions.exchange_until_carried_by(scene.link);
    assert!(plain.version().is_some(), "a plain client should be served");
    eventually("new clients are refused", || {
        Client::try_new(scene.plain_port).is_none_or(|mut client| client.version().is_none())
    });
    let status = scene.status();
    let service = &status["services"][0];
    assert_eq!((service["override"].as_str(), service["override_left_ms"].as_u64()), (Some("off"), None));
    assert!(
        service["links"].as_array().unwrap().iter().any(|link| link["state"] == "up"),
        "a link should stay up"
    );

    let (is_fine, text, error) = relief(&scene, &["cache", "auto"]);
    assert!(is_fine && text.contains(": relief auto"), "{text} {error}");
    scene.await_helped();
    for session in &mut sessions.0 {
        session.session().move_to(Instant::now(), 1).unwrap();
    }
    sessions.exchange_until_carried_by(scene.client_link);

    // `off` at the server sends back all helped sessions, also those that move to helpers later.
    let (is_fine, text, error) = relief(&scene, &[&pid, "off"]);
    assert!(is_fine && text.contains("relief off"), "{text} {error}");
    sessions.exchange_until_carried_by(scene.link);
    sessions.0[0].session().move_to(Instant::now(), 1).unwrap();
    sessions.exchange_until_carried_by(scene.link);
}

#[test]
fn timed_override_ends_after_its_duration() {
    let scene = Scene::start();
    let pid = scene.server.pid().to_string();
    let (is_fine, _, error) = relief(&scene, &["cache", "off", "--for", "1s", "--wait"]);
    assert!(is_fine, "{error}");
    scene.await_helped();
    assert_eq!(scene.status()["services"][0]["override"], "auto");

    let (is_fine, _, error) = relief(&scene, &[&pid, "on", "--for", "1s"]);
    assert!(is_fine, "{error}");
    let status_json = || Command::new(SPILLWAY).args(["status", "--json"]).output().unwrap().stdout;
    let server = || {
        let status: serde_json::Value = serde_json::from_slice(&status_json()).unwrap();
        let servers = status["servers"].as_array().unwrap().clone();
        servers.into_iter().find(|server| server["pid"] == scene.server.pid()).unwrap()
    };
    eventually("the override has ended", || server()["override"] == "auto");
}

#[test]
fn unknown_services_are_errors_that_list_the_known_ones() {
    let scene = Scene::start();
    let (is_fine, _, error) = relief(&scene, &["no-such-service", "off"]);
    assert!(!is_fine && error.contains("there are: cache") && error.contains("memcached"), "{error}");
    let (is_fine, _, error) = relief(&scene, &["cache", "maybe"]);
    assert!(!is_fine && error.contains("expected auto, on or off"), "{error}");
}

#[test]
fn server_releases_sessions_after_low_load() {
    let scene = Scene::with(Options { run_arguments: vec!["--release-after", "2s"], ..Options::default() });
    let mut sessions = Sessions::open(&scene, 10);
    // Full load for long enough that the server measures it as its direct load.
    let busy_until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < busy_until {
        sessions.exchange_on_all();
    }
    for session in &mut sessions.0 {
        session.session().move_to(Instant::now(), 1).unwrap();
    }
    sessions.exchange_until_carried_by(scene.client_link);
    let busy_until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < busy_until {
        sessions.exchange_on_all();
    }
    let deadline = Instant::now() + PATIENCE;
    while !sessions.0.iter_mut().all(|session| session.session().carrier() == Some(scene.link)) {
        assert!(Instant::now() < deadline, "the server should release all sessions");
        sessions.exchange_on_all();
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = Command::new(SPILLWAY).args(["status", "--json"]).output().unwrap().stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let servers = status["servers"].as_array().unwrap();
    let server = servers.iter().find(|server| server["pid"] == scene.server.pid()).unwrap();
    assert!(server["sessions_released"].as_u64().unwrap() >= 10, "{server:#}");
}
