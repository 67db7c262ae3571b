//! A server's agent: exchanges control messages with a switch. Blocking, without retransmissions, for tests, experiments
//! and commands.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use spillway_auth::SwitchKey;
use spillway_wire::switch::{
    Answer, Body, Flow, Kind, MESSAGE_BYTES, Message, Relay, Request, ServerId, Status,
};

use crate::{Host, LabError};

/// Maximum time until a message arrives. Cables of a lab lose no packets.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of relayed messages that wait until they are read.
const RELAYS_MAX: usize = 64;

/// The agent of one server of a switch.
#[derive(Debug)]
pub struct Agent {
    socket: UdpSocket,
    switch: SocketAddr,
    id: ServerId,
    key: SwitchKey,
    timeout: Duration,
    epoch: u64,
    sequence: u64,
    relays: VecDeque<Relay>,
}

/// The outcome of a request that the switch relays to another server: the switch does not answer its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// The switch has relayed the request, or has lost it. The answer to *get* after it shows the entry.
    Sent(Answer),
    /// The answer that refuses the request.
    Refused(Answer),
}

impl Agent {
    /// An agent on a host. `switch`: the switch's address for control messages. Requests need the switch's epoch, which
    /// [`Agent::hello`] learns.
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
        host.run_inside(|| Agent::open(Some(address), switch, id, key, TIMEOUT))?
    }

    /// An agent in the network namespace of the calling thread. `local`: the address that it sends from; `None` for the
    /// one that the kernel chooses. `timeout`: maximum time until a message arrives.
    ///
    /// # Errors
    /// This host does not have the address, or has no route to the switch.
    pub fn open(
        local: Option<IpAddr>,
        switch: SocketAddr,
        id: ServerId,
        key: SwitchKey,
        timeout: Duration,
    ) -> Result<Agent, LabError> {
        let local = local.unwrap_or(match switch {
            SocketAddr::V4(_) => IpAddr::from([0; 4]),
            SocketAddr::V6(_) => IpAddr::from([0; 16]),
        });
        let open = || {
            let socket = UdpSocket::bind((local, 0))?;
            socket.connect(switch)?;
            socket.set_read_timeout(Some(timeout))?;
            Ok(socket)
        };
        let socket = open()
            .map_err(LabError::io(format!("cannot open a socket from {local} to the switch {switch}")))?;
        let (epoch, relays) = (0, VecDeque::new());
        Ok(Agent { socket, switch, id, key, timeout, epoch, sequence: first_sequence(), relays })
    }

    /// Learns the switch's epoch, and becomes an owner. Returns the term.
    ///
    /// # Errors
    /// As [`Agent::ask`], or the switch refuses.
    pub fn hello(&mut self) -> Result<u64, LabError> {
        let answer = self.begin_term()?;
        if answer.status == Status::Ok {
            return Ok(answer.generation);
        }
        Err(LabError::BadOption(format!("the switch answers hello of server {}: {}", self.id, answer.status)))
    }

    /// Learns the switch's epoch without a change of the server's term. Returns the answer: its status matters only if the
    /// switch has refused *hello*.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn learn_epoch(&mut self) -> Result<Answer, LabError> {
        // The switch does not have the epoch 0.
        self.epoch = 0;
        self.send(Request::Hello)?;
        let (answer, message, _) = self.wait_for_answer(&[(self.sequence, Kind::Hello)])?;
        self.epoch = message.epoch;
        Ok(answer)
    }

    /// Learns the switch's epoch, and becomes an owner in a new term: returns the answer to *hello*, also if the switch
    /// refuses.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn begin_term(&mut self) -> Result<Answer, LabError> {
        let learned = self.learn_epoch()?;
        if learned.status != Status::Ok {
            return Ok(learned);
        }
        let answer = self.ask(Request::Hello)?;
        if answer.status != Status::Replayed {
            return Ok(answer);
        }
        // This host's clock was set back: the answer has the highest sequence.
        self.sequence = self.sequence.max(answer.generation);
        check_sequence(self.sequence)?;
        self.ask(Request::Hello)
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
    /// The socket failed, or no genuine answer arrived in time.
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
        let (answer, _, ended_at) = self.wait_for_answer(&[(self.sequence, request.kind())])?;
        Ok((answer, ended_at - started_at))
    }

    /// Sends a *prepare* or *prepared* of a flow, and then *get*: the switch handles both in this order, unless the path
    /// reorders or loses them.
    ///
    /// # Errors
    /// As [`Agent::ask`].
    pub fn send_relayed(&mut self, request: Request, flow: Flow) -> Result<Relayed, LabError> {
        self.send(request)?;
        let sent = (self.sequence, request.kind());
        self.send(Request::Get { flow })?;
        let (answer, ..) = self.wait_for_answer(&[sent, (self.sequence, Kind::Get)])?;
        Ok(if answer.kind == Kind::Get { Relayed::Sent(answer) } else { Relayed::Refused(answer) })
    }

    /// Waits for the next message that the switch relayed to this server.
    ///
    /// # Errors
    /// The socket failed, or no message arrived in time.
    pub fn relayed(&mut self) -> Result<Relay, LabError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(relay) = self.relays.pop_front() {
                return Ok(relay);
            }
            if let Body::Relay(relay) = self.receive(deadline)?.0.body {
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

    /// Waits for the answer to one of these requests, which are given by sequence and kind. Returns when it arrived, too.
    fn wait_for_answer(&mut self, requests: &[(u64, Kind)]) -> Result<(Answer, Message, Instant), LabError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let (message, arrived_at) = self.receive(deadline)?;
            match message.body {
                Body::Answer(answer) if self.is_expected(&message, answer.kind, requests) => {
                    return Ok((answer, message, arrived_at));
                }
                Body::Relay(relay) if self.relays.len() < RELAYS_MAX => self.relays.push_back(relay),
                // A late answer to an earlier request.
                Body::Answer(_) | Body::Relay(_) | Body::Request(_) => {}
            }
        }
    }

    fn is_expected(&self, message: &Message, kind: Kind, requests: &[(u64, Kind)]) -> bool {
        // The answer to *hello* states the epoch.
        let is_epoch = kind == Kind::Hello || message.epoch == self.epoch;
        is_epoch && message.sender == self.id && requests.contains(&(message.sequence, kind))
    }

    /// The next genuine message, and when it arrived. Others are ignored.
    fn receive(&self, deadline: Instant) -> Result<(Message, Instant), LabError> {
        // One byte more than a message has, to notice longer datagrams.
        let mut payload = [0; MESSAGE_BYTES + 1];
        loop {
            let received = self.socket.recv(&mut payload);
            let arrived_at = Instant::now();
            let no_answer = LabError::NoAnswer { switch: self.switch, waited: self.timeout };
            match received {
                Ok(length) => match self.key.parse(&payload[..length]) {
                    Ok(message) => return Ok((message, arrived_at)),
                    Err(_) if arrived_at >= deadline => return Err(no_answer),
                    Err(_) => {}
                },
                Err(error) if is_timeout(&error) => return Err(no_answer),
                Err(error) => {
                    let what = format!("{} is not a control endpoint of a running switch", self.switch);
                    return Err(LabError::io(what)(error));
                }
            }
        }
    }
}

/// Nanoseconds since 1970: higher than the sequences of an earlier agent of the same server, because the switch refuses
/// lower ones.
fn first_sequence() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or_default()
}

/// Whether the switch accepts another message after this sequence.
fn check_sequence(highest: u64) -> Result<(), LabError> {
    if highest < u64::MAX {
        return Ok(());
    }
    let problem = "the switch has seen the server's last sequence, 2^64-1, and accepts no more messages: replace the \
                   server's key (`spillway key new`) and reload the switch";
    Err(LabError::BadOption(problem.to_owned()))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_sequence_is_an_error_and_no_overflow() {
        assert!(check_sequence(u64::MAX - 1).is_ok());
        let error = check_sequence(u64::MAX).unwrap_err();
        assert!(error.to_string().contains("replace the server's key"), "{error}");
    }
}
