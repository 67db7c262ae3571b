//! An unmodified memcached serves helped clients on the link port, and plain clients on its ordinary port.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use spillway_batch::Id;
use support::driver::Driver;
use support::memcached::memcached;

fn value(seed: usize, length: usize) -> String {
    (0..length).map(|at| char::from(b'a' + ((seed * 31 + at * 7) % 26) as u8)).collect()
}

fn set(key: &str, value: &str) -> Vec<u8> {
    format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

fn hit(key: &str, value: &str) -> String {
    format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len())
}

/// Sends one request on each connection, so that a batch carries many, and checks all replies.
fn exchange(driver: &mut Driver, ids: &[Id], requests: &[Vec<u8>], replies: &[String]) {
    for (id, request) in ids.iter().zip(requests) {
        driver.send(*id, request);
    }
    let done = |driver: &Driver| {
        ids.iter().zip(replies).all(|(id, reply)| driver.connections[id].received.len() >= reply.len())
    };
    driver.run(done);
    for (id, reply) in ids.iter().zip(replies) {
        let received = driver.take(*id);
        assert!(received == reply.as_bytes(), "{id}: {:?}", String::from_utf8_lossy(&received));
    }
}

fn check_hundreds_of_connections(threads: &str) {
    let server = memcached(&["-t", threads], &[]);
    let mut links = [Driver::loopback(server.link), Driver::loopback(server.link)];
    let ids: Vec<Vec<Id>> = links.iter_mut().map(|link| (0..200).map(|_| link.connect()).collect()).collect();
    let mut plain = TcpStream::connect(server.plain).unwrap();
    for turn in 0..20 {
        // Some values are large, up to 600 KB, which is more than the credit.
        let length = |number: usize| match (number + turn) % 50 {
            0 => 600_000,
            1 => 70_000,
            _ => (number * 13 + turn) % 500,
        };
        for (link_number, link) in links.iter_mut().enumerate() {
            let keys: Vec<String> = (0..200).map(|number| format!("key-{link_number}-{number}")).collect();
            let value_of = |number: usize| value(number + turn + 200 * link_number, length(number));
            let values: Vec<String> = (0..200).map(value_of).collect();
            let sets: Vec<Vec<u8>> = keys.iter().zip(&values).map(|(key, value)| set(key, value)).collect();
            let gets: Vec<Vec<u8>> = keys.iter().map(|key| get(key)).collect();
            let hits: Vec<String> = keys.iter().zip(&values).map(|(key, value)| hit(key, value)).collect();
            exchange(link, &ids[link_number], &sets, &vec!["STORED\r\n".to_string(); 200]);
            exchange(link, &ids[link_number], &gets, &hits);
        }
        let mut reply = [0; 8];
        plain.write_all(&set("plain", "x")).unwrap();
        plain.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"STORED\r\n");
    }
    for (link, ids) in links.iter().zip(&ids) {
        assert!(ids.iter().all(|id| link.connections[id].accepted && link.connections[id].closed.is_none()));
    }
}

#[test]
fn hundreds_of_connections_are_served_by_one_thread() {
    check_hundreds_of_connections("1");
}

#[test]
fn hundreds_of_connections_are_served_by_four_threads() {
    check_hundreds_of_connections("4");
}

#[test]
fn five_thousand_connections_are_served_and_their_slots_reused() {
    for threads in ["1", "4"] {
        let server = memcached(&["-t", threads, "-c", "8192"], &[]);
        let mut link = Driver::loopback(server.link);
        let ids: Vec<Id> = (0..5000).map(|_| link.connect()).collect();
        let keys: Vec<String> = (0..5000).map(|number| format!("k{number}")).collect();
        let values: Vec<String> = (0..5000).map(|number| value(number, 64)).collect();
        let sets: Vec<Vec<u8>> = keys.iter().zip(&values).map(|(key, value)| set(key, value)).collect();
        let gets: Vec<Vec<u8>> = keys.iter().map(|key| get(key)).collect();
        let hits: Vec<String> = keys.iter().zip(&values).map(|(key, value)| hit(key, value)).collect();
        exchange(&mut link, &ids, &sets, &vec!["STORED\r\n".to_string(); 5000]);
        for _ in 0..3 {
            exchange(&mut link, &ids, &gets, &hits);
        }
        // After all connections have closed, their descriptors and ids are free for as many new clients.
        for id in &ids {
            link.send(*id, b"quit\r\n");
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        link.connections.clear();
        let ids: Vec<Id> = (0..5000).map(|_| link.connect()).collect();
        exchange(&mut link, &ids, &gets, &hits);
    }
}

/// Ends the other threads of a test, also when an assertion of the test has failed.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn plain_clients_are_served_while_a_link_sends_continually() {
    let server = memcached(&["-t", "1"], &[]);
    let (stop, link_port) = (AtomicBool::new(false), server.link);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut link = Driver::loopback(link_port);
            let ids: Vec<Id> = (0..200).map(|_| link.connect()).collect();
            let (requests, replies) = (vec![get("nothing"); 200], vec!["END\r\n".to_string(); 200]);
            let mut exchanges = 0;
            while !stop.load(Ordering::Relaxed) {
                exchange(&mut link, &ids, &requests, &replies);
                exchanges += 1;
            }
            exchanges
        });
        let stopping = SetOnDrop(&stop);
        for _ in 0..200 {
            let mut plain = TcpStream::connect(server.plain).unwrap();
            for _ in 0..5 {
                let mut reply = [0; 5];
                plain.write_all(&get("nothing")).unwrap();
                plain.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"END\r\n");
            }
        }
        drop(stopping);
        assert!(busy.join().unwrap() > 0);
    });
}

#[test]
fn server_sees_the_clients_own_addresses() {
    let server = memcached(&[], &[]);
    let mut link = Driver::loopback(server.link);
    let first = link.connect_from("127.7.8.9:4711".parse().unwrap());
    let second = link.connect_from("[::1]:4712".parse().unwrap());
    let stats = link.ask(first, b"stats conns\r\n", b"END\r\n");
    let stats = String::from_utf8(stats).unwrap();
    assert!(stats.contains("addr tcp:127.7.8.9:4711"), "{stats}");
    assert!(stats.contains(&format!("listen_addr tcp:127.0.0.1:{}", server.plain.port())), "{stats}");
    let stats = String::from_utf8(link.ask(second, b"stats conns\r\n", b"END\r\n")).unwrap();
    assert!(stats.contains("addr tcp6:[::1]:4712"), "{stats}");
}

#[test]
fn pipelined_requests_and_replies_keep_their_order() {
    let server = memcached(&["-t", "4"], &[]);
    let mut link = Driver::loopback(server.link);
    let ids: Vec<Id> = (0..20).map(|_| link.connect()).collect();
    for id in &ids {
        let stored = link.ask(*id, &set(&format!("n{}", id.0), "0"), b"STORED\r\n");
        assert_eq!(stored, b"STORED\r\n");
    }
    let expected: String = (1..=500).map(|number| format!("{number}\r\n")).collect();
    for id in &ids {
        for _ in 0..500 {
            link.send(*id, format!("incr n{} 1\r\n", id.0).as_bytes());
        }
    }
    link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= expected.len()));
    for id in &ids {
        assert_eq!(String::from_utf8(link.take(*id)).unwrap(), expected);
    }
}

#[test]
fn half_closed_connection_receives_its_reply_and_is_closed() {
    let server = memcached(&[], &[]);
    let mut driver = Driver::loopback(server.link);
    let id = driver.connect();
    driver.send(id, &set("k", "v"));
    driver.link.finish(id);
    driver.run(|driver| driver.connections[&id].closed.is_some());
    assert_eq!(driver.take(id), b"STORED\r\n");
}
