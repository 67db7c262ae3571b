//! The opener's end of a link, driven step by step.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Control, Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink,
    PolicyKind, RefuseReason, Role, Scratch,
};
use spillway_transport::{Chunk, Time};

/// The driver's state of one virtual connection.
#[derive(Debug, Default)]
pub struct VirtualConnection {
    pub accepted: bool,
    pub refused: Option<RefuseReason>,
    pub received: Vec<u8>,
    pub finished: bool,
    pub closed: Option<CloseReason>,
    /// Received bytes are not reported as consumed, as if the client did not read.
    pub is_unread: bool,
    unread_bytes: usize,
}

/// A message on a relayed connection, for instance one that carries a session.
#[derive(Debug)]
pub enum Relayed {
    Control(Control),
    Data(Vec<u8>),
}

/// A link over a blocking stream.
pub struct Driver {
    pub stream: TcpStream,
    pub link: OpenerLink,
    pub connections: HashMap<Id, VirtualConnection>,
    pub established: bool,
    /// Why the link was lost.
    pub lost: Option<String>,
    /// Messages of relayed connections, in order.
    pub relayed: Vec<(Id, Relayed)>,
    /// Bytes beyond the credit, by connection.
    unsent: HashMap<Id, Vec<u8>>,
    buffer: Vec<u8>,
    started: Instant,
}

/// Time after which a wait fails the test.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

impl Driver {
    /// Opens a link and waits until it is established.
    pub fn open(port: SocketAddr, role: Role, key: Key) -> Result<Driver, String> {
        let mut driver = Driver::start(port, role, key)?;
        driver.run(|driver| driver.established || driver.lost.is_some());
        match driver.lost.take() {
            None => Ok(driver),
            Some(why) => Err(why),
        }
    }

    /// Opens a link with the key of links that stay on loopback.
    pub fn loopback(port: SocketAddr) -> Driver {
        Driver::open(port, Role::Helper, Key::loopback_only()).expect("the server should accept the link")
    }

    pub fn start(port: SocketAddr, role: Role, key: Key) -> Result<Driver, String> {
        // The link port opens when the server first waits for clients, so it may open after the ordinary port.
        let deadline = Instant::now() + Duration::from_secs(5);
        let stream = loop {
            match TcpStream::connect(port) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let limits = Limits { handshake_timeout: Duration::from_secs(60), ..Limits::default() };
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
        let config = OpenerConfig { role, key, limits, policy, encryption: Encryption::Preferred };
        let mut random = [0; LinkRandomness::BYTES];
        getrandom::fill(&mut random).map_err(|error| error.to_string())?;
        Ok(Driver {
            stream,
            link: OpenerLink::new(&config, Time::ZERO, LinkRandomness::from_random(random)),
            connections: HashMap::new(),
            established: false,
            lost: None,
            relayed: Vec::new(),
            unsent: HashMap::new(),
            buffer: vec![0; 256 * 1024],
            started: Instant::now(),
        })
    }

    pub fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// Opens a virtual connection from a client address that no other connection of this link has.
    pub fn connect(&mut self) -> Id {
        let number = self.connections.len() as u16;
        let client =
            SocketAddr::from(([127, 1, (number >> 8) as u8, number as u8], 20_000 + number % 40_000));
        self.connect_from(client)
    }

    pub fn connect_from(&mut self, client: SocketAddr) -> Id {
        let id = self.link.open(client, None).expect("an id should be free on the link");
        self.connections.insert(id, VirtualConnection::default());
        id
    }

    /// Adds a request to the batch. Bytes beyond the credit are sent when credit arrives.
    pub fn send(&mut self, id: Id, bytes: &[u8]) {
        if let Some(waiting) = self.unsent.get_mut(&id) {
            waiting.extend_from_slice(bytes);
            return;
        }
        let composed = self.link.compose(id, bytes);
        if composed < bytes.len() {
            self.unsent.insert(id, bytes[composed..].to_vec());
        }
    }

    pub fn unsent_bytes(&self) -> usize {
        self.unsent.values().map(Vec::len).sum()
    }

    pub fn flush(&mut self) {
        while let Some(batch) = self.link.flush(self.now()) {
            if let Err(error) = self.stream.write_all(batch.as_slice()) {
                self.lost.get_or_insert(error.to_string());
            }
            self.link.recycle(cleared(batch));
        }
    }

    /// Receives once, waiting for at most `wait`. Returns whether bytes were received.
    pub fn receive(&mut self, wait: Duration) -> bool {
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).unwrap();
        let mut buffer = std::mem::take(&mut self.buffer);
        let length = match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.lost.get_or_insert("closed by the server".into());
                0
            }
            Ok(length) => length,
            Err(error) if is_temporary(error.kind()) => 0,
            Err(error) => {
                self.lost.get_or_insert(error.to_string());
                0
            }
        };
        self.handle_bytes(&buffer[..length]);
        self.buffer = buffer;
        length > 0
    }

    fn handle_bytes(&mut self, wire: &[u8]) {
        let now = self.now();
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(now, wire, &mut scratch);
        loop {
            match self.link.decompose(now, &mut input) {
                Ok(None) => break,
                Ok(Some(event)) => self.handle(event),
                Err(error) => {
                    self.lost = Some(error.to_string());
                    return;
                }
            }
        }
        while let Some(id) = self.link.poll_room() {
            if let Some(bytes) = self.unsent.remove(&id) {
                self.send(id, &bytes);
            }
        }
    }

    fn handle(&mut self, event: OpenerEvent<'_>) {
        match event {
            OpenerEvent::Established { .. } => self.established = true,
            OpenerEvent::Accepted { id } => self.of(id).accepted = true,
            OpenerEvent::Refused { id, reason } => self.of(id).refused = Some(reason),
            OpenerEvent::Data { id, bytes } => {
                let connection = self.of(id);
                connection.received.extend_from_slice(bytes);
                if connection.is_unread {
                    connection.unread_bytes += bytes.len();
                } else {
                    self.link.consumed(id, bytes.len()).unwrap();
                }
            }
            OpenerEvent::Finished { id } => self.of(id).finished = true,
            OpenerEvent::Closed { id, reason } => {
                self.of(id).closed = Some(reason);
                self.link.close(id, CloseReason::Normal);
            }
            OpenerEvent::Drain { .. } | OpenerEvent::Acknowledged { .. } => {}
            OpenerEvent::RelayedControl { id, control } => self.relayed.push((id, Relayed::Control(control))),
            OpenerEvent::RelayedData { id, bytes, .. } => {
                self.relayed.push((id, Relayed::Data(bytes.to_vec())));
            }
        }
    }

    /// Reports all unread bytes as consumed, and those that follow, as if the client read again.
    pub fn read_again(&mut self, id: Id) {
        let connection = self.of(id);
        connection.is_unread = false;
        let unread_bytes = std::mem::take(&mut connection.unread_bytes);
        self.link.consumed(id, unread_bytes).unwrap();
        self.flush();
    }

    pub fn of(&mut self, id: Id) -> &mut VirtualConnection {
        self.connections.entry(id).or_default()
    }

    /// Takes the bytes that a connection has received.
    pub fn take(&mut self, id: Id) -> Vec<u8> {
        std::mem::take(&mut self.of(id).received)
    }

    /// Sends and receives until the condition holds.
    pub fn run(&mut self, mut until: impl FnMut(&Driver) -> bool) {
        let deadline = Instant::now() + WAIT_MAX;
        self.flush();
        while !until(self) {
            assert!(
                Instant::now() < deadline,
                "the condition should hold within {WAIT_MAX:?}; link lost: {:?}",
                self.lost
            );
            assert!(self.lost.is_none() || !self.established, "the link should not be lost: {:?}", self.lost);
            self.receive(Duration::from_millis(100));
            self.flush();
        }
    }

    /// Takes the next message on a relayed connection.
    pub fn next_relayed(&mut self, id: Id) -> Relayed {
        self.run(|driver| driver.relayed.iter().any(|(relayed_id, _)| *relayed_id == id));
        let position = self.relayed.iter().position(|(relayed_id, _)| *relayed_id == id).unwrap();
        self.relayed.remove(position).1
    }

    /// Sends one request and returns its whole reply, which ends with `end`.
    pub fn ask(&mut self, id: Id, request: &[u8], end: &[u8]) -> Vec<u8> {
        self.send(id, request);
        self.run(|driver| {
            let connection = &driver.connections[&id];
            connection.received.ends_with(end) || connection.closed.is_some() || connection.refused.is_some()
        });
        self.take(id)
    }
}

/// Whether an error is temporary: no bytes have arrived, or a signal or a suspend has interrupted the call.
fn is_temporary(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn cleared(mut batch: Chunk) -> Chunk {
    batch.clear();
    batch
}
