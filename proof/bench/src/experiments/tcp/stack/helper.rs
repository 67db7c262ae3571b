//! A helper's round trip on our stack: the helper receives requests of clients as frames, sends a batch to
//! the server, receives the server's batch, and sends replies as frames. The server's work is not counted.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Instant;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    AddressRules, Encryption, Limits, LinkRandomness, PolicyKind, Role, Scratch, ServerConfig, ServerEvent,
    ServerLink,
};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_tcp::{Listener, Settings, Stack, isn};
use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::packet::ethernet::Mac;

use super::ours::{stack, turn};
use crate::experiments::common::script::{Client, Frames, MTU, port_of, target_of};

pub const TURN: usize = 64;
const TURN_NS: u64 = 10_000;
const FRAMES: usize = 8 * TURN;
const TURNS_MAX: usize = 100;

pub const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 3]);
/// The server's link port.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 3), 11_411);
const SECRET: [u8; 32] = [1; 32];

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Time of the helper for a message in one direction, half a round trip, in ns.
    pub message_ns: f64,
    /// Frames between helper and server, both ways, for each round trip.
    pub link_frames: f64,
}

/// Runs `warm_up` round trips, then `round_trips`. The time is the median over turns of the latter.
pub fn measure(clients: usize, warm_up: usize, round_trips: usize) -> Result<Cost, String> {
    let mut scene = Scene::new(clients)?;
    for _ in 0..warm_up.div_ceil(TURN) {
        scene.round_trips()?;
    }
    let (mut message_ns, mut frames, mut messages_sum) = (Vec::new(), 0, 0);
    for _ in 0..round_trips.div_ceil(TURN) {
        scene.is_counted = true;
        let (messages, helper_ns, link_frames) = scene.round_trips()?;
        message_ns.push(helper_ns as f64 / (2 * messages) as f64);
        (frames, messages_sum) = (frames + link_frames, messages_sum + messages);
    }
    let message_ns = crate::stats::median(&message_ns).ok_or("no messages")?;
    Ok(Cost { message_ns, link_frames: frames as f64 / messages_sum as f64 })
}

/// A relay with one plain listener. A batch contains the requests of one turn.
pub fn relay() -> Result<Relay, String> {
    let service = ServiceConfig {
        plain_listeners: vec![0],
        keys: vec![Key::from_secret(SECRET)],
        policy: PolicyKind::Fixed { interval: std::time::Duration::ZERO, size_bytes: 0 },
        ..ServiceConfig::new("echo", SERVER.into())
    };
    let mut count = 0_u8;
    let random = Box::new(move |bytes: &mut [u8]| {
        count = count.wrapping_add(1);
        bytes.fill(count);
    });
    Relay::new(Config::new(vec![service]), random).map_err(|error| error.to_string())
}

/// The server's stack, which listens.
pub fn server_stack() -> Result<Stack, String> {
    let settings = Settings {
        mtu: MTU,
        listeners: vec![Listener { address: SERVER.into(), is_gated: false }],
        ..Settings::new(SERVER_MAC, *SERVER.ip(), 24, isn::Key([8; 16]))
    };
    let mut server = Stack::new(Time::ZERO, settings).map_err(|error| error.to_string())?;
    server.set_listening(0, true);
    Ok(server)
}

struct Scene {
    now: Time,
    helper: Stack,
    relay: Relay,
    server: Stack,
    echo_server: EchoServer,
    clients: Vec<Client>,
    next: usize,
    to_helper: Frames,
    from_helper: Frames,
    to_server: Frames,
    helper_ns: u64,
    link_frames: usize,
    is_counted: bool,
}

impl Scene {
    fn new(clients: usize) -> Result<Scene, String> {
        let mut scene = Scene {
            now: Time(1_000_000),
            helper: stack(false)?,
            relay: relay()?,
            server: server_stack()?,
            echo_server: EchoServer::default(),
            clients: (0..clients).map(Client::new).collect(),
            next: 0,
            to_helper: Frames::new(FRAMES),
            from_helper: Frames::new(FRAMES),
            to_server: Frames::new(FRAMES),
            helper_ns: 0,
            link_frames: 0,
            is_counted: false,
        };
        for _ in 0..TURNS_MAX {
            scene.exchange()?;
        }
        if !scene.echo_server.is_linked() {
            return Err("the helper's link is not established, or is not encrypted".into());
        }
        for index in 0..clients {
            scene.open(index)?;
        }
        Ok(scene)
    }

    fn open(&mut self, index: usize) -> Result<(), String> {
        let client = &mut self.clients[index];
        self.to_helper.push(|slot| Some(client.syn(slot)));
        let answers = self.exchange()?;
        let [answer] = &answers[..] else { return Err(format!("{} frames for a SYN", answers.len())) };
        let client = &mut self.clients[index];
        client.accept_syn_ack(answer)?;
        self.to_helper.push(|slot| Some(client.acknowledgement(slot)));
        let answers = self.exchange()?;
        if answers.is_empty() { Ok(()) } else { Err("an answer to a bare acknowledgement".into()) }
    }

    /// Runs the requests of a turn up to their replies. Returns their number, the helper's time in ns, and the number
    /// of frames on the link.
    fn round_trips(&mut self) -> Result<(usize, u64, usize), String> {
        let count = TURN.min(self.clients.len());
        for _ in 0..count {
            let client = &mut self.clients[self.next];
            self.to_helper.push(|slot| Some(client.message(slot)));
            self.next = (self.next + 1) % self.clients.len();
        }
        (self.helper_ns, self.link_frames) = (0, 0);
        let frames = self.exchange()?;
        let (mut replies, base) = (0, self.clients[0].port());
        for frame in &frames {
            let index = usize::from(port_of(frame).unwrap_or(0).wrapping_sub(base));
            let client = self.clients.get_mut(index).ok_or("a frame for an unknown client")?;
            replies += usize::from(client.check(frame)?);
        }
        if replies != count {
            return Err(format!("{replies} replies to {count} requests"));
        }
        Ok((count, self.helper_ns, self.link_frames))
    }

    /// Exchanges frames until neither helper nor server sends any more. Returns the frames for clients.
    fn exchange(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut answers = Vec::new();
        for _ in 0..TURNS_MAX {
            self.now = Time(self.now.0 + TURN_NS);
            let start = Instant::now();
            if self.is_counted {
                self.counted_turns()
            } else {
                self.helper_turn()
            }
            self.helper_ns += start.elapsed().as_nanos() as u64; // below 2^64
            self.to_helper.clear();
            self.to_server.clear();
            for frame in self.from_helper.iter() {
                match target_of(frame) {
                    Some(SERVER_MAC | Mac::BROADCAST) => {
                        self.to_server.push(|slot| {
                            slot[..frame.len()].copy_from_slice(frame);
                            Some(frame.len())
                        });
                    }
                    _ => answers.push(frame.to_vec()),
                }
            }
            self.now = Time(self.now.0 + TURN_NS);
            turn(
                &mut self.server,
                &mut self.echo_server,
                self.now,
                self.to_server.iter(),
                &mut self.to_helper,
            );
            self.link_frames += self.to_server.len() + self.to_helper.len();
            if self.to_helper.len() == 0 {
                return Ok(answers);
            }
        }
        Err(format!("helper and server still send frames after {TURNS_MAX} turns"))
    }

    /// The measured code; [`super::counted`] counts instructions inside the function of this name.
    #[inline(never)]
    fn counted_turns(&mut self) {
        self.helper_turn();
    }

    fn helper_turn(&mut self) {
        self.from_helper.clear();
        turn(&mut self.helper, &mut self.relay, self.now, self.to_helper.iter(), &mut self.from_helper);
    }
}

/// The server's end of the link: replies to each request with the same bytes.
#[derive(Debug, Default)]
pub struct EchoServer {
    link: Option<(Conn, ServerLink)>,
}

impl EchoServer {
    /// Whether a link is established and encrypted.
    pub fn is_linked(&self) -> bool {
        self.link.as_ref().is_some_and(|(_, link)| link.is_established() && link.is_encrypted())
    }

    fn receive(&mut self, now: Time, bytes: &[u8]) {
        let Some((_, link)) = &mut self.link else { return };
        let mut scratch = Scratch::new();
        let mut bytes = link.unseal(now, bytes, &mut scratch);
        while let Ok(Some(event)) = link.decompose(now, &mut bytes) {
            match event {
                ServerEvent::Connect { id, .. } => link.accept(id),
                ServerEvent::Data { id, bytes } => {
                    link.compose(id, bytes);
                    link.consumed(id, bytes.len()).expect("consumed bytes should not exceed received bytes");
                }
                _ => {}
            }
        }
    }
}

impl Application for EchoServer {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, .. } => {
                let mut ring = KeyRing::new();
                ring.accept(Role::Helper, Key::from_secret(SECRET));
                let config = ServerConfig {
                    ring,
                    rules: AddressRules::default(),
                    limits: Limits::default(),
                    encryption: Encryption::Preferred,
                };
                let link = ServerLink::new(
                    Arc::new(config),
                    now,
                    peer,
                    SocketAddr::from(SERVER),
                    LinkRandomness::from_random([9; LinkRandomness::BYTES]),
                );
                self.link = Some((conn, link));
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => {
                self.receive(now, bytes);
                out.grant(conn, bytes.len() as u32); // at most a frame
            }
            _ => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, _out: &mut T) {
        if let Some((_, link)) = &mut self.link {
            let _ = link.handle_timeout(now);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some((conn, link)) = &mut self.link else { return };
        while let Some(batch) = link.flush(now) {
            if out.send_chunk(*conn, batch).is_err() {
                return;
            }
        }
        while let Some(chunk) = out.take_recycled_chunk() {
            link.recycle(chunk);
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.link.as_ref().and_then(|(_, link)| link.poll_timeout())
    }
}
