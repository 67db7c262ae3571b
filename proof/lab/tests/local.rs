//! Starts memcached, Redis and proxies on loopback, without privileges.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use spillway_lab::peers::{Memcached, Proxy, Redis};
use spillway_lab::{LabError, Launch, Output, Place};

fn installed(program: &str) -> bool {
    let is_installed = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin"]
        .iter()
        .any(|directory| std::path::Path::new(directory).join(program).exists());
    if !is_installed {
        println!("skipped: {program} is not installed");
    }
    is_installed
}

#[test]
fn memcached_starts_stops_and_restarts() {
    if !installed("memcached") {
        return;
    }
    let place = Place::local().unwrap();
    let mut first = Memcached::default().start(&place).unwrap();
    let second = Memcached::default().threads(4).memory_mib(32).args(["-v"]).start(&place).unwrap();
    assert_ne!(first.address(), second.address());
    let mut stream = TcpStream::connect(second.address()).unwrap();
    stream.write_all(b"stats settings\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("STAT num_threads 4\r\n") && text.contains("STAT maxbytes 33554432\r\n"), "{text}");

    first.stop();
    assert!(TcpStream::connect(first.address()).is_err());
    first.restart().unwrap();
    assert!(TcpStream::connect(first.address()).is_ok());
}

#[test]
fn redis_starts_behind_a_wrapper() {
    if !installed("redis-server") {
        return;
    }
    let peer = Redis::default()
        .wrapper(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .start(&Place::local().unwrap())
        .unwrap();
    let mut stream = TcpStream::connect(peer.address()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    let process = std::path::Path::new("/proc").join(peer.pid().to_string());
    assert!(process.exists(), "{} should exist", process.display());
}

#[test]
fn proxies_forward_stop_and_restart() {
    if !["memcached", "nginx", "haproxy", "nutcracker"].into_iter().all(installed) {
        return;
    }
    let place = Place::local().unwrap();
    let server = Memcached::default().start(&place).unwrap();
    for proxy in [Proxy::nginx, Proxy::haproxy, Proxy::nutcracker] {
        let mut proxy = proxy(server.address()).start(&place).unwrap();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            stream.write_all(b"set k 0 0 2\r\nok\r\nget k\r\n").unwrap();
            let mut reply = [0; 30];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply[..], b"STORED\r\nVALUE k 0 2\r\nok\r\nEND\r\n"[..30]);
            proxy.restart().unwrap();
        }
        proxy.stop();
        assert!(TcpStream::connect(proxy.address()).is_err());
    }
}

#[test]
fn a_taken_port_is_an_error_that_names_the_peer() {
    if !installed("memcached") {
        return;
    }
    let place = Place::local().unwrap();
    let taken = TcpListener::bind((place.address(), 0)).unwrap();
    let error = Memcached::default().port(taken.local_addr().unwrap().port()).start(&place).unwrap_err();
    assert!(matches!(error, LabError::NotReady { .. }));
    assert!(error.to_string().contains("memcached"), "{error}");
}

#[test]
fn output_goes_to_files_or_to_a_pipe() {
    let place = Place::local().unwrap();
    let script = Launch::new("sh").args(["-c", "echo $WORD; echo no >&2; exit 3"]).env("WORD", "yes");
    let mut process = place.spawn(&script.clone()).unwrap();
    assert_eq!(process.wait(std::time::Duration::from_secs(60)).unwrap().code(), Some(3));
    assert_eq!(process.stdout().unwrap(), "yes\n");
    assert_eq!(process.stderr().unwrap(), "no\n");
    assert_eq!(process.last_output(), "yes\n\nno\n", "a line feed should separate both outputs");
    assert!(process.signal(15).is_err(), "a process that has ended should get no signal");

    let mut process = place.spawn(&script.output(Output::Piped)).unwrap();
    let mut text = String::new();
    process.take_stdout().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "yes\n");
    assert!(process.stdout().is_err());
}

#[test]
fn stop_kills_the_whole_process_group() {
    let place = Place::local().unwrap();
    // The shell ends at once. Its child keeps the pipe open until `stop` kills the process group.
    let script = Launch::new("sh").args(["-c", "sleep 1000 & exit 0"]).output(Output::Piped);
    let mut process = place.spawn(&script).unwrap();
    let mut pipe = process.take_stdout().unwrap();
    assert!(process.wait(std::time::Duration::from_secs(60)).unwrap().success());
    assert!(process.stop(std::time::Duration::ZERO).unwrap().success());
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}
