//! Peers that may not use the link port, or misuse it, are refused or slowed down, and other clients are served.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_batch::{Connect, Control, Id, RefuseReason, Role};
use spillway_ports::SilentPeers;
use support::driver::Driver;
use support::memcached::memcached;

/// A key, and a file with it that only its owner may read. The file is removed when dropped.
struct KeyFile(Key, PathBuf);

impl KeyFile {
    fn new(name: &str) -> KeyFile {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).unwrap();
        let key = Key::from_secret(secret);
        let path = std::env::temp_dir().join(format!("spillway-{}-{name}.key", std::process::id()));
        fs::write(&path, key.to_text().as_bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        KeyFile(key, path)
    }

    fn path(&self) -> &str {
        self.1.to_str().unwrap()
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.1);
    }
}

#[test]
fn keys_are_accepted_only_in_their_roles() {
    let (old, new, client) = (KeyFile::new("old"), KeyFile::new("new"), KeyFile::new("client"));
    let both = format!("{}\n{}", new.path(), old.path());
    let server = memcached(&[], &[("SPILLWAY_KEYS", &both), ("SPILLWAY_CLIENT_KEYS", client.path())]);
    let mut kept = Driver::open(server.link, Role::Helper, old.0.clone()).unwrap();
    let id = kept.connect();
    kept.ask(id, b"get a\r\n", b"END\r\n");

    let refusal = |role, key: &Key| {
        Driver::open(server.link, role, key.clone()).err().expect("the link should be refused")
    };
    let stranger = Key::from_secret([7; 32]);
    for (role, key) in [
        (Role::Helper, &stranger),
        (Role::Client, &stranger),
        (Role::Helper, &client.0),
        (Role::Client, &new.0),
        (Role::Helper, &Key::loopback_only()),
    ] {
        let why = refusal(role, key);
        assert!(why.contains("key"), "{why}");
    }
    server.wait_for_log(&format!("key {} is not accepted for a helper", client.0.id()));
    assert!(Driver::open(server.link, Role::Helper, new.0.clone()).is_ok());
    assert!(Driver::open(server.link, Role::Client, client.0.clone()).is_ok());
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

#[test]
fn forged_client_addresses_are_refused() {
    let allow = [("SPILLWAY_ALLOW_CLIENTS", "10.1.0.0/16,127.0.0.0/8")];
    let server = memcached(&[], &allow);
    let mut link = Driver::loopback(server.link);
    let allowed = link.connect_from("10.1.2.3:4".parse().unwrap());
    let forged = link.connect_from("10.2.2.3:4".parse().unwrap());
    link.send(forged, b"get a\r\n");
    link.run(|link| link.connections[&forged].refused.is_some());
    assert_eq!(link.connections[&forged].refused, Some(RefuseReason::Forbidden));
    server.wait_for_log("client 10.2.2.3:4 through");
    assert_eq!(link.ask(allowed, b"get a\r\n", b"END\r\n"), b"END\r\n");

    // A library client may connect for its own address only.
    let mut client = Driver::open(server.link, Role::Client, Key::loopback_only()).unwrap();
    let own = client.stream.local_addr().unwrap();
    let mut other = own;
    other.set_port(own.port() ^ 1);
    let (own, other) = (client.connect_from(own), client.connect_from(other));
    client.run(|client| client.connections[&own].accepted && client.connections[&other].refused.is_some());
}

#[test]
fn random_bytes_on_the_link_port_end_only_their_own_link() {
    let server = memcached(&["-t", "2"], &[]);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    let mut hello = b"\xf5SPILLWY\x01\x01\x01\0".to_vec();
    let mut seed = 1u64;
    for round in 0..100 {
        let mut stream = TcpStream::connect(server.link).unwrap();
        let mut bytes: Vec<u8> = (0..round * 7 % 400)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            })
            .collect();
        if round % 3 == 0 {
            hello.truncate(12);
            hello.append(&mut bytes);
            let _ = stream.write_all(&hello);
        } else {
            let _ = stream.write_all(&bytes);
        }
        drop(stream);
        assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    }
    let mut stream = TcpStream::connect(server.link).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: cache.example\r\n\r\n").unwrap();
    assert_eq!(
        stream.read(&mut [0; 64]).unwrap_or(0),
        0,
        "the server should close the connection without an answer"
    );
    server.wait_for_log("this is not a Spillway link");

    // Random bytes after the handshake: the link and its connection are closed.
    let mut broken = Driver::loopback(server.link);
    let lost = broken.connect();
    broken.ask(lost, b"get a\r\n", b"END\r\n");
    broken.stream.write_all(&[0x7f; 100]).unwrap();
    while broken.lost.is_none() {
        broken.receive(Duration::from_millis(100));
    }
    server.wait_for_log("lost, with 1 connections: unknown frame kind");
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

#[test]
fn truncated_preamble_times_out() {
    let server = memcached(&[], &[]);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    let mut stream = TcpStream::connect(server.link).unwrap();
    stream.write_all(b"\xf5SPILL").unwrap();
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    stream.set_read_timeout(Some(support::driver::WAIT_MAX)).unwrap();
    let mut end = Vec::new();
    stream.read_to_end(&mut end).unwrap(); // retries interrupted reads
    assert!(end.is_empty(), "the server should close the connection without an answer");
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

#[test]
fn sending_beyond_the_credit_closes_that_connection_only() {
    let server = memcached(&["-t", "1"], &[]);
    let mut link = Driver::loopback(server.link);
    let kept = link.connect();
    let greedy = link.connect();
    link.ask(greedy, b"get a\r\n", b"END\r\n");
    // Frames that bypass the driver's own accounting: 4 MB at once, more than the credit.
    let mut frames = Vec::new();
    for _ in 0..64 {
        frames.extend_from_slice(&[1, 0xff, 0xff]);
        frames.extend_from_slice(&greedy.0.to_be_bytes());
        frames.extend_from_slice(&[b'x'; 0xffff]);
    }
    link.flush();
    link.stream.write_all(&frames).unwrap();
    link.run(|link| link.connections[&greedy].closed.is_some());
    assert_eq!(link.ask(kept, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

/// Peers without a key hold silent connections to the link port, and replace those that end: from one address, which
/// here is also the address of peers with a key, and from many addresses.
#[test]
fn strangers_with_silent_connections_do_not_block_new_links() {
    for sources in [1, 8, 300] {
        let server = memcached(&["-t", "2"], &[]);
        let mut kept = Driver::loopback(server.link);
        let id = kept.connect();
        let silent_peers = SilentPeers::hold(server.link, 300, sources);
        for _ in 0..20 {
            let mut link = Driver::loopback(server.link);
            let newcomer = link.connect();
            assert_eq!(link.ask(newcomer, b"get a\r\n", b"END\r\n"), b"END\r\n");
            assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
        }
        assert!(silent_peers.opened() >= 300);
        server.wait_for_log("dropped for a newer one");
    }
}

/// Frames of control messages, which bypass the driver's own accounting.
fn frames(controls: impl IntoIterator<Item = (Id, Control)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (id, control) in controls {
        control.emit(id, &mut bytes);
    }
    bytes
}

/// Resident memory of a process in KiB.
fn resident_kib(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Writes these bytes repeatedly without reading, until the server accepts no more for 200 ms. Returns the number of
/// bytes accepted. Calls `meanwhile` after each write that would block.
fn flood_until_blocked(stream: &mut TcpStream, bytes: &[u8], mut meanwhile: impl FnMut()) -> usize {
    const SENT_MAX: usize = 64 << 20;
    stream.set_nonblocking(true).unwrap();
    // `blocked` counts milliseconds in which the server reads nothing from this link.
    let (mut sent, mut blocked) = (0, 0);
    while blocked < 200 && sent < SENT_MAX {
        match stream.write(&bytes[sent % bytes.len()..]) {
            Ok(written) => (sent, blocked) = (sent + written, 0),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                blocked += 1;
                std::thread::sleep(Duration::from_millis(1));
                meanwhile();
            }
        }
    }
    sent
}

/// A helper requests connections without end, which are refused, and does not read the refusals: the server stops
/// reading this link, the server's memory is bounded, and other links are served.
#[test]
fn unread_refusals_block_their_own_link_only() {
    let allow = [("SPILLWAY_ALLOW_CLIENTS", "10.1.0.0/16,127.0.0.0/8")];
    let server = memcached(&["-t", "1"], &allow);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    kept.ask(id, b"get a\r\n", b"END\r\n");
    let before = resident_kib(server.pid());
    let mut misbehaving: Vec<Driver> = (0..4).map(|_| Driver::loopback(server.link)).collect();
    let forbidden = Connect { client: "10.2.2.2:1".parse().unwrap(), server: None, credit: 0, session: None };
    let batch = frames((0..1000).map(|_| (Id(1), Control::Connect(forbidden))));
    // Where in the batch each helper's last write ended.
    let mut offsets = Vec::new();
    for misbehaving in &mut misbehaving {
        let sent = flood_until_blocked(&mut misbehaving.stream, &batch, || {
            assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
        });
        assert!(sent < 64 << 20, "the server should stop reading before it has read {sent} bytes");
        offsets.push(sent % batch.len());
    }
    let grown = resident_kib(server.pid()).saturating_sub(before);
    assert!(grown < 8 * 1024, "memory should grow by less than 8 MiB: {grown} KiB");
    // The server reads from the first helper again once that helper reads.
    let mut first = misbehaving.remove(0);
    first.stream.set_nonblocking(false).unwrap();
    let mut reader = first.stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    first.stream.write_all(&batch[offsets[0]..]).unwrap();
    for _ in 0..200 {
        first.stream.write_all(&batch).unwrap();
    }
    first.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = reading.join();
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

/// A link's memory depends on the number of its open connections, and not on their ids.
#[test]
fn the_highest_id_costs_no_more_than_the_lowest() {
    let server = memcached(&["-t", "1"], &[]);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    kept.ask(id, b"get a\r\n", b"END\r\n");
    let before = resident_kib(server.pid());
    let client = "127.0.0.1:7".parse().unwrap();
    let connect = Control::Connect(Connect { client, server: None, credit: 1 << 16, session: None });
    let links: Vec<Driver> = (0..100)
        .map(|_| {
            let mut link = Driver::loopback(server.link);
            link.stream.write_all(&frames([(Id(65_536), connect)])).unwrap();
            let mut answer = [0; 7];
            link.stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [4, 0, 0, 0, 1, 0, 0], "the connection should be accepted");
            link
        })
        .collect();
    let grown = resident_kib(server.pid()).saturating_sub(before);
    assert!(
        grown < 100 * 100,
        "memory should grow by less than 100 KiB for each link: {grown} KiB for {} links",
        links.len()
    );
    assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
}

/// A link that sends only credit frames, as fast as it can, does not keep the server from serving others.
#[test]
fn a_flood_of_credit_does_not_block_other_links() {
    let server = memcached(&["-t", "1"], &[]);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    kept.ask(id, b"get a\r\n", b"END\r\n");
    let mut misbehaving = Driver::loopback(server.link);
    let own = misbehaving.connect();
    misbehaving.ask(own, b"get a\r\n", b"END\r\n");
    let batch =
        frames((0..1000).flat_map(|step| [(own, Control::Credit(step)), (Id(77), Control::Credit(step))]));
    let mut stream = misbehaving.stream.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        for _ in 0..300 {
            stream.write_all(&batch).unwrap();
        }
    });
    while !flood.is_finished() {
        assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
    }
    flood.join().unwrap();
    assert_eq!(
        misbehaving.ask(own, b"get a\r\n", b"END\r\n"),
        b"END\r\n",
        "the link should be served after the flood"
    );
}

fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = |field: usize| fields.split_whitespace().nth(field).unwrap().parse::<u64>().unwrap();
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// The server reads from a client that sends only *credit* at most once a second, serves others, and does not spin.
#[test]
fn a_client_that_sends_no_data_is_read_slowly() {
    let server = memcached(&["-t", "1"], &[]);
    let mut kept = Driver::loopback(server.link);
    let id = kept.connect();
    kept.ask(id, b"get a\r\n", b"END\r\n");
    let mut misbehaving = Driver::open(server.link, Role::Client, Key::loopback_only()).unwrap();
    let own = misbehaving.connect_from(misbehaving.stream.local_addr().unwrap());
    misbehaving.ask(own, b"get a\r\n", b"END\r\n");
    let batch = frames((0..1000).map(|step| (own, Control::Credit(step))));
    let sent = flood_until_blocked(&mut misbehaving.stream, &batch, || {});
    let (began, before) = (Instant::now(), cpu_time(server.pid()));
    let mut accepted = 0;
    while began.elapsed() < Duration::from_secs(3) {
        if let Ok(written) = misbehaving.stream.write(&batch[(sent + accepted) % batch.len()..]) {
            accepted += written;
        }
        assert_eq!(kept.ask(id, b"get a\r\n", b"END\r\n"), b"END\r\n");
        std::thread::sleep(Duration::from_millis(10));
    }
    let spent = cpu_time(server.pid()) - before;
    // A receive of 128 KiB in each second, and the sockets' buffers.
    assert!(
        (1..8 << 20).contains(&accepted),
        "the server should accept 1 byte to 8 MiB in 3 s: {accepted} bytes"
    );
    assert!(spent < Duration::from_secs(1), "the server should spend less than 1 s of CPU time: {spent:?}");
}
