//! A helper on the stack. Its clients and its server use the kernel's TCP. The helper acknowledges a client's
//! bytes only after the server has received them (PostMan §4.2).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with};
use spillway_auth::{Key as LinkKey, KeyRing};
use spillway_batch::{
    CloseReason, LinkRandomness, PolicyKind, Role as LinkRole, Scratch, ServerConfig, ServerEvent, ServerLink,
};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_tcp::{Listener, Settings};
use spillway_transport::Time;
use spillway_wire::Id;

use crate::rig::{PATIENCE, PORT, Rig, STACK_ADDRESS, Wire, ask, send_pattern, set_timeouts, take_pattern};

/// The clients' address. A helper refuses clients that have the server's address.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);

fn link_key() -> LinkKey {
    LinkKey::from_secret([1; 32])
}

struct Server {
    address: SocketAddr,
    /// While set, the server does not read its link.
    is_holding: AtomicBool,
    /// Unread bytes in the kernel's socket buffer, updated while `is_holding`.
    waiting: AtomicU64,
    /// Bytes of requests that the server has read.
    taken: AtomicU64,
}

impl Server {
    fn start(rig: &Rig) -> Arc<Server> {
        rig.command(&["ip", "addr", "add", &format!("{CLIENTS}/24"), "dev", "spw0"]);
        let listener = rig.listen();
        let address = listener.local_addr().unwrap();
        let server = Arc::new(Server {
            address,
            is_holding: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        });
        let running = server.clone();
        // The thread ends with the link or with the test.
        std::thread::spawn(move || running.serve(&listener));
        server
    }

    fn serve(&self, listener: &TcpListener) {
        let mut ring = KeyRing::new();
        ring.accept(LinkRole::Helper, link_key());
        let config = Arc::new(ServerConfig { ring, ..ServerConfig::default() });
        let (mut stream, peer) = listener.accept().unwrap();
        let mut link = ServerLink::new(
            config,
            Time(1),
            peer,
            self.address,
            LinkRandomness::from_random([8; LinkRandomness::BYTES]),
        );
        let mut buffer = vec![0; 256 * 1024];
        let mut replies = BTreeMap::new();
        loop {
            while self.is_holding.load(Ordering::SeqCst) {
                let many = stream.peek(&mut buffer).unwrap_or(0);
                self.waiting.store(many as u64, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            let Ok(length @ 1..) = stream.read(&mut buffer) else { return };
            self.answer(&mut link, &buffer[..length], &mut replies);
            if let Some(batch) = link.flush(Time(1))
                && stream.write_all(batch.as_slice()).is_err()
            {
                return;
            }
        }
    }

    /// Handles received bytes. `replies`: each connection's bytes that wait for credit, and whether it ends.
    fn answer(&self, link: &mut ServerLink, wire: &[u8], replies: &mut BTreeMap<Id, (Vec<u8>, bool)>) {
        let mut scratch = Scratch::new();
        let mut input = link.unseal(Time(1), wire, &mut scratch);
        while let Some(event) = link.decompose(Time(1), &mut input).unwrap() {
            match event {
                ServerEvent::Connect { id, .. } => link.accept(id),
                ServerEvent::Data { id, bytes } => {
                    self.taken.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                    replies.entry(id).or_default().0.extend_from_slice(bytes);
                    link.consumed(id, bytes.len()).unwrap();
                }
                ServerEvent::Finished { id } => replies.entry(id).or_default().1 = true,
                ServerEvent::Closed { id, .. } => {
                    replies.remove(&id);
                    link.close(id, CloseReason::Normal);
                }
                _ => {}
            }
        }
        replies.retain(|id, (reply, is_finished)| {
            let taken = link.compose(*id, reply);
            reply.drain(..taken);
            if reply.is_empty() && *is_finished {
                link.finish(*id);
            }
            !reply.is_empty()
        });
    }
}

/// Starts a helper for this server, with a gated port for plain clients.
fn start_helper(rig: &mut Rig, server: &Server) {
    let service = ServiceConfig {
        plain_listeners: vec![0],
        keys: vec![link_key()],
        policy: PolicyKind::Fixed { interval: Duration::from_micros(200), size_bytes: 32_768 },
        acknowledges_replies: true,
        ..ServiceConfig::new("echo", server.address)
    };
    let mut next = 0_u8;
    let random = move |bytes: &mut [u8]| {
        next = next.wrapping_add(1);
        bytes.fill(next);
    };
    let relay = Relay::new(Config::new(vec![service]), Box::new(random)).unwrap();
    rig.start_application(relay, |settings: &mut Settings| {
        let address = SocketAddr::from((STACK_ADDRESS, PORT));
        settings.listeners.push(Listener { address, is_gated: true });
    });
}

/// Connects a client. Retries until the helper's link is up, because the helper does not listen before.
fn client(rig: &Rig) -> TcpStream {
    let start = Instant::now();
    loop {
        match rig.host.run_inside(connect_from_there).unwrap() {
            Ok(stream) => {
                set_timeouts(&stream);
                stream.set_nodelay(true).unwrap();
                return stream;
            }
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect_from_there() -> io::Result<TcpStream> {
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    bind(&socket, &SocketAddr::from((CLIENTS, 0)))?;
    connect(&socket, &SocketAddr::from((STACK_ADDRESS, PORT)))?;
    Ok(TcpStream::from(socket))
}

/// Bytes in the kernel's send queue, sent or not, that the peer has not acknowledged.
fn unacknowledged(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (the same number as SIOCOUTQ) writes one int.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    assert_eq!(result, 0);
    bytes as u64
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

on_each_wire! {
    clients_of_a_helper_on_the_stack_are_served,
    nothing_is_acknowledged_that_would_be_lost_with_the_helper,
    a_helper_that_dies_has_acknowledged_what_the_server_has_and_no_more,
}

fn clients_of_a_helper_on_the_stack_are_served(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-relay");
    let server = Server::start(&rig);
    start_helper(&mut rig, &server);
    let clients: Vec<TcpStream> = (0..50).map(|_| client(&rig)).collect();
    for round in 0..20 {
        for stream in &clients {
            ask(stream, round * 64, 64);
        }
    }
    // Each client finishes; then a new client sends a large request, which takes many batches.
    for stream in &clients {
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&*stream).read(&mut [0]).unwrap(), 0);
    }
    let stream = client(&rig);
    std::thread::scope(|scope| {
        scope.spawn(|| send_pattern(&stream, 2_000_000));
        assert_eq!(take_pattern(&stream), 2_000_000);
    });
    assert_eq!(server.taken.load(Ordering::SeqCst), 50 * 20 * 64 + 2_000_000);
    let counters = rig.stop_application();
    assert_eq!(counters.frames_malformed, 0, "{counters:?}");
}

fn nothing_is_acknowledged_that_would_be_lost_with_the_helper(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-gated");
    let server = Server::start(&rig);
    start_helper(&mut rig, &server);
    let stream = client(&rig);
    ask(&stream, 0, 500);
    wait_until("what the server has taken is acknowledged", || unacknowledged(&stream) == 0);
    // The server stops reading, while its kernel still acknowledges.
    server.is_holding.store(true, Ordering::SeqCst);
    let first = client(&rig); // its messages end a `read` that the server may have begun before
    wait_until("the server holds", || server.waiting.load(Ordering::SeqCst) > 0);
    drop(first);
    let before = server.waiting.load(Ordering::SeqCst);
    (&stream).write_all(&[7; 300]).unwrap();
    wait_until("the request is in the server's kernel", || {
        server.waiting.load(Ordering::SeqCst) >= before + 300
    });
    assert_eq!(unacknowledged(&stream), 300, "the helper has passed it on, and has not acknowledged it");
    assert_eq!(server.taken.load(Ordering::SeqCst), 500);
    server.is_holding.store(false, Ordering::SeqCst);
    wait_until("the server has taken it", || unacknowledged(&stream) == 0);
    let mut reply = [0; 300];
    (&stream).read_exact(&mut reply).unwrap();
    assert_eq!(reply, [7; 300]);
    rig.stop_application();
}

fn a_helper_that_dies_has_acknowledged_what_the_server_has_and_no_more(wire: Wire) {
    let mut rig = Rig::new(wire, "tcp-dies");
    let server = Server::start(&rig);
    start_helper(&mut rig, &server);
    let streams: Vec<TcpStream> = (0..20).map(|_| client(&rig)).collect();
    let mut written = 0;
    for round in 0..50 {
        for stream in &streams {
            (&*stream).write_all(&[round; 100]).unwrap();
            written += 100;
        }
        if round == 30 {
            wait_until("some of it has been taken", || server.taken.load(Ordering::SeqCst) > 0);
            server.is_holding.store(true, Ordering::SeqCst);
        }
    }
    // The helper ends without closing its connections.
    rig.stop_application();
    let unacknowledged: u64 = streams.iter().map(unacknowledged).sum();
    assert!(unacknowledged > 0, "it died in the midst of it");
    let taken = server.taken.load(Ordering::SeqCst);
    assert!(
        written - unacknowledged <= taken,
        "{written} written, {unacknowledged} not acknowledged, {taken} taken"
    );
    server.is_holding.store(false, Ordering::SeqCst);
}
