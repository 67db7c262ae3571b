//! An echo server that serves plain and helped clients on one event loop: PostMan §4.2, "Using PostMan library".
//!
//! ```text
//! echo --listen 127.0.0.1:7000 --link 127.0.0.1:7400 [--key FILE]... [--client-key FILE]...
//!      [--allow-clients CIDR]...
//! ```
//!
//! The plain half is an ordinary server: `accept`, `read`, `write`. The helped half adds the paper's verbs: *decompose*
//! a helper's batches, *compose* the replies, and send them in one batch at the end of the turn. Both halves keep a
//! client's unsent replies in [`Pending`].

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_server::{ClientId, CloseReason, Event, LinkId, Links, Role, Settings, read_key_file};

/// Marks of the epoll set's events, in the upper half of their data.
const MARK_LISTENER: u32 = 0;
const MARK_PLAIN: u32 = 1;
const MARK_LINKS: u32 = 2;

/// Time without accepting on the plain port after the process ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Back-pressure: a plain client with this many unsent reply bytes is not read.
const PENDING_BYTES_MAX: usize = 256 * 1024;

fn main() -> ExitCode {
    serve(std::env::args().skip(1))
}

/// Runs the server with these arguments until an error.
pub fn serve(arguments: impl Iterator<Item = String>) -> ExitCode {
    match Arguments::parse(arguments)
        .and_then(|arguments| Server::start(arguments)?.run().map_err(|e| e.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    paused_until: Option<Instant>,
    plain: HashMap<u32, Plain>,
    plain_next: u32,
    links: Links,
    helped: HashMap<ClientId, Pending>,
    buffer: Box<[u8]>,
}

struct Plain {
    stream: TcpStream,
    replies: Pending,
}

/// Replies that wait for room at the client.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    /// The client sends no more requests: close its connection after the last reply.
    finished: bool,
}

impl Server {
    fn start(arguments: Arguments) -> Result<Server, String> {
        let now = Instant::now();
        let links = Links::bind(now, arguments.link, arguments.settings).map_err(|e| e.to_string())?;
        let listener = TcpListener::bind(arguments.listen)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|e| format!("cannot listen on {}: {e}", arguments.listen))?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|epoll| {
            epoll::add(&epoll, &listener, data(MARK_LISTENER, 0), EventFlags::IN)?;
            Ok(epoll)
        });
        let epoll = watched.map_err(|e| format!("cannot make an epoll set: {e}"))?;
        // With port 0, this line gives the real ports to the parent process.
        let listen = listener.local_addr().map_err(|e| e.to_string())?;
        println!("listening on {listen}, links on {}", links.address());
        Ok(Server {
            epoll,
            listener,
            paused_until: None,
            plain: HashMap::new(),
            plain_next: 0,
            links,
            helped: HashMap::new(),
            buffer: vec![0; 64 * 1024].into_boxed_slice(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.links.watch_in(&self.epoll, MARK_LINKS)?;
            let next = [self.links.poll_timeout(), self.paused_until].into_iter().flatten().min();
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            let mut space = [MaybeUninit::<epoll::Event>::uninit(); 256];
            let events = match epoll::wait(&self.epoll, &mut space, timeout.map(timespec).as_ref()) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            for event in events {
                let data = event.data.u64();
                match (data >> 32) as u32 {
                    MARK_LISTENER => self.accept_plain(now),
                    MARK_PLAIN => self.serve_plain(data as u32),
                    // A link is readable: batches of a helper or of a library client.
                    _ => {
                        if let Some(link) = self.links.handle_ready(now, data, event.flags) {
                            self.serve_link(now, link);
                        }
                    }
                }
            }
            if self.paused_until.is_some_and(|until| until <= now) {
                self.paused_until = None;
                self.watch_listener(EventFlags::IN);
            }
            self.links.handle_timeout(now);
            while let Some(event) = self.links.poll_event() {
                self.handle(event);
            }
            // Each link gets one batch with all replies of this turn.
            // Pass the time of the turn's end: the service time is the difference to `now`, the turn's beginning.
            self.links.flush(Instant::now());
        }
    }

    // The helped half.

    fn serve_link(&mut self, now: Instant, link: LinkId) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.links.receive(link, &mut buffer);
        let mut input = &buffer[..received];
        while let Some(event) = self.links.decompose(now, link, &mut input) {
            self.handle(event);
        }
        self.buffer = buffer;
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Connected { client, .. } => {
                self.helped.insert(client, Pending::default());
                self.links.accept(client);
            }
            Event::Data { client, bytes } => {
                let Some(replies) = self.helped.get_mut(&client) else { return };
                // Copy from the batch of requests into the batch of replies, unless earlier replies wait.
                let composed = if replies.bytes.is_empty() { self.links.compose(client, bytes) } else { 0 };
                self.links.consumed(client, composed).expect("consumed bytes should have been received");
                // The client's window bounds the rest, because it is not consumed before it is composed.
                replies.bytes.extend_from_slice(&bytes[composed..]);
            }
            Event::CanCompose { client } => self.reply(client),
            Event::Finished { client } => {
                if let Some(replies) = self.helped.get_mut(&client) {
                    replies.finished = true;
                }
                self.reply(client);
            }
            Event::Closed { client, reason } => {
                self.helped.remove(&client);
                self.links.close(client, reason);
            }
            Event::LinkOpened { peer, role, .. } => eprintln!("echo: {role} at {peer} opened a link"),
            Event::LinkLost { peer, why, .. } => eprintln!("echo: lost the link of {peer}: {why}"),
            Event::Forbidden { address, why, .. } => eprintln!("echo: refused {address}: {why}"),
            // `Run` comes only from `decompose_run`.
            Event::Drain { .. } | Event::Run { .. } => {}
        }
    }

    /// Composes waiting replies of a helped client, as far as there is room.
    fn reply(&mut self, client: ClientId) {
        let Some(replies) = self.helped.get_mut(&client) else { return };
        let composed = self.links.compose(client, &replies.bytes);
        replies.bytes.drain(..composed);
        self.links.consumed(client, composed).expect("consumed bytes should have been received");
        if replies.finished && replies.bytes.is_empty() {
            self.links.finish(client);
            self.links.close(client, CloseReason::Normal);
            self.helped.remove(&client);
        }
    }

    // The plain half.

    fn accept_plain(&mut self, now: Instant) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Most likely EMFILE. The listener stays readable, so it must not be watched for a while.
                Err(_) => {
                    self.paused_until = Some(now + PAUSE);
                    return self.watch_listener(EventFlags::empty());
                }
            };
            let number = self.plain_next;
            self.plain_next = self.plain_next.wrapping_add(1);
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).and_then(|()| {
                epoll::add(&self.epoll, &stream, data(MARK_PLAIN, number), EventFlags::IN)
                    .map_err(io::Error::from)
            });
            if ready.is_ok() {
                self.plain.insert(number, Plain { stream, replies: Pending::default() });
            }
        }
    }

    fn watch_listener(&self, interest: EventFlags) {
        // Cannot fail: `start` has added the listener to the set.
        let _ = epoll::modify(&self.epoll, &self.listener, data(MARK_LISTENER, 0), interest);
    }

    fn serve_plain(&mut self, number: u32) {
        let Some(client) = self.plain.get_mut(&number) else { return };
        let before = client.interest();
        match client.serve(&mut self.buffer) {
            Ok(true) if client.interest() == before => {}
            Ok(true) => {
                // A client whose interest cannot be changed would get no more events.
                let interest = client.interest();
                if epoll::modify(&self.epoll, &client.stream, data(MARK_PLAIN, number), interest).is_err() {
                    self.plain.remove(&number);
                }
            }
            Ok(false) | Err(_) => drop(self.plain.remove(&number)),
        }
    }
}

impl Plain {
    fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, !self.replies.finished && self.replies.bytes.len() < PENDING_BYTES_MAX);
        interest.set(EventFlags::OUT, !self.replies.bytes.is_empty());
        interest
    }

    /// Reads requests and writes replies. Returns whether the connection stays open.
    fn serve(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        if self.interest().contains(EventFlags::IN) {
            match self.stream.read(buffer) {
                Ok(0) => self.replies.finished = true,
                Ok(received) => self.replies.bytes.extend_from_slice(&buffer[..received]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        if !self.replies.bytes.is_empty() {
            match self.stream.write(&self.replies.bytes) {
                Ok(sent) => drop(self.replies.bytes.drain(..sent)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(!(self.replies.finished && self.replies.bytes.is_empty()))
    }
}

struct Arguments {
    listen: SocketAddr,
    link: SocketAddr,
    settings: Settings,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let (mut listen, mut link, mut settings) = (None, None, Settings::default());
        let mut allow = Vec::new();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let invalid = |error: &dyn std::fmt::Display| format!("{name} {value}: {error}");
            match name.as_str() {
                "--listen" => {
                    listen = Some(value.parse().map_err(|e: std::net::AddrParseError| invalid(&e))?)
                }
                "--link" => link = Some(value.parse().map_err(|e: std::net::AddrParseError| invalid(&e))?),
                "--key" => {
                    settings.keys.accept(Role::Helper, read_key_file(&value).map_err(|e| e.to_string())?)
                }
                "--client-key" => {
                    settings.keys.accept(Role::Client, read_key_file(&value).map_err(|e| e.to_string())?);
                }
                "--allow-clients" => {
                    allow.push(value.parse().map_err(|e: spillway_server::RangeError| invalid(&e))?)
                }
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        if !allow.is_empty() {
            settings.rules.allow = allow;
        }
        Ok(Arguments {
            listen: listen.ok_or("--listen ADDRESS:PORT is missing")?,
            link: link.ok_or("--link ADDRESS:PORT is missing")?,
            settings,
        })
    }
}

fn data(mark: u32, number: u32) -> EventData {
    EventData::new_u64(u64::from(mark) << 32 | u64::from(number))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}
