//! Links that are lost, and limits that are reached.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use spillway_batch::Id;
use support::driver::{Driver, WAIT_MAX};
use support::memcached::memcached;
use support::process::Server;

/// A value of memcached's `stats`, over a plain connection.
fn statistic(server: &Server, name: &str) -> u64 {
    let mut stream = TcpStream::connect(server.plain).unwrap();
    stream.write_all(b"stats\r\n").unwrap();
    let mut text = String::new();
    while !text.ends_with("END\r\n") {
        let mut bytes = [0; 4096];
        let length = stream.read(&mut bytes).unwrap();
        assert!(length > 0);
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    let line = text.lines().find(|line| line.starts_with(&format!("STAT {name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} should occur within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn link_lost_mid_frame_ends_its_connections_only() {
    for threads in ["1", "4"] {
        let server = memcached(&["-t", threads], &[]);
        let mut kept = Driver::loopback(server.link);
        let kept_id = kept.connect();
        kept.ask(kept_id, b"get a\r\n", b"END\r\n");
        let mut lost = Driver::loopback(server.link);
        let ids: Vec<Id> = (0..100).map(|_| lost.connect()).collect();
        for id in &ids {
            lost.send(*id, b"get a\r\n");
        }
        lost.run(|lost| ids.iter().all(|id| lost.connections[id].received.ends_with(b"END\r\n")));
        // Counted only now, because connections of the readiness probes might have been open earlier.
        let with_all = statistic(&server, "curr_connections");
        assert!(with_all > 100, "memcached should count the helped connections: {with_all}");
        // A frame's header, and two of its 50 data bytes.
        lost.stream.write_all(&[1, 0, 50, 0, 0, 0, 1, b'g', b'e']).unwrap();
        lost.stream.shutdown(Shutdown::Both).unwrap();
        server.wait_for_log("lost, with 100 connections");
        wait_until("the end of 100 connections", || statistic(&server, "curr_connections") <= with_all - 100);
        assert_eq!(kept.ask(kept_id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    }
}

#[test]
fn helper_that_reconnects_often_is_served() {
    let server = memcached(&["-t", "2"], &[]);
    let idle = statistic(&server, "curr_connections");
    for _ in 0..50 {
        let mut link = Driver::loopback(server.link);
        let ids: Vec<Id> = (0..20).map(|_| link.connect()).collect();
        for id in &ids {
            link.send(*id, b"get a\r\n");
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].received.ends_with(b"END\r\n")));
    }
    wait_until("the end of all connections", || statistic(&server, "curr_connections") <= idle);
}

/// memcached's default: clients over the limit get an error and are closed.
#[test]
fn clients_over_memcacheds_limit_get_an_error() {
    let server = memcached(&["-t", "1", "-c", "30"], &[]);
    let mut link = Driver::loopback(server.link);
    let ids: Vec<Id> = (0..100).map(|_| link.connect()).collect();
    for id in &ids {
        link.send(*id, b"get a\r\n");
    }
    let is_answered = |link: &Driver, id: &Id| {
        let connection = &link.connections[id];
        connection.received.ends_with(b"END\r\n") || connection.closed.is_some()
    };
    link.run(|link| ids.iter().all(|id| is_answered(link, id)));
    let (served, rejected): (Vec<Id>, Vec<Id>) =
        ids.iter().partition(|id| link.connections[id].closed.is_none());
    assert!((1..30).contains(&served.len()), "fewer than 30 clients should be served: {}", served.len());
    for id in rejected {
        assert_eq!(link.take(id), b"ERROR Too many open connections\r\n");
    }
    for id in served {
        link.take(id);
        assert_eq!(link.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    }
}

/// memcached's other mode: at the limit it stops accepting, until clients have closed.
#[test]
fn clients_over_memcacheds_limit_wait() {
    let server = memcached(&["-t", "1", "-c", "30", "-o", "no_maxconns_fast"], &[]);
    check_waiting_clients_are_served(&server, &mut Driver::loopback(server.link));
}

/// Checks that 100 clients are served one after the other, as earlier ones close.
fn check_waiting_clients_are_served(server: &Server, link: &mut Driver) {
    let mut waiting: Vec<Id> = (0..100).map(|_| link.connect()).collect();
    for id in &waiting {
        link.send(*id, b"get a\r\n");
    }
    let (mut open, mut served) = (Vec::new(), 0);
    let deadline = Instant::now() + WAIT_MAX;
    while served < 100 {
        assert!(
            Instant::now() < deadline,
            "all 100 clients should be served, not only {served}\n{}",
            server.log()
        );
        link.flush();
        link.receive(Duration::from_millis(50));
        let is_served = |link: &Driver, id: &Id| link.connections[id].received.ends_with(b"END\r\n");
        let (done, rest): (Vec<Id>, Vec<Id>) = waiting.iter().partition(|id| is_served(link, id));
        served += done.len();
        open.extend(&done);
        waiting = rest;
        // Only one at a time: if all clients close while memcached decides to stop accepting, it never accepts again,
        // also without Spillway.
        if done.is_empty()
            && let Some(id) = open.pop()
        {
            link.send(id, b"quit\r\n");
        }
    }
}

#[test]
fn without_free_descriptors_clients_wait_and_links_are_refused() {
    let server = memcached(&["-t", "1"], &[]);
    let mut link = Driver::loopback(server.link);
    let first = link.connect();
    link.ask(first, b"get a\r\n", b"END\r\n");
    let in_use = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64;
    let limit = libc::rlimit { rlim_cur: in_use + 20, rlim_max: in_use + 20 };
    // SAFETY: the limit is a valid structure; the null pointer requests no old limit.
    let set = unsafe {
        libc::prlimit(server.pid() as i32, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
    };
    if set != 0 {
        println!("skipped: this needs the right to lower another process's limit (root)");
        return;
    }
    let ids: Vec<Id> = (0..50).map(|_| link.connect()).collect();
    link.flush();
    server.wait_for_log("a helped connection waits to be accepted: too many open files");
    assert!(
        Driver::open(server.link, spillway_batch::Role::Helper, spillway_auth::Key::loopback_only()).is_err()
    );
    server.wait_for_log("a link cannot be accepted: too many open files");
    link.take(first);
    assert_eq!(
        link.ask(first, b"get a\r\n", b"END\r\n"),
        b"END\r\n",
        "an accepted client should still be served"
    );
    for id in ids {
        link.send(id, b"quit\r\n");
    }
    link.flush();
    check_waiting_clients_are_served(&server, &mut link);
}
