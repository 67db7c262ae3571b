//! Attacks on the memory of a helper and of a sidecar, with a real memcached: those who attack pay, everybody else is served.

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
use support::beside::Served;
use support::link::LinkPeer;
use support::{Client, Ending, SPILLWAY, Scene, eventually, loopback, resident};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 1_000_000;
/// More than the kernel takes for a client: up to `net.ipv4.tcp_wmem`, 4 MiB.
const MANY_VALUES: usize = 8;
/// How long clients that never read are there at least.
const ATTACK: Duration = Duration::from_secs(6);

/// A helper of its own, with a bound on its memory.
struct Bounded<'a> {
    helper: Process,
    scene: &'a Scene,
    raw: SocketAddr,
    client_link: SocketAddr,
}

impl<'a> Bounded<'a> {
    fn start(scene: &'a Scene, max_memory: &str) -> Bounded<'a> {
        let [raw, client_link] = [(); 2].map(|()| loopback(free_port()));
        write_config(scene, raw, client_link, max_memory);
        let launch =
            Launch::new(SPILLWAY).name("bounded").args(["helper", "--config", &scene.scratch.path("b.toml")]);
        let helper = scene.place.spawn(&launch.open_files(65_536)).unwrap();
        let bounded = Bounded { helper, scene, raw, client_link };
        eventually("it serves", || Client::try_new(raw).is_some_and(|mut client| client.version().is_some()));
        bounded
    }

    fn tell(&self, command: &[&str]) -> String {
        let socket = self.scene.scratch.path("b.sock");
        let output = Command::new(SPILLWAY).args(command).args(["--socket", &socket]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.tell(&["status", "--json"])).unwrap()
    }

    fn closed_for_memory(&self) -> u64 {
        self.status()["services"][0]["cut"]["memory"].as_u64().unwrap()
    }
}

fn write_config(scene: &Scene, raw: SocketAddr, client_link: SocketAddr, max_memory: &str) {
    let text = format!(
        "[helper]\nthreads = 1\nsocket = \"{}\"\nmax_memory = \"{max_memory}\"\n[service.cache]\nserver = \"{}\"\n\
         listen = [\"{raw}\"]\nlink_listen = [\"{client_link}\"]\nkey_files = [\"helper.key\"]\n\
         client_key_files = [\"client.key\"]\n",
        scene.scratch.path("b.sock"),
        scene.link
    );
    fs::write(scene.scratch.path("b.toml"), text).unwrap();
}

/// A plain client that asks for so many large values and never reads.
fn deaf(address: SocketAddr, values: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(&b"get big\r\n".repeat(values)).ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

fn is_reset(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() != ErrorKind::WouldBlock)
        || matches!(stream.take_error(), Ok(Some(_)))
}

/// Requests of an honest client over one connection, until told to end.
fn serve_honestly(address: SocketAddr, key: &str, bytes: usize, over: &AtomicBool) -> u64 {
    let (mut client, mut answered) = (Client::new(address), 0);
    while !over.load(Ordering::Relaxed) {
        let value = client.get(key).expect("it is there");
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

/// What clients that never read have done.
struct Attacked {
    /// Connections of attackers that were reset, and made again.
    closed: u64,
    /// Honest clients that came meanwhile, each of them with a request.
    newcomers: u64,
    peak_bytes: u64,
}

/// When an attack ends.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// Attackers were closed, and honest clients served. That takes longer where a machine is slow.
    Closed,
    /// Its time is over, and honest clients were served.
    Over,
}

/// Clients that ask for large values and never read, beside honest ones of which no request may fail.
fn attack(address: SocketAddr, pid: u32, (attackers, values): (usize, usize), until: Until) -> Attacked {
    let (over, newcomers, peak) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut closed = 0;
    std::thread::scope(|scope| {
        let ending = Ending(&over);
        let honest = [("small", 5), ("small", 5), ("big", VALUE_BYTES)].map(|(key, bytes)| {
            scope.spawn({
                let over = &over;
                move || serve_honestly(address, key, bytes, over)
            })
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut client = Client::try_new(address).expect("a new client is accepted");
                assert!(client.version().is_some(), "and served");
                newcomers.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(resident(pid), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // Those that were closed come again.
        let mut attackers: Vec<TcpStream> = (0..attackers).filter_map(|_| deaf(address, values)).collect();
        let began = Instant::now();
        let is_enough = |closed| {
            let (is_served, is_over) = (newcomers.load(Ordering::Relaxed) > 0, began.elapsed() >= ATTACK);
            is_served && is_over && (closed > 0 || until == Until::Over)
        };
        while !is_enough(closed) && began.elapsed() < support::PATIENCE {
            for attacker in attackers.iter_mut().filter(|attacker| is_reset(attacker)) {
                if let Some(another) = deaf(address, values) {
                    *attacker = another;
                    closed += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(ending);
        let answered = honest.map(|client| client.join().expect("no request failed"));
        println!("answered {answered:?}, attackers closed {closed}, newcomers {newcomers:?}");
        assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
    });
    let (newcomers, peak_bytes) = (newcomers.into_inner(), peak.into_inner());
    println!("peak {} MiB", peak_bytes / MIB);
    assert!(newcomers > 0);
    Attacked { closed, newcomers, peak_bytes }
}

#[track_caller]
fn is_within(peak_bytes: u64, max_memory: u64) {
    assert!(peak_bytes <= max_memory * 5 / 4 + 32 * MIB, "{} MiB resident", peak_bytes / MIB);
}

#[test]
fn slow_readers_of_large_values_harm_nobody_else() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = Bounded::start(&scene, "8MiB");
    let attacked = attack(bounded.raw, bounded.helper.pid(), (300, 1), Until::Closed);
    is_within(attacked.peak_bytes, 8 * MIB);
    assert!(attacked.closed > 0 && bounded.closed_for_memory() > 0);
    let log = bounded.helper.stderr().unwrap();
    assert!(log.contains("memory is scarce"), "{log}");
    assert!(log.contains("memory is short") && log.contains("or raise max_memory"), "{log}");
    // Without them, there is enough again.
    eventually("enough memory", || bounded.status()["threads_scarce"] == 0);
}

/// Clients that were closed would come again and ask for the same once more: the work of that is what slows others.
#[test]
fn many_slow_readers_of_large_values_are_within_the_bound_and_not_closed() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = Bounded::start(&scene, "64MiB");
    let attacked = attack(bounded.raw, bounded.helper.pid(), (300, MANY_VALUES), Until::Over);
    is_within(attacked.peak_bytes, 64 * MIB);
    assert_eq!((attacked.closed, bounded.closed_for_memory()), (0, 0));
}

#[test]
fn slow_readers_of_large_values_harm_no_other_client_of_a_sidecar() {
    let served = Served::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(served.server.address());
    let beside = served.beside(&["--protocol", "memcached", "--max-memory", "64MiB"]);
    let mut idle = Client::new(beside.address);
    assert!(idle.version().is_some());
    let attacked = attack(beside.address, beside.process.pid(), (300, MANY_VALUES), Until::Closed);
    is_within(attacked.peak_bytes, 64 * MIB);
    assert!(attacked.closed > 0);
    assert!(beside.number("/ended/memory") >= attacked.closed, "{:#}", beside.status());
    assert_eq!(beside.number("/refused/memory"), 0, "{} newcomers", attacked.newcomers);
    assert!(idle.version().is_some(), "one that holds nothing is not closed");
    let log = beside.process.stderr().unwrap();
    assert!(log.contains("memory is scarce"), "{log}");
    assert!(log.contains("client reset: memory is short") && log.contains("or raise max_memory"), "{log}");
    eventually("enough memory", || beside.number("/threads_scarce") == 0);
}

/// A client that has asked for more than the kernel takes, and does not read.
fn never_reads(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(&b"get big\r\n".repeat(MANY_VALUES)).unwrap();
    stream
}

#[test]
fn clients_of_a_sidecar_that_do_not_read_are_paused_before_they_are_closed_and_go_on() {
    let served = Served::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(served.server.address());
    let beside = served.beside(&["--protocol", "memcached", "--max-memory", "8MiB"]);
    // A client that does not read comes to hold more than 256 KiB (a session's window) and never more than 320 KiB (what is
    // moved at a time besides): these, more than three quarters of the limit, where memory is scarce, and never all of it.
    let slow: Vec<TcpStream> = (0..25).map(|_| never_reads(beside.address)).collect();
    eventually("memory is scarce", || beside.number("/threads_scarce") > 0);
    let asked = beside.number("/request_bytes");
    let mut stream = &slow[0];
    stream.write_all(b"version\r\n").unwrap();
    eventually("it is paused", || beside.number("/connections_paused") > 0);
    assert_eq!(beside.number("/request_bytes"), asked, "what it asks for is not read");
    let mut idle = Client::new(beside.address);
    assert_eq!(idle.get("small").as_deref(), Some(&b"12345"[..]), "others are");
    // They read, and all of them go on: at once, so that none waits for its turn until it is closed.
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
    eventually("enough memory", || beside.number("/threads_scarce") == 0);
    assert_eq!(beside.number("/ended/memory"), 0);
}

#[test]
fn requests_that_a_server_does_not_take_close_no_client_of_a_sidecar_and_new_ones_come_when_it_does() {
    let mut served = Served::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    let beside = served.beside(&["--protocol", "memcached", "--max-memory", "4MiB"]);
    let mut idle = Client::new(beside.address);
    assert!(idle.version().is_some());
    let mut writers: Vec<Client> = (0..40).map(|_| Client::new(beside.address)).collect();
    writers.iter_mut().for_each(|client| assert!(client.version().is_some()));
    eventually("the server has all", || beside.number("/buffered_bytes") == 0);
    support::pause(served.server.process());
    let value = vec![b'v'; 200_000];
    for client in &mut writers {
        client.send(b"set written 0 0 200000\r\n");
        client.send(&value);
        client.send(b"\r\n");
    }
    eventually("memory is used up", || {
        drop(TcpStream::connect(beside.address));
        beside.number("/refused/memory") > 0
    });
    let held = beside.number("/buffered_bytes");
    assert!(held <= 5 * MIB, "{held} bytes");
    let asked = beside.number("/request_bytes");
    idle.send(b"version\r\n");
    eventually("one that holds nothing is read", || beside.number("/request_bytes") >= asked + 9);
    served.server.process().signal(Signal::CONT.as_raw()).unwrap();
    writers.iter_mut().for_each(|client| assert_eq!(client.line(), "STORED"));
    assert!(idle.line().starts_with("VERSION "));
    assert_eq!(beside.ended_badly(), beside.number("/ended/client_reset"), "{:#}", beside.status());
    assert!(Client::new(beside.address).version().is_some(), "new clients are accepted again");
}

/// Links, connects to a server that is not served here, over and over, and never reads the refusals.
#[test]
fn a_library_client_that_does_not_read_pays_for_it() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = Bounded::start(&scene, "8MiB");
    let mut idle = Client::new(bounded.raw);
    assert!(idle.version().is_some());
    let mut peer = LinkPeer::open(bounded.client_link, Role::Client, &scene.client_key).unwrap();
    let stranger: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let connect =
        Control::Connect(Connect { client: stranger, server: None, credit: 1 << 20, session: None });
    let (until, mut sent, mut peak) = (Instant::now() + Duration::from_secs(5), 0, 0);
    while sent < 256 * MIB && Instant::now() < until {
        // The same id again and again: the helper refuses each.
        while peer.link().pending() < 1 << 20 {
            let id = peer.link().open_relayed(connect).expect("one id is free");
            peer.link().release_relayed(id);
        }
        match peer.send_only() {
            Ok(bytes) => sent += bytes as u64,
            Err(_) => break,
        }
        peak = peak.max(resident(bounded.helper.pid()));
        let value = idle.get("small");
        assert_eq!(value.as_deref(), Some(&b"12345"[..]), "one that holds nothing is served");
    }
    println!("{} MiB sent, {} MiB resident at most", sent / MIB, peak / MIB);
    assert!(peak <= 8 * MIB * 5 / 4 + 32 * MIB, "{} MiB resident", peak / MIB);
    assert!(Client::new(bounded.raw).version().is_some(), "new clients are accepted");
}

#[test]
fn a_lower_limit_closes_the_largest_and_no_active_client() {
    let scene = Scene::start();
    fill(scene.direct());
    let bounded = Bounded::start(&scene, "256MiB");
    let attackers: Vec<TcpStream> = (0..200).filter_map(|_| deaf(bounded.raw, MANY_VALUES)).collect();
    eventually("they hold a lot", || bounded.status()["buffered_bytes"].as_u64().unwrap() > 20 * MIB);
    let mut active: Vec<Client> = (0..10).map(|_| Client::new(bounded.raw)).collect();
    active.iter_mut().for_each(|client| assert!(client.get("small").is_some()));
    assert_eq!(bounded.closed_for_memory(), 0);
    write_config(&scene, bounded.raw, bounded.client_link, "4MiB");
    let said = bounded.tell(&["reload"]);
    assert!(said.contains("max_memory"), "{said}");
    assert!(bounded.status()["buffered_bytes"].as_u64().unwrap() <= 4 * MIB);
    active.iter_mut().for_each(|client| assert!(client.get("small").is_some(), "it holds nothing"));
    let reset = attackers.iter().filter(|attacker| is_reset(attacker)).count();
    assert!(reset > 100, "{reset}");
    drop(attackers);
}

/// As a kernel answers: the write after the server's close fails soon, not after 10 s.
#[track_caller]
fn writes_fail_soon_after(address: SocketAddr, quit: &[u8], answer: &[u8], more: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.write_all(quit).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("an end in order");
    assert_eq!(got, answer);
    let mut swallowed = 0;
    while stream.write_all(more).is_ok() {
        swallowed += 1;
        // 197 writes went nowhere when only a timer ended this.
        assert!(swallowed < 60, "writes are swallowed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_writes_after_memcached_has_closed_is_reset() {
    let scene = Scene::start();
    for _ in 0..3 {
        writes_fail_soon_after(scene.raw, b"quit\r\n", b"", b"set a 0 0 1 noreply\r\nx\r\n");
    }
}

#[test]
fn who_writes_after_redis_has_closed_is_reset() {
    let scene = Scene::start();
    let [link, raw] = [(); 2].map(|()| loopback(free_port()));
    let key = scene.scratch.path("helper.key");
    let wrapper =
        [SPILLWAY, "run", "--link", &link.to_string(), "--key", &key, "--require", "--"].map(str::to_owned);
    let _server = spillway_lab::peers::Redis::default().wrapper(wrapper).start(&scene.place).unwrap();
    let launch = Launch::new(SPILLWAY)
        .name("helper of redis")
        .args(["helper", "--service", &format!("cache={link}"), "--listen", &raw.to_string(), "--key", &key])
        .args(["--threads", "1", "--status-socket", &scene.scratch.path("redis.sock")]);
    let _helper = scene.place.spawn(&launch).unwrap();
    eventually("it serves", || TcpStream::connect(raw).is_ok());
    for _ in 0..3 {
        writes_fail_soon_after(raw, b"QUIT\r\n", b"+OK\r\n", b"SET a b\r\n");
    }
}
