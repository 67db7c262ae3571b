//! A server's agent: exchanges control messages with a switch. Blocking, without retransmissions, for tests and
//! experiments.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use spillway_auth::SwitchKey;
use spillway_wire::switch::{Answer, Body, MESSAGE_BYTES, Message, Relay, Request, ServerId};

use crate::{Host, LabError};

/// Maximum time until a message arrives. Cables of a lab lose no packets.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of relayed messages that wait until they are read.
const RELAYS_MAX: usize = 64;

/// The agent of one server of a switch.
#[derive(Debug)]
pub struct Agent {
    socket: UdpSocket,
    id: ServerId,
    key: SwitchKey,
    epoch: u64,
    sequence: u64,
    relays: VecDeque<Relay>,
}

impl Agent {
    /// An agent on a host, for the switch with this address for control messages. It knows no epoch before
    /// [`Agent::hello`].
    ///
    /// # Errors
    /// The host has no socket, or no route to the switch.
    pub fn new(host: &Host, switch: SocketAddr, id: ServerId, key: SwitchKey) -> Result<Agent, LabError> {
        let address = match switch {
            SocketAddr::V4(_) => host.address(),
            SocketAddr::V6(_) => host
                .ipv6_address()
                .ok_or_else(|| LabError::BadOption("a host without a switch has no IPv6 address".into()))?,
        };
        let open = || {
            let socket = UdpSocket::bind((address, 0))?;
            socket.connect(switch)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            Ok(socket)
        };
        let socket = host
            .run_inside(open)?
            .map_err(LabError::io(format!("cannot open a socket to the switch {switch}")))?;
        // Higher than those of an earlier agent of the same server, because the switch refuses lower ones.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let sequence = u64::try_from(since_1970.as_nanos()).unwrap_or_default();
        Ok(Agent { socket, id, key, epoch: 0, sequence, relays: VecDeque::new() })
    }

    /// Learns the switch's epoch, and becomes an owner. Returns the term.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn hello(&mut self) -> Result<u64, LabError> {
        self.send(Request::Hello)?;
        // Before the first answer, the agent does not know the epoch that it will carry.
        self.epoch = self.wait_for_answer(None)?.0.epoch;
        Ok(self.ask(Request::Hello)?.generation)
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// The socket failed.
    pub fn send(&mut self, request: Request) -> Result<(), LabError> {
        let payload = self.payload(request);
        self.send_payload(&payload)
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The socket failed, or no genuine answer arrived within ten seconds.
    pub fn ask(&mut self, request: Request) -> Result<Answer, LabError> {
        self.ask_timed(request).map(|(answer, _)| answer)
    }

    /// As [`Agent::ask`], and returns the time from the call that sends the request to the return of the call that
    /// receives the answer. Computing and verifying tags on this side is outside this time.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn ask_timed(&mut self, request: Request) -> Result<(Answer, Duration), LabError> {
        let payload = self.payload(request);
        let started_at = Instant::now();
        self.send_payload(&payload)?;
        let (message, ended_at) = self.wait_for_answer(Some(self.epoch))?;
        match message.body {
            Body::Answer(answer) => Ok((answer, ended_at - started_at)),
            Body::Request(_) | Body::Relay(_) => unreachable!("wait_for_answer returns answers"),
        }
    }

    /// Waits for the next message that the switch relayed to this server.
    ///
    /// # Errors
    /// The socket failed, or no message arrived within ten seconds.
    pub fn relayed(&mut self) -> Result<Relay, LabError> {
        loop {
            if let Some(relay) = self.relays.pop_front() {
                return Ok(relay);
            }
            if let Body::Relay(relay) = self.receive()?.0.body {
                self.relays.push_back(relay);
            }
        }
    }

    /// The epoch of the switch; 0 before the first [`Agent::hello`].
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The payload of the next message.
    fn payload(&mut self, request: Request) -> [u8; MESSAGE_BYTES] {
        self.sequence += 1;
        let (sender, sequence, epoch) = (self.id, self.sequence, self.epoch);
        self.key.emit(&Message { sender, sequence, epoch, body: Body::Request(request) })
    }

    fn send_payload(&self, payload: &[u8]) -> Result<(), LabError> {
        self.socket.send(payload).map(drop).map_err(LabError::io("cannot send a control message"))
    }

    /// Waits for the answer to the last request, and returns when it arrived. `epoch`: that of the answer, if known.
    fn wait_for_answer(&mut self, epoch: Option<u64>) -> Result<(Message, Instant), LabError> {
        loop {
            let (message, arrived_at) = self.receive()?;
            let is_expected =
                message.sequence == self.sequence && epoch.is_none_or(|epoch| epoch == message.epoch);
            match message.body {
                Body::Answer(_) if is_expected => return Ok((message, arrived_at)),
                Body::Relay(relay) if self.relays.len() < RELAYS_MAX => self.relays.push_back(relay),
                // An answer to an earlier request, for which nothing waits any more.
                Body::Answer(_) | Body::Relay(_) | Body::Request(_) => {}
            }
        }
    }

    /// The next message, and when it arrived.
    fn receive(&mut self) -> Result<(Message, Instant), LabError> {
        let failed = LabError::io("no control message arrived from the switch");
        // One byte more than a message has, to notice longer datagrams.
        let mut payload = [0; MESSAGE_BYTES + 1];
        let received = self.socket.recv(&mut payload);
        let arrived_at = Instant::now();
        let parsed = received.and_then(|length| {
            self.key.parse(&payload[..length]).map_err(|why| io::Error::other(why.to_string()))
        });
        Ok((parsed.map_err(failed)?, arrived_at))
    }
}
