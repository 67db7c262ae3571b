//! Flow control: clients that do not read, full links, and their recovery.

mod support;

use std::time::{Duration, Instant};

use spillway_batch::Id;
use support::driver::{Driver, WAIT_MAX};
use support::memcached::memcached;

const LARGE_BYTES: usize = 900_000;

fn store_large(link: &mut Driver) -> (Id, Vec<u8>) {
    let id = link.connect();
    let value: Vec<u8> = (0..LARGE_BYTES).map(|at| b'a' + (at % 23) as u8).collect();
    let mut set = format!("set large 0 0 {LARGE_BYTES}\r\n").into_bytes();
    set.extend_from_slice(&value);
    set.extend_from_slice(b"\r\n");
    assert_eq!(link.ask(id, &set, b"STORED\r\n"), b"STORED\r\n");
    let mut reply = format!("VALUE large 0 {LARGE_BYTES}\r\n").into_bytes();
    reply.extend_from_slice(&value);
    reply.extend_from_slice(b"\r\nEND\r\n");
    (id, reply)
}

/// More than 10 MB of replies wait for credit: the server's connection must become writable again.
#[test]
fn replies_of_ten_megabytes_arrive_after_the_client_pauses() {
    let server = memcached(&["-t", "1"], &[]);
    let mut link = Driver::loopback(server.link);
    let (_, reply) = store_large(&mut link);
    let id = link.connect();
    link.of(id).is_unread = true;
    const COUNT: usize = 12;
    for _ in 0..COUNT {
        link.send(id, b"get large\r\n");
    }
    // The credit is used up; the application waits for EPOLLOUT.
    let credit = 256 * 1024;
    link.run(|link| link.connections[&id].received.len() >= credit);
    assert_eq!(link.connections[&id].received.len(), credit);
    let other = link.connect();
    assert_eq!(
        link.ask(other, b"get nothing\r\n", b"END\r\n"),
        b"END\r\n",
        "other clients should be served meanwhile"
    );
    link.read_again(id);
    link.run(|link| link.connections[&id].received.len() >= COUNT * reply.len());
    assert!(link.take(id) == reply.repeat(COUNT));
}

/// The driver does not read the link's socket, so the link's own buffer becomes full.
#[test]
fn full_link_recovers_when_the_peer_reads() {
    for threads in ["1", "4"] {
        let server = memcached(&["-t", threads], &[]);
        let mut link = Driver::loopback(server.link);
        let (_, reply) = store_large(&mut link);
        let ids: Vec<Id> = (0..100).map(|_| link.connect()).collect();
        for id in &ids {
            link.send(*id, b"get large\r\n");
        }
        link.flush();
        // 100 times 256 KiB of credit: far more than the link's buffer and its socket hold.
        let mut other_link = Driver::loopback(server.link);
        let other = other_link.connect();
        assert_eq!(other_link.ask(other, b"get nothing\r\n", b"END\r\n"), b"END\r\n");
        link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= reply.len()));
        for id in &ids {
            assert!(link.take(*id) == reply);
        }
    }
}

#[test]
fn clients_that_never_read_take_bounded_memory() {
    let server = memcached(&["-t", "1"], &[]);
    let mut link = Driver::loopback(server.link);
    let (first, _) = store_large(&mut link);
    let before = server.resident_bytes();
    let ids: Vec<Id> = (0..50).map(|_| link.connect()).collect();
    for id in &ids {
        link.of(*id).is_unread = true;
        // The replies would be more than 2 GB for each client.
        for _ in 0..2500 {
            link.send(*id, b"get large\r\n");
        }
    }
    let credit = 256 * 1024;
    link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= credit));
    for _ in 0..100 {
        assert_eq!(link.ask(first, b"get nothing\r\n", b"END\r\n"), b"END\r\n");
    }
    let grown = server.resident_bytes().saturating_sub(before);
    // 50 times 64 KiB of requests, twice the link's 4 MB, and memcached's buffers for 50 connections.
    assert!(grown < 48 * 1024 * 1024, "memory should grow by less than 48 MiB: {grown} bytes");
    assert!(
        ids.iter().all(|id| link.connections[id].received.len() == credit),
        "no client should receive more than its credit"
    );
}

/// One thread of memcached writes the log to all watchers, and polls each of them for room, so each client needs flow
/// control of its own.
#[test]
fn log_watcher_that_does_not_read_is_skipped_until_it_reads() {
    let server = memcached(&["-t", "2"], &[]);
    let mut link = Driver::loopback(server.link);
    let (quick, slow, other) = (link.connect(), link.connect(), link.connect());
    for watcher in [quick, slow] {
        assert_eq!(link.ask(watcher, b"watch fetchers\r\n", b"OK\r\n"), b"OK\r\n");
    }
    link.of(slow).is_unread = true;
    let key = "k".repeat(200);
    let gets = format!("get {key}\r\n").repeat(50).into_bytes();
    let misses = b"END\r\n".repeat(50);
    let credit = 256 * 1024 - b"OK\r\n".len();
    let mut rounds = 0;
    // Until the slow watcher has used up its credit, and more lines were logged.
    while link.connections[&slow].received.len() < credit || rounds < 100 {
        link.send(other, &gets);
        link.run(|link| link.connections[&other].received.len() >= misses.len());
        assert_eq!(link.take(other), misses);
        rounds += 1;
        assert!(
            rounds < 5000,
            "the slow watcher should use up its credit within 5000 rounds: {} bytes received",
            link.connections[&slow].received.len()
        );
    }
    assert_eq!(
        link.connections[&slow].received.len(),
        credit,
        "the slow watcher should receive exactly its credit"
    );
    let line = format!("type=item_get key={key} status=not_found");
    let has_line = |bytes: &[u8]| bytes.windows(line.len()).any(|window| window == line.as_bytes());
    link.run(|link| has_line(&link.connections[&quick].received));
    link.read_again(slow);
    link.take(slow);
    // The watcher receives new lines again; memcached drops lines while its log is behind.
    let has_new_line =
        |link: &Driver| link.connections[&slow].received.windows(9).any(|window| window == b"key=after");
    let deadline = Instant::now() + WAIT_MAX;
    while !has_new_line(&link) {
        assert!(Instant::now() < deadline, "the slow watcher should receive new lines within {WAIT_MAX:?}");
        link.send(other, b"get after\r\n");
        link.flush();
        link.receive(Duration::from_millis(20));
    }
}

#[test]
fn connections_closed_with_requests_in_flight_do_not_affect_others() {
    let server = memcached(&["-t", "4"], &[]);
    let mut link = Driver::loopback(server.link);
    let kept = link.connect();
    for _ in 0..50 {
        let ids: Vec<Id> = (0..40).map(|_| link.connect()).collect();
        for (number, id) in ids.iter().enumerate() {
            // The requests after `quit` arrive while the server closes the connection.
            link.send(*id, b"get a\r\nget b\r\n");
            link.flush();
            link.send(*id, b"quit\r\n");
            link.flush();
            link.send(*id, b"get c\r\nget d\r\n");
            if number % 3 == 0 {
                link.link.close(*id, spillway_batch::CloseReason::Reset);
                link.of(*id).closed = Some(spillway_batch::CloseReason::Reset);
            }
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        assert_eq!(link.ask(kept, b"get nothing\r\n", b"END\r\n"), b"END\r\n");
        link.connections.retain(|id, _| *id == kept);
    }
}
