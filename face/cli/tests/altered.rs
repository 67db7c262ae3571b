//! Somebody on the path of links alters what passes, between real programs: no client gets a wrong reply, and none hangs.

mod support;

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_lab::peers::Memcached;
use spillway_lab::{Launch, Place, Process};
use spillway_ports::free_port;
use support::beside::{Beside, Served};
use support::meddler::{Meddler, Meddling};
use support::{Client, Ending, PATIENCE, SPILLWAY, Scene, Scratch, eventually, loopback, value_of};

/// All keys begin so.
const MARKER: &[u8] = b"altered-key";
const KEYS: usize = 40;
/// Services of the helper, each with a link, and so a path, of its own.
const SERVICES: usize = 8;
/// Clients of each.
const CLIENTS: usize = 3;
/// Latest of those that come and go, which stay.
const NEWCOMERS: usize = 20;
/// Alterations of links that carry plain clients, and of links that carry sessions.
const ALTERATIONS: (u64, u64) = (700, 400);
/// Links whose beginning is altered.
const VERSIONS: u64 = 60;
/// No machine is as slow as that.
const AT_MOST: Duration = Duration::from_secs(300);

fn key(number: usize) -> (String, Vec<u8>) {
    let key = format!("{}-{number}", String::from_utf8_lossy(MARKER));
    let value = value_of(&key, 10 + (number * 131) % 2_500);
    (key, value)
}

/// What became of requests.
#[derive(Debug, Default)]
struct Tally {
    right: AtomicU64,
    wrong: AtomicU64,
    /// Nothing came within [`PATIENCE`].
    hung: AtomicU64,
    /// Their connection ended before the whole reply had come.
    ended: AtomicU64,
}

impl Tally {
    fn of(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }
}

/// Asks one request after the other, on a new connection where one has ended. Values never change, whoever sets them.
fn ask(address: SocketAddr, me: usize, patience: Duration, is_over: &AtomicBool, tally: &Tally) {
    let mut turn = me * 7;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(patience)).unwrap();
        stream.set_write_timeout(Some(patience)).unwrap();
        loop {
            turn += 1;
            let (key, value) = key(turn % KEYS);
            let value = String::from_utf8(value).unwrap();
            let length = value.len();
            let (request, expected) = match turn % 3 {
                0 => (format!("set {key} 0 0 {length}\r\n{value}\r\n"), "STORED\r\n".to_owned()),
                _ => (format!("get {key}\r\n"), format!("VALUE {key} 0 {length}\r\n{value}\r\nEND\r\n")),
            };
            match outcome(&mut stream, request.as_bytes(), expected.as_bytes()) {
                Outcome::Right => tally.right.fetch_add(1, Ordering::Relaxed),
                Outcome::Wrong => tally.wrong.fetch_add(1, Ordering::Relaxed),
                Outcome::Hung => tally.hung.fetch_add(1, Ordering::Relaxed),
                Outcome::Ended => {
                    tally.ended.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
            if is_over.load(Ordering::Relaxed) || Tally::of(&tally.wrong) + Tally::of(&tally.hung) > 0 {
                return;
            }
        }
    }
}

enum Outcome {
    Right,
    Wrong,
    Hung,
    Ended,
}

fn outcome(stream: &mut TcpStream, request: &[u8], expected: &[u8]) -> Outcome {
    let of = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Outcome::Hung,
        _ => Outcome::Ended,
    };
    if let Err(error) = stream.write_all(request) {
        return of(error);
    }
    let (mut reply, mut received) = (Vec::new(), [0; 4096]);
    while reply.len() < expected.len() {
        match stream.read(&mut received) {
            Ok(0) => return Outcome::Ended,
            Ok(count) => reply.extend_from_slice(&received[..count]),
            Err(error) => return of(error),
        }
        if !expected.starts_with(&reply) {
            return Outcome::Wrong;
        }
    }
    Outcome::Right
}

/// New clients come all the time, as they do at a busy service: what was left out of a stream is noticed with what comes next.
fn come_and_go(address: SocketAddr, is_over: &AtomicBool) {
    let mut latest = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(format!("get {}\r\n", key(0).0).as_bytes());
            latest.push_back(stream);
        }
        if latest.len() > NEWCOMERS {
            latest.pop_front();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Clients ask at these addresses until `is_done`.
fn busily(
    addresses: &[SocketAddr],
    newcomers: &[SocketAddr],
    patience: Duration,
    mut is_done: impl FnMut(&Tally) -> bool,
) -> Tally {
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (number, &address) in addresses.iter().enumerate() {
            let (tally, is_over) = (&tally, &is_over);
            scope.spawn(move || ask(address, number, patience, is_over, tally));
        }
        for &address in newcomers {
            let is_over = &is_over;
            scope.spawn(move || come_and_go(address, is_over));
        }
        let _ending = Ending(&is_over);
        let deadline = Instant::now() + AT_MOST;
        while !is_done(&tally) && Tally::of(&tally.wrong) + Tally::of(&tally.hung) == 0 {
            assert!(Instant::now() < deadline, "not within {AT_MOST:?}: {tally:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    tally
}

/// A helper whose links to the server lead through meddlers.
struct Helped {
    helper: Process,
    socket: String,
    meddlers: Vec<Meddler>,
    addresses: Vec<SocketAddr>,
}

impl Helped {
    fn start(
        place: &Place,
        scratch: &Scratch,
        link: SocketAddr,
        key_file: Option<&str>,
        meddling: Meddling,
    ) -> Helped {
        let meddlers: Vec<Meddler> =
            (0..SERVICES).map(|number| Meddler::before(link, number as u64, meddling, MARKER)).collect();
        let addresses: Vec<SocketAddr> = (0..SERVICES).map(|_| loopback(free_port())).collect();
        let socket = scratch.path("altered.sock");
        let keys = key_file.map_or(String::new(), |file| format!("key_files = [\"{file}\"]\n"));
        let services = meddlers.iter().zip(&addresses).enumerate().map(|(number, (meddler, address))| {
            let server = meddler.address;
            format!("[service.s{number}]\nserver = \"{server}\"\nlisten = [\"{address}\"]\n{keys}")
        });
        let config = scratch.path("altered.toml");
        let text = format!("[helper]\nthreads = 1\nsocket = \"{socket}\"\n{}", services.collect::<String>());
        fs::write(&config, text).unwrap();
        let launch = Launch::new(SPILLWAY).name("altered").args(["helper", "--config", &config]);
        Helped { helper: place.spawn(&launch).unwrap(), socket, meddlers, addresses }
    }

    fn await_served(&self) {
        for &address in &self.addresses {
            eventually("each service is served", || {
                Client::try_new(address).is_some_and(|mut client| client.version().is_some())
            });
        }
    }

    fn meddle(&self, meddling: Meddling) {
        self.meddlers.iter().for_each(|meddler| meddler.meddle(meddling));
    }

    fn sum(&self, count: fn(&Meddler) -> u64) -> u64 {
        self.meddlers.iter().map(count).sum()
    }

    /// Clients of each service.
    fn clients(&self, each: usize) -> Vec<SocketAddr> {
        self.addresses.iter().flat_map(|&address| vec![address; each]).collect()
    }

    fn links(&self) -> Vec<Value> {
        let output =
            Command::new(SPILLWAY).args(["status", "--json", "--socket", &self.socket]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let services = status["services"].as_array().unwrap();
        services.iter().flat_map(|service| service["links"].as_array().unwrap()).cloned().collect()
    }
}

fn fill(server: SocketAddr) {
    let mut client = Client::new(server);
    (0..KEYS).map(key).for_each(|(key, value)| client.set(&key, &value));
}

fn assert_unharmed(server: SocketAddr, tally: &Tally) {
    let counts = (Tally::of(&tally.wrong), Tally::of(&tally.hung));
    assert_eq!(counts, (0, 0), "wrong replies, clients that hung: {tally:?}");
    let mut client = Client::new(server);
    for (key, value) in (0..KEYS).map(key) {
        assert_eq!(client.get(&key), Some(value), "{key} is what was set");
    }
}

/// A helped memcached, and a second helper whose links are altered.
fn helped(meddling: Meddling) -> (Scene, Helped) {
    let scene = Scene::start();
    fill(scene.direct());
    let key_file = scene.scratch.path("helper.key");
    let helped = Helped::start(&scene.place, &scene.scratch, scene.link, Some(&key_file), meddling);
    (scene, helped)
}

#[test]
fn altered_links_give_plain_clients_no_wrong_reply_and_none_hangs() {
    let (mut scene, mut helped) = helped(Meddling::Anywhere);
    let clients = helped.clients(CLIENTS);
    let tally =
        busily(&clients, &helped.addresses, PATIENCE, |_| helped.sum(Meddler::alterations) >= ALTERATIONS.0);
    println!("{} alterations, {tally:?}", helped.sum(Meddler::alterations));
    helped.meddle(Meddling::Nothing);
    helped.await_served();
    assert_unharmed(scene.direct(), &tally);
    assert!(Tally::of(&tally.right) > ALTERATIONS.0, "{tally:?}");
    assert_eq!(helped.sum(Meddler::markers), 0, "nothing passed that was not encrypted");
    assert!(helped.links().iter().all(|link| link["encrypted"] == true), "{:?}", helped.links());
    assert!(helped.helper.exit().is_none() && scene.server.process().exit().is_none());
}

/// What the test above would see without encryption: it looks closely enough.
#[test]
fn without_a_key_the_same_alterations_give_wrong_replies() {
    let (place, scratch, link) = (Place::local().unwrap(), Scratch::new(), loopback(free_port()));
    let words = [SPILLWAY, "run", "--link", &link.to_string(), "--require", "--"].map(str::to_owned);
    let server = Memcached::default().wrapper(words).start(&place).unwrap();
    fill(server.address());
    let helped = Helped::start(&place, &scratch, link, None, Meddling::Anywhere);
    let clients = helped.clients(CLIENTS);
    // Some wait for a reply that was left out.
    let tally = busily(&clients, &[], Duration::from_secs(2), |_| false);
    assert!(Tally::of(&tally.wrong) + Tally::of(&tally.hung) > 0, "{tally:?}");
    assert!(helped.sum(Meddler::markers) > 0, "the marker is seen where it passes");
}

#[test]
fn older_versions_in_the_handshake_give_no_link_that_is_not_encrypted() {
    let (scene, helped) = helped(Meddling::Versions);
    let tally = busily(&helped.clients(1), &[], PATIENCE, |_| helped.sum(Meddler::connections) >= VERSIONS);
    assert!(helped.links().iter().all(|link| link["state"] != "up"), "{:?}", helped.links());
    assert_eq!(Tally::of(&tally.right), 0, "no link came up: {tally:?}");
    assert_eq!(helped.sum(Meddler::markers), 0);
    helped.meddle(Meddling::Nothing);
    helped.await_served();
    assert!(helped.links().iter().all(|link| link["encrypted"] == true), "{:?}", helped.links());
    assert_unharmed(scene.direct(), &tally);
}

/// The rest of a record is withheld, and nothing follows: neither end waits for it for ever.
#[test]
fn a_record_whose_end_is_withheld_ends_its_link() {
    let (scene, helped) = helped(Meddling::Tail);
    let tally = busily(&helped.clients(1), &[], PATIENCE, |tally| Tally::of(&tally.ended) >= SERVICES as u64);
    assert!(helped.sum(Meddler::alterations) >= SERVICES as u64);
    assert_unharmed(scene.direct(), &tally);
}

/// Sessions of sidecars through two helpers, whose links to the server are altered again and again. (Links of library clients
/// cannot lead through a proxy: a client may only speak for the address that the server sees.)
#[test]
fn altered_links_give_clients_of_sidecars_no_wrong_reply_and_no_error() {
    let served = Served::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(served.server.address());
    let meddlers = [101, 102].map(|seed| Meddler::before(served.link, seed, Meddling::Anywhere, MARKER));
    let ports = [(); 2].map(|()| loopback(free_port()));
    let key_file = served.scratch.path("helper.key");
    let start = |(meddler, port): (&Meddler, &SocketAddr)| {
        let launch = Launch::new(SPILLWAY)
            .name("helper")
            .args(["helper", "--service", &format!("service={}", meddler.address)])
            .args(["--link-listen", &port.to_string(), "--key", &key_file])
            .args(["--client-key", served.client_file(), "--threads", "1"]);
        served.place.spawn(&launch).unwrap()
    };
    let mut helpers: Vec<Process> = meddlers.iter().zip(&ports).map(start).collect();
    let (server, helper) = (served.link.to_string(), ports.map(|port| port.to_string()).join(","));
    let words = ["--link", &server, "--helpers", &helper, "--client-key", served.client_file()];
    let words = words.into_iter().chain(["--relief", "on", "--protocol", "memcached"]).map(str::to_owned);
    let sidecar = Beside::start(&served.place, &served.scratch, &words.collect::<Vec<_>>());
    let sum = |count: fn(&Meddler) -> u64| meddlers.iter().map(count).sum::<u64>();
    let tally = busily(&[sidecar.address; 12], &[], PATIENCE, |_| sum(Meddler::alterations) >= ALTERATIONS.1);
    println!("{} alterations, {tally:?}", sum(Meddler::alterations));
    assert_unharmed(served.server.address(), &tally);
    assert_eq!(Tally::of(&tally.ended), 0, "sessions go on elsewhere: {tally:?}");
    assert!(Tally::of(&tally.right) > ALTERATIONS.1, "{tally:?}");
    assert!(meddlers.iter().all(|meddler| meddler.alterations() > 20), "each path was altered");
    assert!(sidecar.number("/moves/lost") >= 50, "{:#}", sidecar.status());
    assert_eq!(sum(Meddler::markers), 0, "nothing passed that was not encrypted");
    assert!(helpers.iter_mut().all(|helper| helper.exit().is_none()));
}
