//! An echo server for links, on a separate thread, and plain clients.
#![allow(dead_code)] // each test program uses only a part

pub mod load_query;
pub mod place;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_auth::{Key, KeyRing};
use spillway_batch::{Id, Limits, LinkRandomness, Role, Scratch, ServerConfig, ServerEvent, ServerLink};
use spillway_net::{Clock, Config, Context, Listeners, Remote};
use spillway_transport::{Application, Conn, Event, Time, Transport};

#[allow(unused_imports)]
pub use place::Place;
#[allow(unused_imports)]
pub(crate) use place::on_each_engine;

/// Bytes that a peer may send ahead on a link.
const LINK_GRANT: u32 = 1 << 20;

pub fn helper_key() -> Key {
    Key::from_secret([1; 32])
}

pub fn client_key() -> Key {
    Key::from_secret([2; 32])
}

pub struct EchoServer {
    pub address: SocketAddr,
    remote: Remote<LinkEcho>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    pub fn start() -> EchoServer {
        EchoServer::start_at("127.0.0.1:0".parse().unwrap())
    }

    /// Starts at a given address, to restart a server.
    pub fn start_at(address: SocketAddr) -> EchoServer {
        // More than the tests send at once.
        let config = Config { queued_bytes_max: 64 << 20, ..Config::default() };
        let deadline = Instant::now() + Duration::from_secs(20);
        let bound = loop {
            match Listeners::bind(&[address], 1, &config) {
                Ok(bound) => break bound,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        let address = bound.addresses()[0];
        let app = LinkEcho::new(address);
        let listeners = bound.into_contexts().remove(0);
        let mut context = Context::new(config, listeners, Clock::start(), app, |_| ()).unwrap();
        context.command(|_, _, out| out.set_listening(0, true));
        let remote = context.remote();
        let thread = Some(std::thread::spawn(move || context.run().unwrap()));
        EchoServer { address, remote, thread }
    }

    /// Sets whether requests are echoed, or only read.
    pub fn set_echo(&self, on: bool) {
        self.remote.run(move |_, app, _| app.echo = on).expect("the echo server should accept commands");
    }

    pub fn connections(&self) -> usize {
        let count = |_, app: &mut LinkEcho, _: &mut _| app.links.values().map(ServerLink::connections).sum();
        self.remote.run_and_wait(count).expect("the echo server should accept commands")
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.remote.stop();
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

pub struct LinkEcho {
    config: Arc<ServerConfig>,
    local: SocketAddr,
    links: BTreeMap<Conn, ServerLink>,
    /// Replies that wait for credit. Their size is bounded, because their requests count as not consumed.
    waiting: BTreeMap<(Conn, Id), Vec<u8>>,
    nonces: u8,
    echo: bool,
}

impl LinkEcho {
    fn new(local: SocketAddr) -> LinkEcho {
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, helper_key());
        ring.accept(Role::Client, client_key());
        let config = Arc::new(ServerConfig { ring, limits: Limits::default(), ..ServerConfig::default() });
        let (links, waiting) = (BTreeMap::new(), BTreeMap::new());
        LinkEcho { config, local, links, waiting, nonces: 0, echo: true }
    }

    fn handle_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.unseal(now, bytes, &mut scratch);
        loop {
            match link.decompose(now, &mut input) {
                Ok(Some(ServerEvent::Connect { id, .. })) => link.accept(id),
                Ok(Some(ServerEvent::Data { id, bytes })) => {
                    if self.echo {
                        self.waiting.entry((conn, id)).or_default().extend_from_slice(bytes);
                        send_reply(link, id, self.waiting.entry((conn, id)).or_default());
                    } else {
                        link.consumed(id, bytes.len()).unwrap();
                    }
                }
                Ok(Some(ServerEvent::Finished { id })) => link.finish(id),
                Ok(Some(ServerEvent::Closed { id, reason })) => {
                    self.waiting.remove(&(conn, id));
                    link.close(id, reason);
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    while let Some(id) = link.poll_room() {
                        send_reply(link, id, self.waiting.entry((conn, id)).or_default());
                    }
                    return out.grant(
                        conn,
                        u32::try_from(bytes.len()).expect("a peer should send at most the grant"),
                    );
                }
                Err(_) => {
                    // Sends the reason for the end of the link.
                    link.flush(now).map(|chunk| out.send_chunk(conn, chunk));
                    self.links.remove(&conn);
                    return out.finish(conn);
                }
            }
        }
    }
}

fn send_reply(link: &mut ServerLink, id: Id, waiting: &mut Vec<u8>) {
    let echoed = link.compose(id, waiting);
    waiting.drain(..echoed);
    link.consumed(id, echoed).unwrap();
}

impl Application for LinkEcho {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, .. } => {
                self.nonces = self.nonces.wrapping_add(1);
                let link = ServerLink::new(
                    Arc::clone(&self.config),
                    now,
                    peer,
                    self.local,
                    LinkRandomness::from_random([self.nonces; LinkRandomness::BYTES]),
                );
                self.links.insert(conn, link);
                out.grant(conn, LINK_GRANT);
            }
            Event::Data { bytes, .. } => self.handle_data(now, conn, bytes, out),
            Event::Finished => {
                self.links.remove(&conn);
                out.finish(conn);
            }
            Event::Lost(_) => {
                self.links.remove(&conn);
                self.waiting.retain(|(owner, _), _| *owner != conn);
            }
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        for (conn, link) in &mut self.links {
            if let Some(chunk) = link.flush(now) {
                out.send_chunk(*conn, chunk).expect("the queue should have room, because helpers read");
            }
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// Waits until a condition holds, at most 30 s.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "after 30 s still waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect to the helper");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends bytes that differ for each `seed`, and expects them back.
pub fn echo(stream: &mut TcpStream, seed: usize, length: usize) {
    let bytes: Vec<u8> =
        (0..length).map(|i| (i.wrapping_mul(31) ^ seed.wrapping_mul(131)).to_le_bytes()[0]).collect();
    stream.write_all(&bytes).unwrap();
    let mut back = vec![0; length];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

/// Whether a new client is served, rather than refused or reset.
pub fn is_served(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut back = [0; 2];
    stream.write_all(b"hi").is_ok() && stream.read_exact(&mut back).is_ok()
}
