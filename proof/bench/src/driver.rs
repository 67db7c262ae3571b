//! Clients of cost experiments: a link with batches of a given size, or a plain connection with pipelined requests.
//! They compare every byte of each reply.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use spillway_auth::Key;
use spillway_batch::{
    Encryption, Id, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_load::protocol::memcached::Text;
use spillway_load::protocol::redis::Resp;
use spillway_load::protocol::store::{Dialect, Space};
use spillway_load::protocol::{Protocol, SentRequest, Verdict};
use spillway_transport::Time;

/// Timeout for connecting and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 256 << 10;

/// Links that each have one batch under way, and the protocol of each link.
#[derive(Debug)]
pub struct Links<P>(Vec<(LinkDriver, P)>);

impl<P: Protocol> Links<P> {
    /// Sends a batch on each link.
    pub fn start(links: Vec<(LinkDriver, P)>) -> Result<Links<P>, String> {
        let mut links = Links(links);
        links.0.iter_mut().try_for_each(|(driver, protocol)| driver.send(protocol))?;
        Ok(links)
    }

    /// Collects the replies of each link and sends its next batch, while batches of other links are under way. Returns
    /// the number of replies.
    pub fn collect_and_send(&mut self) -> Result<u64, String> {
        let mut replies = 0;
        for (driver, protocol) in &mut self.0 {
            replies += driver.collect(protocol)?;
            driver.send(protocol)?;
        }
        Ok(replies)
    }

    /// Collects all outstanding replies and returns their number. Call it before the next series starts: a
    /// SET under way could change values that this series reads.
    pub fn finish(mut self) -> Result<u64, String> {
        self.0.iter_mut().map(|(driver, protocol)| driver.collect(protocol)).sum()
    }
}

/// A link whose connections each have one request under way, all of them sent in one batch.
#[derive(Debug)]
pub struct LinkDriver {
    stream: TcpStream,
    link: OpenerLink,
    scratch: Scratch,
    clients: Vec<Client>,
    started_at: Instant,
    buffer: Vec<u8>,
    request: Vec<u8>,
}

#[derive(Debug)]
struct Client {
    id: Id,
    pending: Option<SentRequest>,
    received: Vec<u8>,
}

impl LinkDriver {
    /// Opens a link as a helper. Its virtual connections have the client address of `first_client` and
    /// consecutive ports. Fails if the link's encryption is not as requested.
    pub fn open(
        server: SocketAddr,
        key: Key,
        encryption: Encryption,
        first_client: SocketAddr,
        connections: u16,
    ) -> Result<LinkDriver, String> {
        let stream = connect(server)?;
        let limits = Limits { handshake_timeout: TIMEOUT, ..Limits::default() };
        // `send` flushes batches itself; this policy never does.
        let policy = PolicyKind::Fixed { interval: TIMEOUT, size_bytes: usize::MAX };
        let config = OpenerConfig { role: Role::Helper, key, limits, policy, encryption };
        let randomness = spillway_keys::fresh_link_randomness().map_err(|e| e.to_string())?;
        let mut driver = LinkDriver {
            stream,
            link: OpenerLink::new(&config, Time::ZERO, randomness),
            scratch: Scratch::new(),
            clients: Vec::new(),
            started_at: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
            request: Vec::new(),
        };
        while !driver.link.is_established() {
            driver.flush()?;
            driver.receive()?;
        }
        let is_encrypted = driver.link.is_encrypted();
        if is_encrypted == (encryption == Encryption::Off) {
            return Err(format!("the link should be {encryption:?}, and is encrypted: {is_encrypted}"));
        }
        for number in 0..connections {
            let client = SocketAddr::new(first_client.ip(), first_client.port().wrapping_add(number));
            let id = driver.link.open(client, None).map_err(|e| format!("no connection: {e:?}"))?;
            driver.clients.push(Client { id, pending: None, received: Vec::new() });
        }
        Ok(driver)
    }

    /// Sends one request of every connection in one batch. Call [`LinkDriver::collect`] before the next batch.
    pub fn send(&mut self, protocol: &mut impl Protocol) -> Result<(), String> {
        for index in 0..self.clients.len() {
            let request = protocol.draw();
            self.request.clear();
            let sent = protocol.encode(request, &mut self.request);
            let client = &mut self.clients[index];
            client.pending = Some(sent);
            let accepted = self.link.compose(client.id, &self.request);
            if accepted < self.request.len() {
                return Err(format!("only {accepted} of {} bytes have credit", self.request.len()));
            }
        }
        self.flush()
    }

    /// Waits for all replies and returns their number.
    pub fn collect(&mut self, protocol: &mut impl Protocol) -> Result<u64, String> {
        let mut waiting = self.clients.iter().filter(|client| client.pending.is_some()).count();
        let replies = waiting as u64;
        while waiting > 0 {
            self.receive()?;
            for client in self.clients.iter_mut().filter(|client| !client.received.is_empty()) {
                let sent = client.pending.ok_or("received bytes without a pending request")?;
                if reply_length(protocol, &sent, &client.received)? == Some(client.received.len()) {
                    client.pending = None;
                    client.received.clear();
                    waiting -= 1;
                }
            }
        }
        Ok(replies)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn flush(&mut self) -> Result<(), String> {
        while let Some(mut batch) = self.link.flush(self.now()) {
            self.stream.write_all(batch.as_slice()).map_err(|e| format!("the link broke: {e}"))?;
            batch.clear();
            self.link.recycle(batch);
        }
        Ok(())
    }

    /// Receives once and handles the events of the received frames.
    fn receive(&mut self) -> Result<(), String> {
        let count = read(&mut self.stream, &mut self.buffer)?;
        let now = self.now();
        let mut input = self.link.unseal(now, &self.buffer[..count], &mut self.scratch);
        while let Some(event) = self.link.decompose(now, &mut input).map_err(|e| e.to_string())? {
            match event {
                OpenerEvent::Data { id, bytes } => {
                    // `clients` is sorted: ids are assigned in order and connections stay open.
                    let index = self.clients.binary_search_by_key(&id, |client| client.id);
                    let index = index.map_err(|_| "a reply for an unknown connection")?;
                    self.clients[index].received.extend_from_slice(bytes);
                    let length = bytes.len();
                    self.link.consumed(id, length).expect("consumed bytes should not exceed received bytes");
                }
                OpenerEvent::Refused { reason, .. } => {
                    return Err(format!("a connection was refused: {reason:?}"));
                }
                OpenerEvent::Closed { reason, .. } => {
                    return Err(format!("a connection was closed: {reason:?}"));
                }
                OpenerEvent::Finished { .. } => return Err("the server ended a connection".into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A plain connection with pipelined requests.
#[derive(Debug)]
pub struct PipeDriver {
    stream: TcpStream,
    sent: Vec<SentRequest>,
    request: Vec<u8>,
    expected: Vec<u8>,
    received: Vec<u8>,
    buffer: Vec<u8>,
}

impl PipeDriver {
    /// Connects.
    pub fn open(server: SocketAddr) -> Result<PipeDriver, String> {
        let stream = connect(server)?;
        Ok(PipeDriver {
            stream,
            sent: Vec::new(),
            request: Vec::new(),
            expected: Vec::new(),
            received: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Sends `depth` requests, then waits for all replies. Returns the number of replies.
    pub fn pipelined(&mut self, protocol: &mut impl Protocol, depth: usize) -> Result<u64, String> {
        self.request.clear();
        self.sent.clear();
        for _ in 0..depth {
            let request = protocol.draw();
            self.sent.push(protocol.encode(request, &mut self.request));
        }
        self.stream.write_all(&self.request).map_err(|e| format!("the connection broke: {e}"))?;
        self.received.clear();
        let (mut replies, mut offset) = (0, 0);
        while replies < depth {
            let count = read(&mut self.stream, &mut self.buffer)?;
            self.received.extend_from_slice(&self.buffer[..count]);
            while replies < depth {
                let Some(length) = reply_length(protocol, &self.sent[replies], &self.received[offset..])?
                else {
                    break;
                };
                offset += length;
                replies += 1;
            }
        }
        Ok(depth as u64)
    }

    /// Requests all keys at once and checks their values. Returns the number of values.
    pub fn multiget<D: ManyKeys>(&mut self, space: &Space, keys: &[u32]) -> Result<u64, String> {
        self.request.clear();
        self.expected.clear();
        D::push_many(space, keys, &mut self.request, &mut self.expected);
        self.stream.write_all(&self.request).map_err(|e| format!("the connection broke: {e}"))?;
        self.received.clear();
        while self.received.len() < self.expected.len() {
            let count = read(&mut self.stream, &mut self.buffer)?;
            self.received.extend_from_slice(&self.buffer[..count]);
            if !self.expected.starts_with(&self.received) {
                return Err(format!("a wrong reply to a multiget of {} keys", keys.len()));
            }
        }
        Ok(keys.len() as u64)
    }
}

/// Encoding of one request for many keys.
pub trait ManyKeys: Dialect {
    /// Appends the request, and its expected reply (values of version 0).
    fn push_many(space: &Space, keys: &[u32], request: &mut Vec<u8>, reply: &mut Vec<u8>);
}

impl ManyKeys for Text {
    fn push_many(space: &Space, keys: &[u32], request: &mut Vec<u8>, reply: &mut Vec<u8>) {
        request.extend_from_slice(b"get");
        for &key in keys {
            request.push(b' ');
            space.push_key(key, request);
            Text::push_value_head(space, key, reply);
            space.push_value(key, 0, reply);
            reply.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        reply.extend_from_slice(b"END\r\n");
    }
}

impl ManyKeys for Resp {
    fn push_many(space: &Space, keys: &[u32], request: &mut Vec<u8>, reply: &mut Vec<u8>) {
        request.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", keys.len() + 1).as_bytes());
        reply.extend_from_slice(format!("*{}\r\n", keys.len()).as_bytes());
        for &key in keys {
            request.extend_from_slice(format!("${}\r\n", space.key_size).as_bytes());
            space.push_key(key, request);
            request.extend_from_slice(b"\r\n");
            space.push_reply::<Resp>(key, 0, reply);
        }
    }
}

/// The length of a correct reply, or `None` while it is incomplete.
fn reply_length(
    protocol: &mut impl Protocol,
    sent: &SentRequest,
    reply: &[u8],
) -> Result<Option<usize>, String> {
    match protocol.check(sent, reply) {
        Verdict::Incomplete => Ok(None),
        Verdict::Right(length) => Ok(Some(length)),
        // The driver's protocols check whole replies.
        Verdict::Wrong(_) | Verdict::Garbled | Verdict::Continues(_) => {
            Err(format!("a wrong reply: {}", protocol.explain(sent, reply)))
        }
    }
}

fn connect(server: SocketAddr) -> Result<TcpStream, String> {
    let open = || {
        let stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(stream)
    };
    open().map_err(|e: io::Error| format!("cannot connect to {server}: {e}"))
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<usize, String> {
    loop {
        return match stream.read(buffer) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(count) => Ok(count),
            // SIGSTOP and SIGCONT also interrupt a read that has a timeout (signal(7)).
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => Err(format!("cannot read a reply: {e}")),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use spillway_load::keys::Keys;
    use spillway_load::protocol::memcached::Memcached;

    use super::*;

    fn space() -> Space {
        Space { seed: 3, key_size: 8, value_size: 9 }
    }

    /// A server that sends a fixed reply to the first bytes of its first connection.
    fn server_with_reply(reply: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let count = stream.read(&mut [0; 4096]).unwrap();
            assert!(count > 0);
            stream.write_all(&reply).unwrap();
        });
        address
    }

    #[test]
    fn push_many_encodes_one_request_for_all_keys() {
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        Text::push_many(&space(), &[1, 2], &mut request, &mut reply);
        assert_eq!(request, b"get 00000001 00000002\r\n");
        assert!(reply.starts_with(b"VALUE 00000001 0 9\r\n") && reply.ends_with(b"\r\nEND\r\n"));
        assert_eq!(reply.len(), 2 * (20 + 9 + 2) + 5);
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        Resp::push_many(&space(), &[1, 2], &mut request, &mut reply);
        assert_eq!(request, b"*3\r\n$4\r\nMGET\r\n$8\r\n00000001\r\n$8\r\n00000002\r\n");
        assert!(reply.starts_with(b"*2\r\n$9\r\n") && reply.len() == 4 + 2 * (4 + 9 + 2));
    }

    #[test]
    fn wrong_bytes_and_early_ends_are_errors() {
        let (mut request, mut right) = (Vec::new(), Vec::new());
        Text::push_many(&space(), &[5], &mut request, &mut right);
        let mut wrong = right.clone();
        wrong[24] ^= 1;
        let multiget = |reply: Vec<u8>| {
            PipeDriver::open(server_with_reply(reply)).unwrap().multiget::<Text>(&space(), &[5])
        };
        assert_eq!(multiget(right.clone()), Ok(1));
        assert!(multiget(wrong.clone()).unwrap_err().contains("wrong reply"));
        assert!(multiget(right[..9].to_vec()).unwrap_err().contains("closed"));

        let mut one_key = Memcached::new(space(), Keys::uniform(1), 1.0, (0, 1));
        let mut reply = Vec::new();
        space().push_reply::<Text>(0, 0, &mut reply);
        let mut driver = PipeDriver::open(server_with_reply(reply.repeat(3))).unwrap();
        assert_eq!(driver.pipelined(&mut one_key, 3), Ok(3));
        reply[22] ^= 1;
        let mut driver = PipeDriver::open(server_with_reply(reply)).unwrap();
        assert!(driver.pipelined(&mut one_key, 1).unwrap_err().contains("wrong reply"));
    }
}
