//! A sidecar with real servers, memcached and redis: listeners, carriers, relief, limits, health and draining.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::Signal;
use spillway_lab::peers::{Memcached, Redis};
use spillway_lab::{Launch, Place};
use support::sidecar::{Deployment, Sidecar};
use support::{Client, PATIENCE, SPILLWAY, Scratch, SetOnDrop, eventually, pause, value_of};

fn memcached(helpers: usize) -> Deployment {
    Deployment::start(helpers, |place, run| Memcached::default().wrapper(run).start(place).unwrap())
}

fn redis(helpers: usize) -> Deployment {
    Deployment::start(helpers, |place, run| Redis::default().wrapper(run).start(place).unwrap())
}

/// The number of memcached's connections, including the one of this request.
fn connections(deployment: &Deployment) -> u64 {
    let mut client = Client::new(deployment.server.address());
    client.send(b"stats\r\n");
    let mut found = None;
    loop {
        let line = client.line();
        if line == "END" {
            return found.expect("curr_connections in the statistics");
        }
        if let Some(count) = line.strip_prefix("STAT curr_connections ") {
            found = count.parse().ok();
        }
    }
}

fn socket(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read_to_end(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

/// Whether a connection is reset, or ends without a byte, before the timeout.
fn is_refused(stream: &mut TcpStream) -> bool {
    match read_to_end(stream) {
        Ok(bytes) => bytes.is_empty(),
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn sessions_are_direct_or_helped_as_overridden_and_direct_without_helpers() {
    let deployment = memcached(1);
    let direct = deployment.sidecar(&["--relief", "off", "--protocol", "memcached"]);
    let helped = deployment.sidecar(&["--relief", "on", "--protocol", "memcached"]);
    let without_helpers = {
        let (link, key) = (deployment.link.to_string(), deployment.client_file().to_owned());
        let arguments = ["--link", &link, "--client-key", &key].map(str::to_owned);
        Sidecar::start(&deployment.place, &deployment.scratch, &arguments)
    };
    let mut clients = Vec::new();
    for (sidecar, counter) in [(&direct, "/direct"), (&helped, "/helped"), (&without_helpers, "/direct")] {
        clients.push(Client::new(sidecar.address));
        let client = clients.last_mut().unwrap();
        client.set("key", b"value");
        assert_eq!(client.get("key"), Some(b"value".to_vec()));
        assert_eq!(sidecar.number(counter), 1);
        let latency = format!("/latency_{}/count", &counter[1..]);
        assert_eq!(sidecar.number(&latency), 2, "{:#}", sidecar.status());
        assert_eq!((sidecar.number("/replies"), sidecar.number("/waiting")), (2, 0));
    }
    let output = Command::new(SPILLWAY).args(["status", "--socket", &helped.status_socket]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 helped, 0 direct, 0 waiting") && text.contains("p99"), "{text}");
}

/// Runs `work` while eight clients send requests; each request must be answered.
fn while_clients_send_requests<T>(address: SocketAddr, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let is_over = &is_over;
            scope.spawn(move || {
                let (mut client, key) = (Client::new(address), format!("busy{number}"));
                client.set(&key, b"value");
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.get(&key), Some(b"value".to_vec()));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let _ending = SetOnDrop(&is_over);
        work()
    })
}

#[test]
fn an_override_moves_open_connections() {
    let deployment = memcached(2);
    // An SLA that no reply exceeds: only the override moves connections.
    let sidecar =
        deployment.sidecar(&["--protocol", "memcached", "--sla", "10s", "--name", "cache", "--threads", "2"]);
    let set_override = |name: &str| {
        let arguments = ["relief", "cache", name, "--wait", "--socket", &sidecar.status_socket];
        let output = Command::new(SPILLWAY).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    while_clients_send_requests(sidecar.address, || {
        eventually("all are direct", || sidecar.number("/direct") == 8);
        set_override("on");
        assert_eq!(sidecar.number("/direct"), 0, "--wait should return after the move");
        eventually("all are helped", || sidecar.number("/helped") == 8);
        set_override("off");
        assert_eq!(sidecar.number("/helped"), 0, "--wait should return after the move");
        eventually("all are direct again", || sidecar.number("/direct") == 8);
        set_override("auto");
    });
    assert!(sidecar.number("/moves/relief") >= 16, "{:#}", sidecar.status());
    assert_eq!(sidecar.not_ended_in_order(), 0, "{:#}", sidecar.status());
    let unknown = ["relief", "another", "on", "--socket", &sidecar.status_socket];
    let output = Command::new(SPILLWAY).args(unknown).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("cache"));
}

#[test]
fn late_replies_move_sessions_to_helpers() {
    let deployment = memcached(2);
    // An SLA that every reply exceeds.
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--sla", "10us"]);
    while_clients_send_requests(sidecar.address, || {
        eventually("some are sent to helpers", || sidecar.number("/decisions/orders_to_helpers") > 0);
        eventually("the sessions have moved", || sidecar.number("/moves/relief") > 0);
    });
    assert_eq!(sidecar.not_ended_in_order(), 0, "{:#}", sidecar.status());
}

#[test]
fn a_unix_socket_has_its_mode_and_is_removed_with_the_sidecar() {
    let deployment = memcached(1);
    let path = deployment.scratch.path("cache.sock");
    let listen = format!("unix:{path}");
    let mut sidecar = deployment.sidecar(&["--listen", &listen, "--socket-mode", "600", "--relief", "on"]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let value = value_of("unix", 300_000);
    stream.write_all(format!("set unix 0 0 {}\r\n", value.len()).as_bytes()).unwrap();
    stream.write_all(&value).unwrap();
    stream.write_all(b"\r\nget unix\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut expected = format!("STORED\r\nVALUE unix 0 {}\r\n", value.len()).into_bytes();
    expected.extend(value);
    expected.extend(b"\r\nEND\r\n");
    assert!(read_to_end(&mut stream).unwrap() == expected, "the stream should contain all replies");
    // A client that closes before its replies arrive.
    let mut closed = UnixStream::connect(&path).unwrap();
    closed.write_all(b"set gone 0 0 1\r\nx\r\n".repeat(2000).as_slice()).unwrap();
    drop(closed);
    eventually("both connections have ended", || sidecar.number("/connections") == 0);
    assert_eq!(Client::new(sidecar.address).get("gone"), Some(b"x".to_vec()));
    assert_eq!(sidecar.stop(), Some(0));
    assert!(!std::fs::exists(&path).unwrap() && !std::fs::exists(&sidecar.status_socket).unwrap());
}

#[test]
fn each_direction_ends_independently() {
    let deployment = memcached(1);
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", "on"]);
    let before = connections(&deployment);
    // The client ends first: its requests are still answered.
    let mut stream = socket(sidecar.address);
    stream.write_all(b"set a 0 0 1\r\nx\r\nget a\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut stream).unwrap(), b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    let mut stream = socket(sidecar.address);
    stream.write_all(b"get a\r\nquit\r\n").unwrap();
    assert_eq!(read_to_end(&mut stream).unwrap(), b"VALUE a 0 1\r\nx\r\nEND\r\n");
    // A client's reset closes the server's connection.
    let mut stream = socket(sidecar.address);
    stream.write_all(b"version\r\n").unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    eventually("the server has closed all connections", || connections(&deployment) == before);
    eventually("the sidecar has closed all connections", || sidecar.number("/connections") == 0);
    assert_eq!((sidecar.number("/ended/in_order"), sidecar.number("/ended/client_reset")), (2, 1));
}

#[test]
fn big_values_arrive_while_other_clients_do_not_read() {
    let deployment = redis(1);
    let sidecar = deployment.sidecar(&["--protocol", "redis", "--max-memory", "16MiB", "--relief", "on"]);
    let value = value_of("big", 2_000_000);
    let mut stream = socket(sidecar.address);
    stream.write_all(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n", value.len()).as_bytes()).unwrap();
    stream.write_all(&value).unwrap();
    stream.write_all(b"\r\n").unwrap();
    let mut ok = [0; 5];
    stream.read_exact(&mut ok).unwrap();
    assert_eq!(&ok, b"+OK\r\n");
    // Some clients request much and read nothing: others are served, and the sidecar's memory stays bounded.
    let requests = "GET big\r\n".repeat(12);
    let mut slow: Vec<TcpStream> = (0..6).map(|_| socket(sidecar.address)).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(requests.as_bytes()).unwrap());
    eventually("replies are buffered", || sidecar.number("/buffered_bytes") > 1 << 20);
    let mut other = socket(sidecar.address);
    other.write_all(b"PING\r\n").unwrap();
    let mut pong = [0; 7];
    other.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
    let resident = support::resident(sidecar.process.pid());
    assert!(resident < 100 << 20, "{resident} bytes for 144 MB of unread replies");
    let mut expected = format!("${}\r\n", value.len()).into_bytes();
    expected.extend(&value);
    expected.extend(b"\r\n");
    for stream in &mut slow {
        let mut reply = vec![0; expected.len()];
        for _ in 0..12 {
            stream.read_exact(&mut reply).unwrap();
            assert!(reply == expected);
        }
    }
    // Replies that waited for a slow reader are not measured.
    assert_eq!(sidecar.number("/measuring_given_up/syntax"), 0);
    assert!(sidecar.number("/replies_unmeasured") >= 36, "{:#}", sidecar.status());
}

#[test]
fn requests_of_a_closed_client_count_as_buffered_until_the_server_has_them() {
    let mut deployment = memcached(0);
    let sidecar = deployment.sidecar(&[]);
    let mut stream = socket(sidecar.address);
    stream.write_all(b"version\r\n").unwrap();
    assert!(stream.read(&mut [0; 64]).unwrap() > 0);
    pause(deployment.server.process());
    stream.write_all(b"set big 0 0 100000\r\n").unwrap();
    stream.write_all(&value_of("big", 100_000)).unwrap();
    eventually("the sidecar has received the request", || sidecar.number("/request_bytes") > 100_000);
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    eventually("the client is closed", || sidecar.number("/connections") == 0);
    assert!(sidecar.number("/buffered_bytes") >= 100_000, "{:#}", sidecar.status());
    deployment.server.process().signal(Signal::CONT.as_raw()).unwrap();
    eventually("the server has received the request", || sidecar.number("/buffered_bytes") == 0);
}

#[test]
fn rejected_clients_are_counted() {
    let deployment = memcached(0);
    let sidecar = deployment.sidecar(&["--max-connections", "2", "--proxy-protocol-from", "127.0.0.2"]);
    let mut two: Vec<Client> = (0..2).map(|_| Client::new(sidecar.address)).collect();
    two.iter_mut().for_each(|client| assert!(client.version().is_some()));
    assert!(is_refused(&mut socket(sidecar.address)));
    assert_eq!(sidecar.number("/refused/full"), 1);
    two.clear();
    eventually("the sidecar is not full any more", || sidecar.number("/connections") == 0);
    assert!(Client::new(sidecar.address).version().is_some());

    let restricted = deployment.sidecar(&["--allow-clients", "10.0.0.0/8"]);
    assert!(is_refused(&mut socket(restricted.address)));
    assert_eq!((restricted.number("/refused/address"), restricted.number("/accepted")), (1, 0));
}

#[test]
fn proxy_protocol_headers_announce_client_addresses() {
    let deployment = memcached(0);
    let sidecar = deployment.sidecar(&["--proxy-protocol-from", "127.0.0.0/8", "--connect-timeout", "2s"]);
    let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\x7f\x00\x00\x09\x7f\x00\x00\x01\x30\x39\x2b\xcb";
    for header in [b"PROXY TCP4 127.0.0.9 127.0.0.1 12345 11211\r\n".as_slice(), binary, b"PROXY UNKNOWN\r\n"]
    {
        for cut in [0, 5, header.len()] {
            let mut stream = socket(sidecar.address);
            let all = [header, b"version\r\nquit\r\n"].concat();
            stream.write_all(&all[..cut]).unwrap();
            std::thread::yield_now();
            stream.write_all(&all[cut..]).unwrap();
            let answer = read_to_end(&mut stream).unwrap();
            assert!(answer.starts_with(b"VERSION ") && answer.ends_with(b"\r\n"), "{answer:?}");
        }
    }
    assert_eq!(sidecar.number("/announced"), 9);
    // No header, a malformed one, none in time, one for a client that is not allowed.
    for header in ["version\r\n", "PROXY TCP4 x\r\n", "", "PROXY TCP4 10.0.0.1 127.0.0.1 1 2\r\n"] {
        let mut stream = socket(sidecar.address);
        stream.write_all(header.as_bytes()).unwrap();
        assert!(is_refused(&mut stream), "{header:?}");
    }
    assert_eq!((sidecar.number("/refused/proxy"), sidecar.number("/refused/address")), (3, 1));
    assert_eq!(sidecar.number("/connections"), 0);
}

#[test]
fn server_restart_ends_connections_and_new_ones_are_served() {
    let mut deployment = memcached(1);
    let sidecar = deployment.sidecar(&["--protocol", "memcached", "--relief", "on"]);
    let mut client = Client::new(sidecar.address);
    client.set("key", b"value");
    deployment.server.restart().unwrap();
    assert!(client.ended(), "the connection should end: the server has closed the session, or has lost it");
    eventually("new connections are served", || {
        Client::try_new(sidecar.address).is_some_and(|mut client| client.version().is_some())
    });
    assert_eq!(Client::new(sidecar.address).get("key"), None, "a restarted memcached should be empty");
    // Depending on timing, the server closes the session, or has forgotten it after the restart.
    assert_eq!(sidecar.not_ended_in_order(), sidecar.number("/ended/gone"), "{:#}", sidecar.status());
}

#[test]
fn without_any_carrier_clients_wait_and_are_reset() {
    let (place, scratch) = (Place::local().unwrap(), Scratch::new());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    let metrics = spillway_ports::free_address();
    let metrics_address = metrics.to_string();
    let arguments =
        ["--link", &server, "--connect-timeout", "300ms", "--metrics", &metrics_address].map(str::to_owned);
    let sidecar = Sidecar::start(&place, &scratch, &arguments);
    assert_eq!(
        health(metrics),
        (200, "healthy\n".into()),
        "a sidecar whose server's port is open should be healthy"
    );
    let mut client = socket(sidecar.address);
    client.write_all(b"version\r\n").unwrap();
    assert!(is_refused(&mut client));
    eventually("the end is counted", || sidecar.number("/ended/no_carrier") == 1);
    assert_eq!((sidecar.number("/connections"), sidecar.number("/waiting")), (0, 0));
    let (code, why) = health(metrics);
    assert!(code == 503 && why.starts_with("no carrier: "), "{code} {why}");
}

fn health(metrics: SocketAddr) -> (u16, String) {
    let mut stream = socket(metrics);
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let text = String::from_utf8(read_to_end(&mut stream).unwrap()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("head and body of the reply");
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("status code"), body.to_owned())
}

#[test]
fn a_sidecar_is_healthy_while_there_is_a_carrier() {
    let mut deployment = memcached(1);
    let metrics = spillway_ports::free_address();
    let sidecar = deployment.sidecar(&["--metrics", &metrics.to_string(), "--relief", "off"]);
    let mut client = Client::new(sidecar.address);
    assert!(client.version().is_some());
    assert_eq!(health(metrics).0, 200);
    deployment.helpers.clear();
    deployment.server.kill();
    eventually("the sidecar is not healthy", || health(metrics).0 == 503);
    assert!(health(metrics).1.starts_with("no carrier: "), "{:?}", health(metrics));
    deployment.server.restart().unwrap();
    // Only probes can find the restarted server: the client's connection has ended.
    eventually("there is a carrier again", || health(metrics).0 == 200);
}

#[test]
fn a_draining_sidecar_lets_requests_finish() {
    let deployment = redis(1);
    let mut sidecar = deployment.sidecar(&["--protocol", "redis", "--threads", "2", "--relief", "on"]);
    let mut idle: Vec<TcpStream> = (0..3).map(|_| socket(sidecar.address)).collect();
    for stream in &mut idle {
        stream.write_all(b"PING\r\n").unwrap();
        let mut pong = [0; 7];
        stream.read_exact(&mut pong).unwrap();
    }
    let mut blocked = socket(sidecar.address);
    blocked.write_all(b"BLPOP list 20\r\n").unwrap();
    eventually("all clients are accepted", || {
        sidecar.number("/replies") == 3 && sidecar.number("/accepted") == 4
    });
    sidecar.process.signal(rustix::process::Signal::TERM.as_raw()).unwrap();
    for stream in &mut idle {
        assert_eq!(read_to_end(stream).unwrap(), b"", "an idle connection should be closed in order");
    }
    eventually("new clients are refused", || TcpStream::connect(sidecar.address).is_err());
    assert_eq!(sidecar.status()["draining"], true);
    eventually("one is left", || sidecar.number("/connections") == 1);
    let mut pusher = socket(deployment.server.address());
    pusher.write_all(b"RPUSH list value\r\n").unwrap();
    assert_eq!(
        read_to_end(&mut blocked).unwrap(),
        b"*2\r\n$4\r\nlist\r\n$5\r\nvalue\r\n",
        "the reply should arrive before the end of the stream"
    );
    assert_eq!(sidecar.process.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(!std::fs::exists(&sidecar.status_socket).unwrap());

    let mut sidecar =
        deployment.sidecar(&["--protocol", "redis", "--drain-deadline", "100ms", "--relief", "on"]);
    let mut blocked = socket(sidecar.address);
    blocked.write_all(b"BLPOP list 0\r\n").unwrap();
    eventually("the client is carried", || sidecar.number("/helped") == 1);
    assert_eq!(sidecar.stop(), Some(0));
    assert_eq!(read_to_end(&mut blocked).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_service_manager_is_notified_and_top_shows_the_sidecar() {
    let deployment = memcached(0);
    let socket = std::os::unix::net::UnixDatagram::bind(deployment.scratch.path("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = |prefix: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{prefix}: {error}"));
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.starts_with(prefix) {
                return text;
            }
        }
    };
    let (link, address) = (deployment.link.to_string(), spillway_ports::free_address().to_string());
    let status = deployment.scratch.path("sidecar.sock");
    let launch = Launch::new(SPILLWAY)
        .args(["sidecar", "--link", &link, "--client-key", deployment.client_file(), "--listen", &address])
        .args(["--status-socket", &status])
        .env("NOTIFY_SOCKET", deployment.scratch.path("notify"))
        .env("WATCHDOG_USEC", "200000");
    let mut sidecar = deployment.place.spawn(&launch).unwrap();
    assert!(next("READY=1").contains("STATUS=0 connections"));
    (0..3).for_each(|_| drop(next("WATCHDOG=1")));
    let top = ["top", "--once", "--interval", "0.1", "--socket", &status];
    let output = Command::new(SPILLWAY).args(top).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("sidecar (pid") && text.contains("0 replies/s"),
        "{text}"
    );
    sidecar.signal(Signal::TERM.as_raw()).unwrap();
    next("STOPPING=1");
    assert!(sidecar.wait(PATIENCE).expect("exit status of the sidecar").success());
}

#[test]
fn wrong_settings_are_errors_at_the_start() {
    let error_of = |arguments: &[&str]| {
        let output = Command::new(SPILLWAY).arg("sidecar").args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let listen = ["--listen", "127.0.0.1:0"];
    let error_with = |extra: &[&'static str]| error_of(&[&listen[..], extra].concat());
    assert!(error_with(&["--link", "10.0.0.1:1"]).contains("--client-key"));
    assert!(error_with(&["--link", "127.0.0.1:1", "--helpers", "nonsense"]).contains("dns:NAME:PORT"));
    assert!(error_with(&["--link", "127.0.0.1:1", "--threads", "0"]).contains("--threads"));
    assert!(error_with(&["--link", "127.0.0.1:1", "--listen", ":0"]).contains("--allow-clients"));
    assert!(error_of(&["--link", "127.0.0.1:1"]).contains("--listen"));
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let message = error_of(&["--link", "127.0.0.1:1", "--listen", &address]);
    assert!(message.contains(&address) && message.contains("another program"), "{message}");
}
