//! Attacks on the memory of a helper and of a sidecar, with a real memcached: attackers are closed, others are served.

mod support;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use spillway_batch::{Connect, Control, Role};
use spillway_lab::peers::Memcached;
use spillway_lab::{Launch, Process};
use spillway_ports::free_port;
use support::link::LinkPeer;
use support::sidecar::Deployment;
use support::{Client, SPILLWAY, Scene, SetOnDrop, eventually, loopback, resident};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 1_000_000;
/// Number of values that together (8 MB) exceed what the kernel buffers for a client: at most 4 MiB
/// (`net.ipv4.tcp_wmem`).
const MANY_VALUES: usize = 8;
/// Minimum duration of an attack by clients that never read.
const ATTACK_MIN: Duration = Duration::from_secs(6);

/// A second helper of the scene, with a limit on its memory.
struct LimitedHelper<'a> {
    helper: Process,
    scene: &'a Scene,
    plain_port: SocketAddr,
    client_link: SocketAddr,
}

impl<'a> LimitedHelper<'a> {
    fn start(scene: &'a Scene, max_memory: &str) -> LimitedHelper<'a> {
        let [plain_port, client_link] = [(); 2].map(|()| loopback(free_port()));
        write_config(scene, plain_port, client_link, max_memory);
        let launch =
            Launch::new(SPILLWAY).name("bounded").args(["helper", "--config", &scene.scratch.path("b.toml")]);
        let helper = scene.place.spawn(&launch.open_files(65_536)).unwrap();
        let bounded = LimitedHelper { helper, scene, plain_port, client_link };
        eventually("the helper serves", || {
            Client::try_new(plain_port).is_some_and(|mut client| client.version().is_some())
        });
        bounded
    }

    fn command(&self, arguments: &[&str]) -> String {
        let socket = self.scene.scratch.path("b.sock");
        let output = Command::new(SPILLWAY).args(arguments).args(["--socket", &socket]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.command(&["status", "--json"])).unwrap()
    }

    fn closed_for_memory(&self) -> u64 {
        self.status()["services"][0]["reset"]["memory"].as_u64().unwrap()
    }
}

fn write_config(scene: &Scene, plain_port: SocketAddr, client_link: SocketAddr, max_memory: &str) {
    let text = format!(
        "[helper]\nthreads = 1\nsocket = \"{}\"\nmax_memory = \"{max_memory}\"\n[service.cache]\nserver = \"{}\"\n\
         listen = [\"{plain_port}\"]\nlink_listen = [\"{client_link}\"]\nkey_files = [\"helper.key\"]\n\
         client_key_files = [\"client.key\"]\n",
        scene.scratch.path("b.sock"),
        scene.link
    );
    fs::write(scene.scratch.path("b.toml"), text).unwrap();
}

/// A plain client that requests this number of large values and never reads.
fn never_reading_client(address: SocketAddr, values: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(&b"get big\r\n".repeat(values)).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn is_reset(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() != ErrorKind::WouldBlock)
        || matches!(stream.take_error(), Ok(Some(_)))
}

/// Sends requests over one connection until `is_over`; each must be answered. Returns their number.
fn request_until(address: SocketAddr, key: &str, bytes: usize, is_over: &AtomicBool) -> u64 {
    let (mut client, mut answered) = (Client::new(address), 0);
    while !is_over.load(Ordering::Relaxed) {
        let value = client.get(key).expect("value of the key");
        assert_eq!(value.len(), bytes);
        answered += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    answered
}

fn fill(server: SocketAddr) {
    let mut client = Client::new(server);
    client.set("big", &vec![b'v'; VALUE_BYTES]);
    client.set("small", b"12345");
}

struct Attacked {
    /// Connections of attackers that were reset; each is opened again.
    closed: u64,
    /// Honest clients that connected meanwhile and had a request answered.
    new_clients: u64,
    peak_bytes: u64,
}

/// When an attack ends; at the latest after [`support::PATIENCE`].
#[derive(Clone, Copy, PartialEq)]
enum AttackEnd {
    /// After [`ATTACK_MIN`], once an attacker was closed and an honest client was served.
    ClosedAttacker,
    /// After [`ATTACK_MIN`], once an honest client was served.
    Duration,
}

/// Runs clients that request large values and never read, and honest clients, whose requests must not fail.
fn attack(address: SocketAddr, pid: u32, (attackers, values): (usize, usize), end: AttackEnd) -> Attacked {
    let (is_over, new_clients, peak) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut closed = 0;
    std::thread::scope(|scope| {
        let ending = SetOnDrop(&is_over);
        let honest = [("small", 5), ("small", 5), ("big", VALUE_BYTES)].map(|(key, bytes)| {
            scope.spawn({
                let is_over = &is_over;
                move || request_until(address, key, bytes, is_over)
            })
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let mut client = Client::try_new(address).expect("connection of a new client");
                assert!(client.version().is_some(), "a new client should be served");
                new_clients.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                peak.fetch_max(resident(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut attackers: Vec<TcpStream> =
            (0..attackers).filter_map(|_| never_reading_client(address, values)).collect();
        let began = Instant::now();
        let is_enough = |closed| {
            let (is_served, is_long_enough) =
                (new_clients.load(Ordering::Relaxed) > 0, began.elapsed() >= ATTACK_MIN);
            is_served && is_long_enough && (closed > 0 || end == AttackEnd::Duration)
        };
        while !is_enough(closed) && began.elapsed() < support::PATIENCE {
            for attacker in attackers.iter_mut().filter(|attacker| is_reset(attacker)) {
                if let Some(another) = never_reading_client(address, values) {
                    *attacker = another;
                    closed += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(ending);
        let answered = honest.map(|client| client.join().expect("join honest client"));
        println!("answered {answered:?}, attackers closed {closed}, new clients {new_clients:?}");
        assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
    });
    let (new_clients, peak_bytes) = (new_clients.into_inner(), peak.into_inner());
    println!("peak {} MiB", peak_bytes / MIB);
    assert!(new_clients > 0);
    Attacked { closed, new_clients, peak_bytes }
}

/// `max_memory` limits buffers for clients' data. The whole process may use a quarter of it and 32 MiB more,
/// as docs/configuration.md says.
#[track_caller]
fn assert_within_limit(peak_bytes: u64, max_memory: u64) {
    assert!(peak_bytes <= max_memory * 5 / 4 + 32 * MIB, "{} MiB resident", peak_bytes / MIB);
}

#[test]
fn slow_readers_of_large_values_do_not_affect_other_clients() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = LimitedHelper::start(&scene, "8MiB");
    let attacked = attack(bounded.plain_port, bounded.helper.pid(), (300, 1), AttackEnd::ClosedAttacker);
    assert_within_limit(attacked.peak_bytes, 8 * MIB);
    assert!(attacked.closed > 0 && bounded.closed_for_memory() > 0);
    let log = bounded.helper.stderr().unwrap();
    // The first line says that clients are paused, the second that a client was reset.
    assert!(log.contains("memory is scarce"), "{log}");
    assert!(log.contains("memory is short") && log.contains("or raise max_memory"), "{log}");
    eventually("enough memory", || bounded.status()["threads_scarce"] == 0);
}

/// A helper fetches little for a client that never reads, so 300 such clients do not make 64 MiB scarce
/// (docs/limits.md, 'Memory of a helper'), and none needs to be closed. Closed clients would reconnect,
/// repeat their requests and so delay other clients.
#[test]
fn many_slow_readers_of_large_values_are_within_the_bound_and_not_closed() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = LimitedHelper::start(&scene, "64MiB");
    let attacked = attack(bounded.plain_port, bounded.helper.pid(), (300, MANY_VALUES), AttackEnd::Duration);
    assert_within_limit(attacked.peak_bytes, 64 * MIB);
    assert_eq!((attacked.closed, bounded.closed_for_memory()), (0, 0));
}

#[test]
fn slow_readers_of_large_values_do_not_affect_other_clients_of_a_sidecar() {
    let deployment =
        Deployment::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(deployment.server.address());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--max-memory", "64MiB"]);
    let mut idle = Client::new(sidecar.address);
    assert!(idle.version().is_some());
    let attacked =
        attack(sidecar.address, sidecar.process.pid(), (300, MANY_VALUES), AttackEnd::ClosedAttacker);
    assert_within_limit(attacked.peak_bytes, 64 * MIB);
    assert!(attacked.closed > 0);
    assert!(sidecar.number("/ended/memory") >= attacked.closed, "{:#}", sidecar.status());
    assert_eq!(sidecar.number("/refused/memory"), 0, "{} new clients", attacked.new_clients);
    assert!(idle.version().is_some(), "a client that holds no memory should not be closed");
    let log = sidecar.process.stderr().unwrap();
    assert!(log.contains("memory is scarce"), "{log}");
    assert!(log.contains("client reset: memory is short") && log.contains("or raise max_memory"), "{log}");
    eventually("enough memory", || sidecar.number("/threads_scarce") == 0);
}

/// A client that requests more than the kernel buffers, and does not read at first.
fn paused_reader(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(&b"get big\r\n".repeat(MANY_VALUES)).unwrap();
    stream
}

#[test]
fn sidecar_pauses_clients_that_do_not_read_and_continues_when_they_read() {
    let deployment =
        Deployment::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(deployment.server.address());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--max-memory", "8MiB"]);
    // A client that does not read holds at least 256 KiB (a session's window) and at most 320 KiB (the
    // window, and the 64 KiB that the sidecar reads at a time). So 25 clients hold more than three quarters
    // of the limit, where memory becomes scarce, and less than the limit.
    let slow: Vec<TcpStream> = (0..25).map(|_| paused_reader(sidecar.address)).collect();
    eventually("memory is scarce", || sidecar.number("/threads_scarce") > 0);
    let mut stream = &slow[0];
    let mut idle = Client::new(sidecar.address);
    // The first client is paused only while replies wait for it. On a busy machine memory may become scarce
    // before that, so requests are sent until one is not read.
    eventually("only the other client's request is read", || {
        let bytes_before = sidecar.number("/request_bytes");
        stream.write_all(b"version\r\n").unwrap();
        assert_eq!(idle.get("small").as_deref(), Some(&b"12345"[..]), "other clients should be served");
        sidecar.number("/request_bytes") == bytes_before + b"get small\r\n".len() as u64
    });
    assert!(sidecar.number("/connections_paused") > 0);
    // All clients read at once: while memory is scarce, the sidecar closes clients that do not read for 10 s.
    let mut expected = format!("VALUE big 0 {VALUE_BYTES}\r\n").into_bytes();
    expected.resize(expected.len() + VALUE_BYTES, b'v');
    expected.extend(b"\r\nEND\r\n");
    std::thread::scope(|scope| {
        for mut stream in &slow {
            let expected = &expected;
            scope.spawn(move || {
                let mut reply = vec![0; expected.len()];
                for _ in 0..MANY_VALUES {
                    stream.read_exact(&mut reply).unwrap();
                    assert!(reply == *expected);
                }
            });
        }
    });
    let mut version = [0; 8];
    stream.read_exact(&mut version).unwrap();
    assert_eq!(&version, b"VERSION ");
    eventually("enough memory", || sidecar.number("/threads_scarce") == 0);
    assert_eq!(sidecar.number("/ended/memory"), 0);
}

#[test]
fn requests_to_a_paused_server_close_no_client_of_a_sidecar() {
    let mut deployment =
        Deployment::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--max-memory", "4MiB"]);
    let mut idle = Client::new(sidecar.address);
    assert!(idle.version().is_some());
    let mut writers: Vec<Client> = (0..40).map(|_| Client::new(sidecar.address)).collect();
    writers.iter_mut().for_each(|client| assert!(client.version().is_some()));
    eventually("the server has received all requests", || sidecar.number("/buffered_bytes") == 0);
    support::pause(deployment.server.process());
    let value = vec![b'v'; 200_000];
    for client in &mut writers {
        client.send(b"set written 0 0 200000\r\n");
        client.send(&value);
        client.send(b"\r\n");
    }
    eventually("memory is used up", || {
        drop(TcpStream::connect(sidecar.address));
        sidecar.number("/refused/memory") > 0
    });
    let held = sidecar.number("/buffered_bytes");
    assert!(held <= 5 * MIB, "{held} bytes");
    let bytes_before = sidecar.number("/request_bytes");
    idle.send(b"version\r\n");
    eventually("the request of a client that holds no memory is read", || {
        sidecar.number("/request_bytes") >= bytes_before + 9
    });
    deployment.server.process().signal(Signal::CONT.as_raw()).unwrap();
    writers.iter_mut().for_each(|client| assert_eq!(client.line(), "STORED"));
    assert!(idle.line().starts_with("VERSION "));
    assert_eq!(
        sidecar.not_ended_in_order(),
        sidecar.number("/ended/client_reset"),
        "only connections that the test dropped should have been reset, and none ended in another way: {:#}",
        sidecar.status()
    );
    assert!(Client::new(sidecar.address).version().is_some(), "new clients should be accepted again");
}

/// A library client opens virtual connections for a forbidden address again and again, and never reads the refusals.
#[test]
fn a_library_client_that_does_not_read_uses_bounded_memory() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = LimitedHelper::start(&scene, "8MiB");
    let mut idle = Client::new(bounded.plain_port);
    assert!(idle.version().is_some());
    let mut peer = LinkPeer::open(bounded.client_link, Role::Client, &scene.client_key).unwrap();
    let forbidden: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let connect =
        Control::Connect(Connect { client: forbidden, server: None, credit: 1 << 20, session: None });
    let (until, mut sent, mut peak) = (Instant::now() + Duration::from_secs(5), 0, 0);
    while sent < 256 * MIB && Instant::now() < until {
        // The same id each time: the helper refuses every connect.
        while peer.link().pending() < 1 << 20 {
            let id = peer.link().open_with_message(connect).expect("a free id");
            peer.link().release_relayed(id);
        }
        match peer.send_only() {
            Ok(bytes) => sent += bytes as u64,
            Err(_) => break,
        }
        peak = peak.max(resident(bounded.helper.pid()));
        let value = idle.get("small");
        assert_eq!(value.as_deref(), Some(&b"12345"[..]), "a client that holds no memory should be served");
    }
    println!("{} MiB sent, {} MiB resident at most", sent / MIB, peak / MIB);
    assert!(peak <= 8 * MIB * 5 / 4 + 32 * MIB, "{} MiB resident", peak / MIB);
    assert!(Client::new(bounded.plain_port).version().is_some(), "new clients should be accepted");
}

#[test]
fn lower_memory_limit_closes_the_largest_clients_and_no_active_one() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = LimitedHelper::start(&scene, "256MiB");
    let attackers: Vec<TcpStream> =
        (0..200).filter_map(|_| never_reading_client(bounded.plain_port, MANY_VALUES)).collect();
    eventually("the attackers hold much memory", || {
        bounded.status()["buffered_bytes"].as_u64().unwrap() > 20 * MIB
    });
    let mut active: Vec<Client> = (0..10).map(|_| Client::new(bounded.plain_port)).collect();
    active.iter_mut().for_each(|client| assert!(client.get("small").is_some()));
    assert_eq!(bounded.closed_for_memory(), 0);
    write_config(&scene, bounded.plain_port, bounded.client_link, "4MiB");
    let message = bounded.command(&["reload"]);
    assert!(message.contains("max_memory"), "{message}");
    assert!(bounded.status()["buffered_bytes"].as_u64().unwrap() <= 4 * MIB);
    active.iter_mut().for_each(|client| {
        assert!(client.get("small").is_some(), "a client that holds no memory should stay")
    });
    let reset = attackers.iter().filter(|attacker| is_reset(attacker)).count();
    assert!(reset > 100, "{reset}");
    drop(attackers);
}

/// Checks that writes after the server's close fail soon, as on a connection of the kernel, not after 10 s.
#[track_caller]
fn writes_fail_soon_after(address: SocketAddr, quit: &[u8], expected: &[u8], late: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(quit).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("an orderly end of the stream");
    assert_eq!(reply, expected);
    let mut accepted_writes = 0;
    while stream.write_all(late).is_ok() {
        accepted_writes += 1;
        // Without a reset, a timer would end the connection after 10 s, nearly 200 writes. 60 take 3 s.
        assert!(accepted_writes < 60, "writes should fail soon after the close");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_writes_after_memcached_has_closed_is_reset() {
    let scene = Scene::start();
    for _ in 0..3 {
        writes_fail_soon_after(scene.plain_port, b"quit\r\n", b"", b"set a 0 0 1 noreply\r\nx\r\n");
    }
}

#[test]
fn a_client_that_writes_after_redis_has_closed_is_reset() {
    let scene = Scene::start();
    let [link, plain_port] = [(); 2].map(|()| loopback(free_port()));
    let key = scene.scratch.path("helper.key");
    let wrapper =
        [SPILLWAY, "run", "--link", &link.to_string(), "--key", &key, "--require", "--"].map(str::to_owned);
    let _server = spillway_lab::peers::Redis::default().wrapper(wrapper).start(&scene.place).unwrap();
    let launch = Launch::new(SPILLWAY)
        .name("helper of redis")
        .args([
            "helper",
            "--service",
            &format!("cache={link}"),
            "--listen",
            &plain_port.to_string(),
            "--key",
            &key,
        ])
        .args(["--threads", "1", "--status-socket", &scene.scratch.path("redis.sock")]);
    let _helper = scene.place.spawn(&launch).unwrap();
    eventually("the helper serves", || TcpStream::connect(plain_port).is_ok());
    for _ in 0..3 {
        writes_fail_soon_after(plain_port, b"QUIT\r\n", b"+OK\r\n", b"SET a b\r\n");
    }
}
