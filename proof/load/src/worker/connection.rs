//! One connection of a worker.

use std::io;
use std::time::Instant;

use spillway_client::relief::Member;
use spillway_moving_client::{Network, Stream};

use super::session_state::SessionState;
use crate::clock::Clock;
use crate::objects::Rest;
use crate::protocol::SentRequest;
use crate::queue::Queue;
use crate::report::Target;

#[derive(Debug, Default)]
pub(crate) enum State<N: Network> {
    /// Not open: the connection waits in `Worker::to_open`, or for a timer.
    #[default]
    Closed,
    /// The stream is being connected.
    Opening { stream: N::Stream, deadline_ns: u64 },
    /// An open TCP connection, in runs without helpers.
    Plain(N::Stream),
    /// A moving client, in runs with helpers.
    MovingClient {
        connection: Box<spillway_moving_client::Connection<N>>,
        /// The first carrier was established.
        open: bool,
        /// The carrier to which the connection moves is ready for use.
        prepared: bool,
        /// The carrier is lost, and the direct connection is being prepared.
        falling_back: bool,
    },
    /// A session of the client library, in runs with sessions.
    Session(Box<SessionState>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub sent: SentRequest,
    pub intended_ns: u64,
    /// What follows of a reply whose bytes so far are checked; `None` if all of its bytes are to be checked.
    pub rest: Option<Rest>,
}

/// A connection with at most one pending request, and a queue of waiting ones.
#[derive(Debug)]
pub(crate) struct Connection<N: Network> {
    pub state: State<N>,
    pub pending: Option<Pending>,
    pub waiting: Queue,
    /// The received part of an incomplete reply.
    pub partial: Vec<u8>,
    /// The part of a request that the stream has not accepted yet.
    pub unsent: Vec<u8>,
    pub carrier: Target,
    /// The carrier that should be in use. Differs from `carrier` during a move.
    pub target: Target,
    /// Until this time a move holds new requests back: a limit, because a helper may never answer.
    pub hold_until_ns: u64,
    /// The connection has started to move, and has not received a reply on the new carrier yet.
    pub awaits_first_reply: bool,
    /// The connection's identity in its group, if the client library's policy moves it.
    pub member: Option<Member>,
    /// Failed attempts to open the connection since it was last open.
    pub attempts: u32,
}

impl<N: Network> Default for Connection<N> {
    fn default() -> Connection<N> {
        Connection {
            state: State::Closed,
            pending: None,
            waiting: Queue::default(),
            partial: Vec::new(),
            unsent: Vec::new(),
            carrier: Target::Direct,
            target: Target::Direct,
            hold_until_ns: 0,
            awaits_first_reply: false,
            member: None,
            attempts: 0,
        }
    }
}

impl<N: Network> Connection<N> {
    /// Whether the connection can send requests, now or after the pending reply.
    pub fn is_open(&self) -> bool {
        match &self.state {
            State::Plain(_) | State::MovingClient { open: true, falling_back: false, .. } => true,
            State::Session(session) => session.is_open,
            _ => false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.is_open() && self.pending.is_none() && self.waiting.is_empty()
    }

    /// Whether a move holds new requests back.
    pub fn is_held(&self, clock: Clock) -> bool {
        let prepared = match self.state {
            State::MovingClient { prepared, .. } => prepared,
            // A session can move with pending requests.
            State::Session(_) => return false,
            _ => false,
        };
        self.target != self.carrier && (prepared || clock.now_ns() < self.hold_until_ns)
    }
}

impl<N: Network> State<N> {
    /// Sends as many bytes as the stream accepts. Returns their number.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = match self {
            State::Plain(stream) => stream.send(bytes),
            State::MovingClient { connection, .. } => connection.send(bytes),
            State::Session(state) => state.session.send(Instant::now(), bytes),
            State::Closed | State::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        };
        match sent {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            other => other,
        }
    }

    /// Receives available bytes. Returns their number; 0 at the end of the stream.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            State::Plain(stream) => stream.receive(buffer),
            State::MovingClient { connection, .. } => connection.receive(buffer),
            State::Session(state) => state.session.receive(Instant::now(), buffer),
            State::Closed | State::Opening { .. } => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
