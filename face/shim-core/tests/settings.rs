//! Settings in the environment, and errors in them.

mod support;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use support::driver::Driver;
use support::memcached::{Daemon, memcached};
use support::process::library;

/// Runs memcached until it ends. Returns whether it succeeded, and its standard error.
fn run_to_end(settings: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new("/usr/bin/memcached");
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", "-1"]).env("LD_PRELOAD", library());
    let output = command.envs(settings.iter().copied()).stdin(Stdio::null()).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn link_port_in_use_is_logged_and_ends_only_a_server_that_requires_it() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let server = memcached(&[], &[("SPILLWAY_LINK", &address)]);
    server.wait_for_log(&format!("the link port {address} cannot be opened: the address is in use"));
    assert!(TcpStream::connect(server.plain).is_ok());
    let (success, log) = run_to_end(&[("SPILLWAY_LINK", &address), ("SPILLWAY_REQUIRE", "1")]);
    assert!(!success);
    assert!(log.contains("--require was given"), "{log}");
}

#[test]
fn link_port_beyond_loopback_needs_a_readable_key() {
    let server = memcached(&[], &[("SPILLWAY_LINK", "0.0.0.0:11411")]);
    server.wait_for_log("needs a key");
    let (success, log) = run_to_end(&[("SPILLWAY_LINK", ":11411"), ("SPILLWAY_REQUIRE", "1")]);
    assert!(!success);
    assert!(log.contains("needs a key"), "{log}");
    let (success, log) = run_to_end(&[
        ("SPILLWAY_LINK", ":11411"),
        ("SPILLWAY_KEYS", "/no/such/key"),
        ("SPILLWAY_REQUIRE", "1"),
    ]);
    assert!(!success);
    assert!(log.contains("key file /no/such/key does not exist"), "{log}");
}

#[test]
fn library_does_nothing_when_switched_off() {
    let server = memcached(&[], &[("SPILLWAY_OFF", "1")]);
    assert!(TcpStream::connect(server.plain).is_ok());
    assert!(TcpStream::connect(server.link).is_err());
    assert_eq!(server.log(), "");
}

#[test]
fn link_port_stays_closed_if_the_server_does_not_listen_on_the_configured_port() {
    let server = memcached(&[], &[("SPILLWAY_PORT", "1")]);
    assert!(TcpStream::connect(server.plain).is_ok());
    assert!(TcpStream::connect(server.link).is_err());
}

/// Memcached is started as by Debian's scripts: it forks into the background before it listens.
#[test]
fn memcached_as_a_daemon_is_served() {
    let pid_file = std::env::temp_dir().join(format!("spillway-daemon-{}.pid", std::process::id()));
    let server = Daemon::start(&pid_file);
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    drop(server);
    let _ = std::fs::remove_file(pid_file);
}
