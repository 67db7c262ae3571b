//! `require_encryption` of each program refuses older peers without encryption and logs it; status shows which links
//! are encrypted.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use spillway_auth::{Key, KeyRing};
use spillway_batch::{Encryption, Role, Scratch as Plaintext, ServerConfig, ServerLink};
use spillway_lab::{Launch, Place};
use spillway_ports::free_port;
use spillway_transport::Time;
use support::link::{End, LinkPeer};
use support::{Client, Options, SPILLWAY, Scene, Scratch, eventually, loopback, text};

const REFUSAL: &str = "the link would not be encrypted, which is required here";

fn spillway(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn servers_links(scene: &Scene) -> Vec<Value> {
    let (ok, text) = spillway(&["status", "--json"]);
    assert!(ok, "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    let servers = status["servers"].as_array().unwrap();
    let server = servers
        .iter()
        .find(|server| server["link_port"] == scene.link.port())
        .expect("the server's status page");
    server["links"].as_array().unwrap().clone()
}

/// The lines of `spillway status` about the scene's server and its links.
fn servers_text(scene: &Scene) -> String {
    let (ok, text) = spillway(&["status"]);
    assert!(ok, "{text}");
    let port = format!(":{},", scene.link.port());
    let mut lines = text.lines().skip_while(|line| !(line.starts_with("server ") && line.contains(&port)));
    let first = lines.next().unwrap_or_else(|| panic!("{port} is not in {text}"));
    let links = lines.take_while(|line| line.starts_with("  link "));
    std::iter::once(first).chain(links).collect::<Vec<_>>().join("\n")
}

#[test]
fn encryption_required_by_server_and_helper_gives_encrypted_links_in_status() {
    let scene = Scene::with(Options {
        run_arguments: vec!["--require-encryption"],
        helper_arguments: vec!["--require-encryption"],
        ..Options::default()
    });
    assert_eq!(scene.status()["services"][0]["links"][0]["encrypted"], true);
    let links = servers_links(&scene);
    assert!(links.len() == 1 && links[0]["encrypted"] == true && links[0]["state"] == "helper", "{links:?}");
    let text = servers_text(&scene);
    assert!(text.contains(", encrypted: ") && !text.contains(", not encrypted: "), "{text}");
    let (ok, text) = spillway(&["status", "--socket", &scene.status_socket]);
    assert!(ok && text.contains("1 of 1 links up (encrypted)"), "{text}");
}

#[test]
fn links_of_older_peers_are_accepted_and_shown_where_encryption_is_not_required() {
    let scene = Scene::start();
    let mut old =
        LinkPeer::open_as(scene.link, Role::Helper, &scene.helper_key, Encryption::Off).ok().unwrap();
    old.connect("127.0.0.1:999".parse().unwrap()).unwrap();
    let encrypted = |links: Vec<Value>| {
        let mut flags: Vec<bool> = links.iter().map(|link| link["encrypted"] == true).collect();
        flags.sort_unstable();
        flags
    };
    assert_eq!(encrypted(servers_links(&scene)), [false, true]);
    let text = servers_text(&scene);
    assert!(text.contains(", encrypted: ") && text.contains(", not encrypted: "), "{text}");
}

#[test]
fn a_server_that_requires_encryption_refuses_older_peers() {
    let scratch = Scratch::new();
    let log = scratch.path("server.log");
    let scene = Scene::with(Options {
        run_arguments: vec!["--require-encryption"],
        server_log: Some(log.clone()),
        ..Options::default()
    });
    for (role, key) in [(Role::Helper, &scene.helper_key), (Role::Client, &scene.client_key)] {
        let old = LinkPeer::open_as(scene.link, role, key, Encryption::Off)
            .err()
            .expect("refusal of an unencrypted link");
        assert_eq!(old, End::Refused("the server supports none of our link versions".into()), "{role}");
        assert!(LinkPeer::open(scene.link, role, key).is_ok(), "an encrypting {role} should be accepted");
    }
    eventually("the reason in the log", || fs::read_to_string(&log).unwrap().contains(REFUSAL));
}

#[test]
fn a_helper_that_requires_encryption_by_file_refuses_older_clients() {
    let scene = Scene::start();
    let [plain_port, links] = [(); 2].map(|()| loopback(free_port()));
    let file = |name: &str| scene.scratch.path(name);
    let text = format!(
        "[helper]\nthreads = 1\nsocket = \"{}\"\n[service.cache]\nserver = \"{}\"\nlisten = [\"{plain_port}\"]\n\
         link_listen = [\"{links}\"]\nkey_files = [\"{}\"]\nclient_key_files = [\"{}\"]\nrequire_encryption = true\n",
        file("required.sock"),
        scene.link,
        file("helper.key"),
        file("client.key"),
    );
    fs::write(file("required.toml"), text).unwrap();
    let launch = Launch::new(SPILLWAY).name("required").args(["helper", "--config", &file("required.toml")]);
    let _helper = scene.place.spawn(&launch).unwrap();
    eventually("a reply through the helper", || {
        Client::try_new(plain_port).is_some_and(|mut client| client.version().is_some())
    });
    let old = LinkPeer::open_as(links, Role::Client, &scene.client_key, Encryption::Off).err();
    assert_eq!(old, Some(End::Refused("the server supports none of our link versions".into())));
    assert!(LinkPeer::open(links, Role::Client, &scene.client_key).is_ok());
}

/// A link port of an older version without encryption, which accepts links and never replies to requests.
fn older_server(role: Role, key: &Key) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut ring = KeyRing::new();
    ring.accept(role, key.clone());
    let config = Arc::new(ServerConfig { ring, encryption: Encryption::Off, ..ServerConfig::default() });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || serve_older(stream, config));
        }
    });
    address
}

/// Serves one link until its peer closes it, which may be before the link is accepted.
fn serve_older(mut stream: TcpStream, config: Arc<ServerConfig>) {
    let (Ok(peer), Ok(address)) = (stream.peer_addr(), stream.local_addr()) else { return };
    let mut link =
        ServerLink::new(config, Time::ZERO, peer, address, spillway_keys::fresh_link_randomness().unwrap());
    let (mut buffer, mut opened) = ([0; 4096], Plaintext::new());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut input = link.unseal(Time::ZERO, &buffer[..count], &mut opened);
        while let Ok(Some(_)) = link.decompose(Time::ZERO, &mut input) {}
        let Some(batch) = link.flush(Time::ZERO) else { continue };
        if stream.write_all(batch.as_slice()).is_err() {
            break;
        }
    }
}

#[test]
fn a_helper_that_requires_encryption_refuses_an_older_server() {
    let (place, scratch) = (Place::local().unwrap(), Scratch::new());
    let (key_file, key) = scratch.key("helper.key");
    let server = older_server(Role::Helper, &key);
    let start = |required: &[&str], log: &str| {
        let launch = Launch::new(SPILLWAY)
            .name("helper")
            .args([
                "helper",
                "--service",
                &format!("old={server}"),
                "--listen",
                &loopback(free_port()).to_string(),
            ])
            .args([
                "--key",
                &key_file,
                "--threads",
                "1",
                "--status-socket",
                &scratch.path(&format!("{log}.sock")),
            ])
            .args(required)
            .wrapper(support::logs::redirect_stderr(Some(&scratch.path(log))));
        place.spawn(&launch).unwrap()
    };
    let (_required, _preferred) = (start(&["--require-encryption"], "required"), start(&[], "preferred"));
    let log_text = |log: &str| fs::read_to_string(scratch.path(log)).unwrap_or_default();
    eventually("the reason in the log", || log_text("required").contains(REFUSAL));
    let status = |log: &str| spillway(&["status", "--socket", &scratch.path(&format!("{log}.sock"))]).1;
    eventually("an unencrypted link of the helper that does not require encryption", || {
        status("preferred").contains("1 of 1 links up (not encrypted)")
    });
    assert!(status("required").contains("0 of 1 links up"), "{}", status("required"));
}

#[test]
fn sidecar_that_requires_encryption_opens_no_link_to_an_older_server() {
    let (place, scratch) = (Place::local().unwrap(), Scratch::new());
    let (key_file, key) = scratch.key("client.key");
    let server = older_server(Role::Client, &key);
    let log = scratch.path("sidecar.log");
    let address = loopback(free_port());
    let launch = Launch::new(SPILLWAY)
        .name("sidecar")
        .args(["sidecar", "--link", &server.to_string(), "--listen", &address.to_string()])
        .args(["--client-key", &key_file, "--protocol", "memcached", "--require-encryption"])
        .args(["--status-socket", &scratch.path("sidecar.sock")])
        .wrapper(support::logs::redirect_stderr(Some(&log)));
    let _sidecar = place.spawn(&launch).unwrap();
    let mut client = None;
    eventually("a client that the sidecar accepts", || {
        client = Client::try_new(address);
        client.is_some()
    });
    let _ = client.as_mut().map(|client| client.stream().try_clone().unwrap().write_all(b"version\r\n"));
    eventually("the reason in the log", || fs::read_to_string(&log).unwrap_or_default().contains(REFUSAL));
}

#[test]
fn requiring_encryption_needs_a_key() {
    let scratch = Scratch::new();
    let listen = loopback(free_port()).to_string();
    let server = loopback(free_port()).to_string();
    let refusal = "links without a key are not encrypted";
    for arguments in [
        &["run", "--require-encryption", "--", "true"][..],
        &["sidecar", "--link", &server, "--listen", &listen, "--require-encryption"],
        &["helper", "--service", &format!("cache={server}"), "--listen", &listen, "--require-encryption"],
        &["load", "--server", &server, "--require-encryption"],
    ] {
        let (ok, text) = spillway(arguments);
        assert!(!ok && (text.contains(refusal) || text.contains("--client-key")), "{arguments:?}: {text}");
    }
    let config = scratch.path("keyless.toml");
    let text = format!(
        "[helper]\n[service.cache]\nserver = \"{server}\"\nlisten = [\"{listen}\"]\nrequire_encryption = true\n"
    );
    fs::write(&config, text).unwrap();
    let (ok, text) = spillway(&["check", &config]);
    assert!(!ok && text.contains(refusal) && text.contains(":5:"), "{text}");
}
