//! Sealing of the datagrams between two servers that move connections.
//!
//! Both servers have one key. A [`PeerSeal`] is one server's end towards one peer. First the two ends greet each other:
//! each names its run and a number, and echoes the number of the other. The echo proves that a greeting is not a copy of
//! an earlier one. From the key, both runs and both numbers follow the keys of a *session*, in which each end counts its
//! datagrams. So no nonce is used twice with one key, and no datagram of an earlier run, of another session or of the
//! other direction opens.
//!
//! ```text
//! A (run a)                                      B (run b)
//!   greeting 1, no echo, wants an answer  ->
//!   <-                                           greeting 7, echo 1, wants an answer
//!   A has a session
//!   greeting 1, echo 7                    ->
//!                                                B has the same session
//! ```

mod counters;
mod replay;
mod session;

use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;

use hmac::Mac;
use spillway_wire::handoff::{
    Form, GREETING_BYTES, GREETING_CONTENT_BYTES, Greeting, HEAD_BYTES, HandoffError, Head, Message, Run,
    TAG_BYTES,
};
use spillway_wire::switch::ServerId;
use subtle::ConstantTimeEq;

use crate::key::Key;
use crate::keyed_hash::keyed_hash;
pub use counters::SealCounters;
pub use session::COUNTERS_PER_SESSION;
use session::{End, Session};

/// Why a message cannot be sealed. In both cases send [`PeerSeal::greeting`]; the message can be sealed after the peer's
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// This end has no session with the peer yet.
    NotOpen,
    /// The session has sealed [`COUNTERS_PER_SESSION`] datagrams.
    Exhausted,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SealError::NotOpen => {
                "the peer has not answered a greeting yet: is it running, with the same key?"
            }
            SealError::Exhausted => "the session's datagrams are used up: a greeting begins a new session",
        })
    }
}

impl core::error::Error for SealError {}

/// Why a received datagram was rejected. It has changed nothing, and must not be answered unless stated here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealRejection {
    /// The datagram, or the message in it, is not valid.
    Malformed(HandoffError),
    /// The datagram is not from this peer to this server.
    Misdirected,
    /// The datagram is of a session that this end does not have: one of the two servers has restarted. Send
    /// [`PeerSeal::greeting`] to the peer, at most once in 10 ms, because the datagram may be forged.
    OtherSession,
    /// The greeting was made for an earlier run of this server, or before the present session.
    Stale,
    /// The sender does not have the key, or bytes were altered.
    NotAuthentic,
    /// The datagram was opened before, or is older than the replay window.
    Replayed,
}

impl fmt::Display for SealRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SealRejection::Malformed(error) => error.fmt(f),
            SealRejection::Misdirected => f.write_str(
                "the datagram is not from this peer to this server: compare the servers' ids on both hosts",
            ),
            SealRejection::OtherSession => f.write_str("the peer or this server has restarted since"),
            SealRejection::Stale => f.write_str("an old greeting"),
            SealRejection::NotAuthentic => {
                f.write_str("the peer has another key for this server, or bytes were altered")
            }
            SealRejection::Replayed => f.write_str("the datagram was received before, or is too old"),
        }
    }
}

impl core::error::Error for SealRejection {}

impl From<HandoffError> for SealRejection {
    fn from(error: HandoffError) -> SealRejection {
        SealRejection::Malformed(error)
    }
}

/// What an accepted datagram contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened<'a> {
    /// A message of the peer's present run.
    Message(Message<'a>),
    /// A greeting of the peer.
    Greeting {
        /// The datagram to send to the peer's configured address, never to the source of the greeting.
        answer: Option<[u8; GREETING_BYTES]>,
        /// Whether the peer has begun a new run, so that its moves of the earlier run have ended.
        is_new_run: bool,
    },
}

/// One server's end of the datagrams to and from one peer. Its secrets are wiped when it is dropped, except the expanded
/// keys of the cipher, which `ring` does not wipe.
pub struct PeerSeal {
    key: Key,
    id: ServerId,
    run: Run,
    peer: ServerId,
    /// Number of the next new greeting: one for each session, so that 2^64 are never used.
    next_number: NonZeroU64,
    /// The number of the greeting that the peer has not echoed yet.
    unanswered: Option<NonZeroU64>,
    session: Option<Session>,
    counters: SealCounters,
}

impl PeerSeal {
    /// An end without a session. `key`: the key that both servers have; it may be the same for all servers of a service.
    /// `id` and `run`: this server. The peer must have another id.
    pub fn new(key: &Key, (id, run): (ServerId, Run), peer: ServerId) -> PeerSeal {
        debug_assert!(id != peer, "a server cannot be its own peer");
        PeerSeal {
            key: key.clone(),
            id,
            run,
            peer,
            next_number: NonZeroU64::MIN,
            unanswered: None,
            session: None,
            counters: SealCounters::default(),
        }
    }

    /// Whether messages can be sealed.
    pub fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_exhausted())
    }

    /// The peer's run, if there is a session with it.
    pub fn peer_run(&self) -> Option<Run> {
        self.session.as_ref().map(|session| session.peer().run)
    }

    /// Numbers of datagrams that were opened and rejected so far.
    pub fn counters(&self) -> &SealCounters {
        &self.counters
    }

    /// A greeting that requests a session. Send it when the server starts, and about every 50 ms until
    /// [`is_open`](Self::is_open). Repetitions are equal.
    pub fn greeting(&mut self) -> [u8; GREETING_BYTES] {
        let number = self.unanswered_number();
        self.emit_greeting(None, Greeting { number, echo: None, wants_answer: true })
    }

    /// Appends the datagram of a sealed message to `out`.
    ///
    /// # Errors
    /// This end has no session, or the session is used up; nothing was appended.
    pub fn seal(&mut self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), SealError> {
        let session = self.session.as_mut().ok_or(SealError::NotOpen)?;
        let counter = session.take_counter().ok_or(SealError::Exhausted)?;
        let peer = session.peer();
        let form = Form::Move { receiver_run: peer.run, session: peer.session(), counter };
        let head = Head { sender: self.id, receiver: self.peer, sender_run: self.run, form }.emit();
        out.reserve(HEAD_BYTES + message.length() + TAG_BYTES);
        out.extend_from_slice(&head);
        let start = out.len();
        message.emit(out);
        let tag = session.seal(counter, &head, &mut out[start..]);
        out.extend_from_slice(&tag);
        Ok(())
    }

    /// Authenticates a received datagram, and opens it in place.
    ///
    /// # Errors
    /// The datagram is not one that the peer has just sent to this server.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<Opened<'a>, SealRejection> {
        let opened = Head::parse(datagram).map_err(SealRejection::from).and_then(|head| {
            if (head.sender, head.receiver) != (self.peer, self.id) {
                return Err(SealRejection::Misdirected);
            }
            match head.form {
                Form::Greeting { receiver_run } => self.open_greeting(&head, receiver_run, datagram),
                Form::Move { receiver_run, session, counter } => {
                    let is_ours = receiver_run == self.run;
                    let of = |own: &&mut Session| own.is_between(head.sender_run, session) && is_ours;
                    let session = self.session.as_mut().filter(of).ok_or(SealRejection::OtherSession)?;
                    let message = session.open(counter, datagram)?;
                    Ok(Opened::Message(Message::parse(message)?))
                }
            }
        });
        self.counters.count(opened.as_ref());
        opened
    }

    fn open_greeting<'a>(
        &mut self,
        head: &Head,
        receiver_run: Option<Run>,
        datagram: &[u8],
    ) -> Result<Opened<'a>, SealRejection> {
        let (proven, tag) = datagram.split_at(HEAD_BYTES + GREETING_CONTENT_BYTES);
        if !bool::from(self.greeting_tag(proven).ct_eq(tag)) {
            return Err(SealRejection::NotAuthentic);
        }
        let mut content = [0; GREETING_CONTENT_BYTES];
        content.copy_from_slice(&proven[HEAD_BYTES..]);
        let greeting = Greeting::parse(&content)?;
        let theirs = End { run: head.sender_run, number: greeting.number };
        let peer = self.session.as_ref().map(Session::peer);
        let is_old = peer.is_some_and(|peer| peer.run == theirs.run && peer.number > theirs.number);
        if receiver_run.is_some_and(|run| run != self.run) || is_old {
            return Err(SealRejection::Stale);
        }
        // An echo counts only in a greeting that names this run: numbers begin again in each run.
        let is_echo = receiver_run.is_some() && greeting.echo == self.unanswered;
        let mut is_new_run = false;
        if let Some(number) = self.unanswered.filter(|_| is_echo) {
            self.unanswered = None;
            is_new_run = peer.is_none_or(|peer| peer.run != theirs.run);
            let ours = End { run: self.run, number };
            self.session = Some(Session::new(&self.key, (self.id, ours), (self.peer, theirs)));
        }
        let answer = greeting.wants_answer.then(|| self.answer(theirs));
        Ok(Opened::Greeting { answer, is_new_run })
    }

    fn answer(&mut self, theirs: End) -> [u8; GREETING_BYTES] {
        let session = self.session.as_ref().filter(|session| session.peer() == theirs);
        let (number, wants_answer) = match session {
            Some(session) => (session.own_number(), false),
            None => (self.unanswered_number(), true),
        };
        let greeting = Greeting { number, echo: Some(theirs.number), wants_answer };
        self.emit_greeting(Some(theirs.run), greeting)
    }

    fn unanswered_number(&mut self) -> NonZeroU64 {
        *self.unanswered.get_or_insert_with(|| {
            let number = self.next_number;
            self.next_number = number.saturating_add(1);
            number
        })
    }

    fn emit_greeting(&self, receiver_run: Option<Run>, greeting: Greeting) -> [u8; GREETING_BYTES] {
        let form = Form::Greeting { receiver_run };
        let head = Head { sender: self.id, receiver: self.peer, sender_run: self.run, form };
        let mut bytes = [0; GREETING_BYTES];
        bytes[..HEAD_BYTES].copy_from_slice(&head.emit());
        bytes[HEAD_BYTES..HEAD_BYTES + GREETING_CONTENT_BYTES].copy_from_slice(&greeting.emit());
        let tag = self.greeting_tag(&bytes[..HEAD_BYTES + GREETING_CONTENT_BYTES]);
        bytes[HEAD_BYTES + GREETING_CONTENT_BYTES..].copy_from_slice(&tag);
        bytes
    }

    /// Head and content name both servers and the direction, so one label serves both.
    fn greeting_tag(&self, head_and_content: &[u8]) -> [u8; TAG_BYTES] {
        let hash = keyed_hash(self.key.secret(), b"spillway move 1 greeting\0", head_and_content);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&hash.finalize().into_bytes()[..TAG_BYTES]);
        tag
    }
}

impl fmt::Debug for PeerSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, run, peer) = (self.id, self.run, self.peer);
        write!(f, "PeerSeal(server {id}, {run:?}, to server {peer}, {:?})", self.peer_run())
    }
}

#[cfg(test)]
mod tests;
