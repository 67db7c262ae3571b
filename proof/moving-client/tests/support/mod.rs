//! An echo server for tests, on an ordinary port and a link port, with one thread per connection.
#![allow(dead_code)] // each test program uses some of these functions

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use spillway_auth::{Key, KeyRing};
use spillway_batch::{Limits, Role, Scratch, ServerConfig, ServerEvent, ServerLink};
use spillway_moving_client::{Connection, Event, LinkTarget, Ready, Slot};
use spillway_transport::Time;

pub const CLOSE_LINK: &[u8] = b"close the link";
pub const FINISH_REPLIES: &[u8] = b"finish the stream of replies";

pub struct Server {
    pub plain_port: SocketAddr,
    pub link_port: SocketAddr,
    pub client_key: Key,
}

impl Server {
    /// Starts a server on the loopback address `host`. The server's threads end with the test's process.
    pub fn start(host: &str, limits: Limits) -> Server {
        Server::start_with(host, limits, true)
    }

    /// Starts a server that reads requests on its link port but never replies to them.
    pub fn start_sink(limits: Limits) -> Server {
        Server::start_with("127.0.0.1", limits, false)
    }

    fn start_with(host: &str, limits: Limits, replies: bool) -> Server {
        let bind = || TcpListener::bind((host, 0)).unwrap();
        let (plain, link) = (bind(), bind());
        let client_key = Key::from_secret([7; 32]);
        let server = Server {
            plain_port: plain.local_addr().unwrap(),
            link_port: link.local_addr().unwrap(),
            client_key: client_key.clone(),
        };
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, client_key);
        let config = Arc::new(ServerConfig { ring, limits, ..ServerConfig::default() });
        serve(plain, echo_plain);
        serve(link, move |stream| serve_link(stream, &config, replies));
        server
    }

    pub fn target(&self) -> LinkTarget {
        LinkTarget {
            address: self.link_port,
            key: self.client_key.clone(),
            server: None,
            encryption: Default::default(),
        }
    }
}

pub fn serve(listener: TcpListener, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
}

pub fn echo_plain(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..received]).is_err() {
            return;
        }
    }
}

fn serve_link(mut stream: TcpStream, config: &Arc<ServerConfig>, replies: bool) {
    let start = Instant::now();
    let now = || Time::ZERO + start.elapsed();
    let (peer, local) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
    let randomness = spillway_keys::fresh_link_randomness().unwrap();
    let mut link = ServerLink::new(config.clone(), now(), peer, local, randomness);
    let mut buffer = [0; 65536];
    let mut unsent = Vec::new();
    while let Ok(received @ 1..) = stream.read(&mut buffer) {
        let mut scratch = Scratch::new();
        let mut input = link.unseal(now(), &buffer[..received], &mut scratch);
        let is_open = loop {
            match link.decompose(now(), &mut input) {
                Ok(Some(ServerEvent::Connect { id, .. })) => link.accept(id),
                Ok(Some(ServerEvent::Data { bytes, .. })) if bytes == CLOSE_LINK => return,
                Ok(Some(ServerEvent::Data { id, bytes })) if bytes == FINISH_REPLIES => {
                    link.consumed(id, bytes.len()).unwrap();
                    link.finish(id);
                }
                Ok(Some(ServerEvent::Data { id, bytes })) => {
                    link.consumed(id, bytes.len()).unwrap();
                    unsent.extend_from_slice(if replies { bytes } else { &[] });
                    let sent = link.compose(id, &unsent);
                    unsent.drain(..sent);
                }
                Ok(Some(ServerEvent::Finished { id })) => link.finish(id),
                Ok(Some(ServerEvent::Closed { id, reason })) => link.close(id, reason),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        while let Some(id) = link.poll_room() {
            let sent = link.compose(id, &unsent);
            unsent.drain(..sent);
        }
        while let Some(batch) = link.flush(now()) {
            if stream.write_all(batch.as_slice()).is_err() {
                return;
            }
            link.recycle(batch);
        }
        if !is_open {
            return;
        }
    }
}

/// Waits up to 1 ms for a ready socket and handles it. Returns whether to receive.
pub fn turn(connection: &mut Connection, deadline: Instant) -> bool {
    assert!(Instant::now() < deadline, "no event within 60 s");
    let watched = connection.sockets().map(|watch| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, watch.readable);
        flags.set(PollFlags::OUT, watch.writable);
        (watch.slot, PollFd::new(watch.stream, flags))
    });
    let (slots, mut descriptors): (Vec<Slot>, Vec<PollFd<'_>>) = watched.unzip();
    let _ = poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
    let ready: Vec<_> = slots.into_iter().zip(descriptors.iter().map(PollFd::revents)).collect();
    let now = Instant::now();
    let mut receive = false;
    for (slot, flags) in ready.into_iter().filter(|(_, flags)| !flags.is_empty()) {
        let has_failed = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        let readable = has_failed || flags.contains(PollFlags::IN);
        let writable = has_failed || flags.contains(PollFlags::OUT);
        receive |= connection.handle_ready(now, slot, Ready { readable, writable });
    }
    receive
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn await_event(connection: &mut Connection) -> Event {
    let deadline = deadline();
    loop {
        if let Some(event) = connection.poll_event() {
            return event;
        }
        turn(connection, deadline);
    }
}

/// Waits until `handle_ready` or an event requests a call of `receive`.
pub fn await_readable(connection: &mut Connection) {
    let deadline = deadline();
    while !turn(connection, deadline) && !matches!(connection.poll_event(), Some(Event::Readable)) {}
}

/// Sends a request and checks its echo.
pub fn exchange(connection: &mut Connection, request: &[u8]) {
    assert_eq!(connection.send(request).unwrap(), request.len());
    let (mut reply, mut buffer) = (Vec::new(), [0; 4096]);
    let deadline = deadline();
    while reply.len() < request.len() {
        turn(connection, deadline);
        match connection.receive(&mut buffer) {
            Ok(received) => {
                assert!(received > 0, "the stream should not end before the whole reply was received");
                reply.extend_from_slice(&buffer[..received]);
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    assert_eq!(reply, request);
}
