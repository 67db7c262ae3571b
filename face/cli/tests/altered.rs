//! A tampering proxy alters links between real programs: no client gets a wrong reply, and no client hangs.

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
use support::sidecar::{Deployment, Sidecar};
use support::tampering::{Tampering, TamperingProxy};
use support::{Client, PATIENCE, SPILLWAY, Scene, Scratch, SetOnDrop, eventually, loopback, value_of};

const MARKER: &[u8] = b"altered-key";
const KEYS: usize = 40;
/// Services of the helper, each with a link and a proxy of its own.
const SERVICES: usize = 8;
const CLIENTS: usize = 3;
/// Maximum number of new clients whose connections are kept open.
const RECENT_CLIENTS_MAX: usize = 20;
/// Number of alterations after which a test ends: on links of plain clients, and on links of sessions.
const PLAIN_CLIENT_ALTERATIONS: u64 = 700;
const SESSION_ALTERATIONS: u64 = 400;
/// Number of altered handshakes after which a test ends.
const ALTERED_HANDSHAKES: u64 = 60;
/// Longer than a test takes on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(300);

fn key(number: usize) -> (String, Vec<u8>) {
    let key = format!("{}-{number}", String::from_utf8_lossy(MARKER));
    let value = value_of(&key, 10 + (number * 131) % 2_500);
    (key, value)
}

#[derive(Debug, Default)]
struct Tally {
    right: AtomicU64,
    wrong: AtomicU64,
    /// No reply within the client's timeout.
    hung: AtomicU64,
    /// The connection ended before the whole reply had arrived.
    ended: AtomicU64,
}

impl Tally {
    fn read(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }
}

/// Sends one request after the other, and reconnects when the connection ends. All clients set the same values.
fn send_requests(address: SocketAddr, number: usize, timeout: Duration, is_over: &AtomicBool, tally: &Tally) {
    let mut request_number = number * 7;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(timeout)).unwrap();
        stream.set_write_timeout(Some(timeout)).unwrap();
        loop {
            request_number += 1;
            let (key, value) = key(request_number % KEYS);
            let value = String::from_utf8(value).unwrap();
            let length = value.len();
            let (request, expected) = match request_number % 3 {
                0 => (format!("set {key} 0 0 {length}\r\n{value}\r\n"), "STORED\r\n".to_owned()),
                _ => (format!("get {key}\r\n"), format!("VALUE {key} 0 {length}\r\n{value}\r\nEND\r\n")),
            };
            match exchange(&mut stream, request.as_bytes(), expected.as_bytes()) {
                Outcome::Right => tally.right.fetch_add(1, Ordering::Relaxed),
                Outcome::Wrong => tally.wrong.fetch_add(1, Ordering::Relaxed),
                Outcome::Hung => tally.hung.fetch_add(1, Ordering::Relaxed),
                Outcome::Ended => {
                    tally.ended.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            };
            if is_over.load(Ordering::Relaxed) || Tally::read(&tally.wrong) + Tally::read(&tally.hung) > 0 {
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

fn exchange(stream: &mut TcpStream, request: &[u8], expected: &[u8]) -> Outcome {
    let outcome_of = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Outcome::Hung,
        _ => Outcome::Ended,
    };
    if let Err(error) = stream.write_all(request) {
        return outcome_of(error);
    }
    let (mut reply, mut received) = (Vec::new(), [0; 4096]);
    while reply.len() < expected.len() {
        match stream.read(&mut received) {
            Ok(0) => return Outcome::Ended,
            Ok(count) => reply.extend_from_slice(&received[..count]),
            Err(error) => return outcome_of(error),
        }
        if !expected.starts_with(&reply) {
            return Outcome::Wrong;
        }
    }
    Outcome::Right
}

/// Opens a new client every 100 ms: the end of a link detects left-out bytes only when further bytes arrive.
fn open_new_clients(address: SocketAddr, is_over: &AtomicBool) {
    let mut latest = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(format!("get {}\r\n", key(0).0).as_bytes());
            latest.push_back(stream);
        }
        if latest.len() > RECENT_CLIENTS_MAX {
            latest.pop_front();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn run_load(
    addresses: &[SocketAddr],
    new_client_addresses: &[SocketAddr],
    timeout: Duration,
    mut is_done: impl FnMut(&Tally) -> bool,
) -> Tally {
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (number, &address) in addresses.iter().enumerate() {
            let (tally, is_over) = (&tally, &is_over);
            scope.spawn(move || send_requests(address, number, timeout, is_over, tally));
        }
        for &address in new_client_addresses {
            let is_over = &is_over;
            scope.spawn(move || open_new_clients(address, is_over));
        }
        let _ending = SetOnDrop(&is_over);
        let deadline = Instant::now() + TIMEOUT;
        while !is_done(&tally) && Tally::read(&tally.wrong) + Tally::read(&tally.hung) == 0 {
            assert!(Instant::now() < deadline, "the load should end within {TIMEOUT:?}: {tally:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    tally
}

/// A helper whose links to the server go through tampering proxies.
struct TamperedHelper {
    helper: Process,
    socket: String,
    proxies: Vec<TamperingProxy>,
    addresses: Vec<SocketAddr>,
}

impl TamperedHelper {
    fn start(
        place: &Place,
        scratch: &Scratch,
        link: SocketAddr,
        key_file: Option<&str>,
        tampering: Tampering,
    ) -> TamperedHelper {
        let proxies: Vec<TamperingProxy> = (0..SERVICES)
            .map(|number| TamperingProxy::before(link, number as u64, tampering, MARKER))
            .collect();
        let addresses: Vec<SocketAddr> = (0..SERVICES).map(|_| loopback(free_port())).collect();
        let socket = scratch.path("altered.sock");
        let keys = key_file.map_or(String::new(), |file| format!("key_files = [\"{file}\"]\n"));
        let services = proxies.iter().zip(&addresses).enumerate().map(|(number, (proxy, address))| {
            let server = proxy.address;
            format!("[service.s{number}]\nserver = \"{server}\"\nlisten = [\"{address}\"]\n{keys}")
        });
        let config = scratch.path("altered.toml");
        let text = format!("[helper]\nthreads = 1\nsocket = \"{socket}\"\n{}", services.collect::<String>());
        fs::write(&config, text).unwrap();
        let launch = Launch::new(SPILLWAY).name("altered").args(["helper", "--config", &config]);
        TamperedHelper { helper: place.spawn(&launch).unwrap(), socket, proxies, addresses }
    }

    fn await_served(&self) {
        for &address in &self.addresses {
            eventually("a reply of each service", || {
                Client::try_new(address).is_some_and(|mut client| client.version().is_some())
            });
        }
    }

    fn set_tampering(&self, tampering: Tampering) {
        self.proxies.iter().for_each(|proxy| proxy.set_tampering(tampering));
    }

    fn sum(&self, count: fn(&TamperingProxy) -> u64) -> u64 {
        self.proxies.iter().map(count).sum()
    }

    /// Each service's address, `per_address` times.
    fn clients(&self, per_address: usize) -> Vec<SocketAddr> {
        self.addresses.iter().flat_map(|&address| vec![address; per_address]).collect()
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

fn assert_replies_and_values_are_right(server: SocketAddr, tally: &Tally) {
    let counts = (Tally::read(&tally.wrong), Tally::read(&tally.hung));
    assert_eq!(counts, (0, 0), "wrong replies, clients that hung: {tally:?}");
    let mut client = Client::new(server);
    for (key, value) in (0..KEYS).map(key) {
        assert_eq!(client.get(&key), Some(value), "{key} should have the value that was set");
    }
}

fn start_helped(tampering: Tampering) -> (Scene, TamperedHelper) {
    let scene = Scene::start();
    fill(scene.direct());
    let key_file = scene.scratch.path("helper.key");
    let helped = TamperedHelper::start(&scene.place, &scene.scratch, scene.link, Some(&key_file), tampering);
    (scene, helped)
}

#[test]
fn plain_clients_of_altered_links_get_right_replies_and_do_not_hang() {
    let (mut scene, mut helped) = start_helped(Tampering::Anywhere);
    let clients = helped.clients(CLIENTS);
    let tally = run_load(&clients, &helped.addresses, PATIENCE, |_| {
        helped.sum(TamperingProxy::alterations) >= PLAIN_CLIENT_ALTERATIONS
    });
    println!("{} alterations, {tally:?}", helped.sum(TamperingProxy::alterations));
    helped.set_tampering(Tampering::Nothing);
    helped.await_served();
    assert_replies_and_values_are_right(scene.direct(), &tally);
    assert!(Tally::read(&tally.right) > PLAIN_CLIENT_ALTERATIONS, "{tally:?}");
    assert_eq!(helped.sum(TamperingProxy::markers), 0, "the proxy should see no plaintext");
    assert!(helped.links().iter().all(|link| link["encrypted"] == true), "{:?}", helped.links());
    assert!(helped.helper.exit_status().is_none() && scene.server.process().exit_status().is_none());
}

/// Checks the test above: without encryption it would find wrong replies or hanging clients.
#[test]
fn without_a_key_the_same_alterations_give_wrong_replies() {
    let (place, scratch, link) = (Place::local().unwrap(), Scratch::new(), loopback(free_port()));
    let arguments = [SPILLWAY, "run", "--link", &link.to_string(), "--require", "--"].map(str::to_owned);
    let server = Memcached::default().wrapper(arguments).start(&place).unwrap();
    fill(server.address());
    let helped = TamperedHelper::start(&place, &scratch, link, None, Tampering::Anywhere);
    let clients = helped.clients(CLIENTS);
    // A short timeout: some clients wait for a reply that was left out.
    let tally = run_load(&clients, &[], Duration::from_secs(2), |_| false);
    assert!(Tally::read(&tally.wrong) + Tally::read(&tally.hung) > 0, "{tally:?}");
    assert!(helped.sum(TamperingProxy::markers) > 0, "the proxy should find the marker in plaintext");
}

#[test]
fn older_versions_in_the_handshake_open_no_unencrypted_link() {
    let (scene, helped) = start_helped(Tampering::Versions);
    let tally = run_load(&helped.clients(1), &[], PATIENCE, |_| {
        helped.sum(TamperingProxy::connections) >= ALTERED_HANDSHAKES
    });
    assert!(helped.links().iter().all(|link| link["state"] != "up"), "{:?}", helped.links());
    assert_eq!(Tally::read(&tally.right), 0, "no link should come up: {tally:?}");
    assert_eq!(helped.sum(TamperingProxy::markers), 0);
    helped.set_tampering(Tampering::Nothing);
    helped.await_served();
    assert!(helped.links().iter().all(|link| link["encrypted"] == true), "{:?}", helped.links());
    assert_replies_and_values_are_right(scene.direct(), &tally);
}

/// The proxy withholds the end of a record and all later bytes: both ends must close the link in time.
#[test]
fn incomplete_record_ends_its_link_after_a_timeout() {
    let (scene, helped) = start_helped(Tampering::Tail);
    let tally =
        run_load(&helped.clients(1), &[], PATIENCE, |tally| Tally::read(&tally.ended) >= SERVICES as u64);
    assert!(helped.sum(TamperingProxy::alterations) >= SERVICES as u64);
    assert_replies_and_values_are_right(scene.direct(), &tally);
}

/// A sidecar's sessions through two helpers, whose links to the server are altered. Links of library clients cannot go
/// through a proxy: a client may use only the address that the server sees.
#[test]
fn sidecar_clients_of_altered_links_get_right_replies_and_no_errors() {
    let deployment =
        Deployment::start(0, |place, run| Memcached::default().wrapper(run).start(place).unwrap());
    fill(deployment.server.address());
    let proxies =
        [101, 102].map(|seed| TamperingProxy::before(deployment.link, seed, Tampering::Anywhere, MARKER));
    let ports = [(); 2].map(|()| loopback(free_port()));
    let key_file = deployment.scratch.path("helper.key");
    let start = |(proxy, port): (&TamperingProxy, &SocketAddr)| {
        let launch = Launch::new(SPILLWAY)
            .name("helper")
            .args(["helper", "--service", &format!("service={}", proxy.address)])
            .args(["--link-listen", &port.to_string(), "--key", &key_file])
            .args(["--client-key", deployment.client_file(), "--threads", "1"]);
        deployment.place.spawn(&launch).unwrap()
    };
    let mut helpers: Vec<Process> = proxies.iter().zip(&ports).map(start).collect();
    let (server, helper) = (deployment.link.to_string(), ports.map(|port| port.to_string()).join(","));
    let arguments = ["--link", &server, "--helpers", &helper, "--client-key", deployment.client_file()];
    let arguments =
        arguments.into_iter().chain(["--relief", "on", "--protocol", "memcached"]).map(str::to_owned);
    let sidecar = Sidecar::start(&deployment.place, &deployment.scratch, &arguments.collect::<Vec<_>>());
    let sum = |count: fn(&TamperingProxy) -> u64| proxies.iter().map(count).sum::<u64>();
    let tally = run_load(&[sidecar.address; 12], &[], PATIENCE, |_| {
        sum(TamperingProxy::alterations) >= SESSION_ALTERATIONS
    });
    println!("{} alterations, {tally:?}", sum(TamperingProxy::alterations));
    assert_replies_and_values_are_right(deployment.server.address(), &tally);
    assert_eq!(
        Tally::read(&tally.ended),
        0,
        "sessions should move to another carrier instead of ending: {tally:?}"
    );
    assert!(Tally::read(&tally.right) > SESSION_ALTERATIONS, "{tally:?}");
    assert!(
        proxies.iter().all(|proxy| proxy.alterations() > 20),
        "the links of both helpers should be altered"
    );
    assert!(sidecar.number("/moves/lost") >= 50, "{:#}", sidecar.status());
    assert_eq!(sum(TamperingProxy::markers), 0, "the proxy should see no plaintext");
    assert!(helpers.iter_mut().all(|helper| helper.exit_status().is_none()));
}
