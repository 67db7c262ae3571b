//! The head of a datagram, which is sent in clear and authenticated.

use core::fmt;
use core::num::NonZeroU64;

use super::{
    DATAGRAM_BYTES_MAX, GREETING_BYTES, HANDOFF_MAGIC, HANDOFF_VERSION, HEAD_BYTES, HandoffError,
    MESSAGE_HEAD_BYTES, TAG_BYTES, field,
};
use crate::switch::ServerId;

/// One run of a server process: a random number that no other run has. Not zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run(NonZeroU64);

impl Run {
    /// `number` must come from a cryptographic random generator. `None` for 0: draw again.
    pub const fn new(number: u64) -> Option<Run> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Run(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({self})")
    }
}

/// What follows the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A [`Greeting`](super::Greeting), authenticated and not encrypted.
    Greeting {
        /// The receiver's run, if the sender has learned it.
        receiver_run: Option<Run>,
    },
    /// A sealed [`Message`](super::Message).
    Move {
        /// The receiver's run.
        receiver_run: Run,
        /// The number of the session between these runs: the low half of the number of the receiver's
        /// [`Greeting`](super::Greeting).
        session: u32,
        /// Number of the datagram under its key.
        counter: u64,
    },
}

/// The head of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The server that sends the datagram.
    pub sender: ServerId,
    /// The server for which the datagram is meant; another one than the sender.
    pub receiver: ServerId,
    /// The sender's run.
    pub sender_run: Run,
    /// What follows the head.
    pub form: Form,
}

const GREETING: u8 = 1;
const MOVE: u8 = 2;

impl Head {
    /// The bytes of the head.
    pub fn emit(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[field::MAGIC].copy_from_slice(&HANDOFF_MAGIC);
        bytes[field::VERSION] = HANDOFF_VERSION;
        (bytes[field::SENDER], bytes[field::RECEIVER]) = (self.sender.0, self.receiver.0);
        bytes[field::SENDER_RUN].copy_from_slice(&self.sender_run.get().to_be_bytes());
        let (form, receiver_run, session, counter) = match self.form {
            Form::Greeting { receiver_run } => (GREETING, receiver_run.map_or(0, Run::get), 0, 0),
            Form::Move { receiver_run, session, counter } => (MOVE, receiver_run.get(), session, counter),
        };
        bytes[field::FORM] = form;
        bytes[field::SESSION].copy_from_slice(&session.to_be_bytes());
        bytes[field::RECEIVER_RUN].copy_from_slice(&receiver_run.to_be_bytes());
        bytes[field::COUNTER].copy_from_slice(&counter.to_be_bytes());
        bytes
    }

    /// Parses the head of a datagram, and checks the datagram's length. Nothing is authenticated yet.
    ///
    /// # Errors
    /// The bytes are not a datagram of this version.
    pub fn parse(datagram: &[u8]) -> Result<Head, HandoffError> {
        let bytes = datagram.first_chunk::<HEAD_BYTES>().ok_or(HandoffError::Length(datagram.len()))?;
        if bytes[field::MAGIC] != HANDOFF_MAGIC {
            return Err(HandoffError::Magic);
        }
        if bytes[field::VERSION] != HANDOFF_VERSION {
            return Err(HandoffError::Version(bytes[field::VERSION]));
        }
        let (sender, receiver) = (bytes[field::SENDER], bytes[field::RECEIVER]);
        if sender == receiver || sender == ServerId::DAEMON.0 || receiver == ServerId::DAEMON.0 {
            return Err(HandoffError::Servers(sender, receiver));
        }
        let sender_run = Run::new(u64::from_be_bytes(array(bytes, field::SENDER_RUN.start)));
        let receiver_run = Run::new(u64::from_be_bytes(array(bytes, field::RECEIVER_RUN.start)));
        let session = u32::from_be_bytes(array(bytes, field::SESSION.start));
        let counter = u64::from_be_bytes(array(bytes, field::COUNTER.start));
        let form = match bytes[field::FORM] {
            GREETING if session != 0 => return Err(HandoffError::Unused("session")),
            GREETING if counter != 0 => return Err(HandoffError::Unused("counter")),
            GREETING => Form::Greeting { receiver_run },
            MOVE => {
                let receiver_run = receiver_run.ok_or(HandoffError::Missing("run of the receiver"))?;
                Form::Move { receiver_run, session, counter }
            }
            other => return Err(HandoffError::Form(other)),
        };
        let is_right_length = match form {
            Form::Greeting { .. } => datagram.len() == GREETING_BYTES,
            Form::Move { .. } => {
                (HEAD_BYTES + MESSAGE_HEAD_BYTES + TAG_BYTES..=DATAGRAM_BYTES_MAX).contains(&datagram.len())
            }
        };
        if !is_right_length {
            return Err(HandoffError::Length(datagram.len()));
        }
        Ok(Head {
            sender: ServerId(sender),
            receiver: ServerId(receiver),
            sender_run: sender_run.ok_or(HandoffError::Missing("run of the sender"))?,
            form,
        })
    }
}

/// `offset + N` must be within the head.
fn array<const N: usize>(head: &[u8; HEAD_BYTES], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[offset..offset + N]);
    out
}
