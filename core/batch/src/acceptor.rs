//! The accepting end of a link as a helper needs it for its library clients: authentication, then frames as they
//! come. Whoever passes them on keeps the table of connections; their credit is end to end.

use alloc::boxed::Box;

use spillway_auth::KeyRing;
use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::{KeyId, NONCE_BYTES, Role, SESSIONS_SINCE};
use spillway_wire::{Control, Disassembler, Id, Kind, Piece};

use crate::assembler::Assembler;
use crate::ends::CONTROL_BYTES_MAX;
use crate::error::LinkError;
use crate::handshake::{Accepted, Accepting};

/// What an accepted link says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptorEvent<'a> {
    /// The peer has authenticated.
    Established {
        /// Who it is.
        role: Role,
        /// With which key.
        key: KeyId,
    },
    /// A piece of a request, as it came.
    Data {
        /// Whose.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
        /// This piece ends a message.
        last: bool,
    },
    /// A control message, as it came. Its kind is one that an opener may send.
    Control {
        /// Of which connection, or of the link.
        id: Id,
        /// The message.
        control: Control,
    },
}

/// The accepting end of one link whose frames are passed on.
#[derive(Debug)]
pub struct Acceptor {
    stage: Stage,
    assembler: Assembler,
    disassembler: Disassembler,
}

#[derive(Debug)]
enum Stage {
    Accepting { handshake: Box<Accepting>, deadline: Time },
    Established { version: u8 },
    Failed,
}

impl Acceptor {
    /// A link that was just accepted, whose opener has until `deadline` to authenticate. `credit` are the bytes
    /// of requests that may follow each *connect*; `nonce` are fresh random bytes, never used before.
    pub fn new(credit: u32, connections_max: u32, deadline: Time, nonce: [u8; NONCE_BYTES]) -> Acceptor {
        let handshake = Box::new(Accepting::new(nonce, credit, connections_max));
        Acceptor {
            stage: Stage::Accepting { handshake, deadline },
            assembler: Assembler::new(),
            disassembler: Disassembler::new(),
        }
    }

    /// Whether the peer has authenticated.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established { .. })
    }

    /// Whether the peer has named an accepted key, also if it has yet to prove it.
    pub fn has_named_key(&self) -> bool {
        match &self.stage {
            Stage::Accepting { handshake, .. } => handshake.has_named_key(),
            Stage::Established { .. } => true,
            Stage::Failed => false,
        }
    }

    /// Whether the peer may open sessions.
    fn carries_sessions(&self) -> bool {
        matches!(self.stage, Stage::Established { version } if version >= SESSIONS_SINCE)
    }

    /// Takes the next event off the front of `input`. `None` when all of `input` is used up. After an error,
    /// send what [`flush`](Self::flush) returns and close the link.
    pub fn decompose<'a>(
        &mut self,
        now: Time,
        ring: &KeyRing,
        input: &mut &'a [u8],
    ) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        let event = self.next_event(now, ring, input);
        if event.is_err() {
            self.stage = Stage::Failed;
        }
        event
    }

    fn next_event<'a>(
        &mut self,
        now: Time,
        ring: &KeyRing,
        input: &mut &'a [u8],
    ) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        while let Stage::Accepting { handshake, deadline } = &mut self.stage {
            if *deadline <= now {
                return Err(LinkError::HandshakeTimeout);
            }
            match handshake.advance(ring, input) {
                Ok(Accepted::NeedsInput) => return Ok(None),
                Ok(Accepted::Say(welcome)) => self.assembler.preamble(&welcome),
                Ok(Accepted::Done { role, key, version }) => {
                    self.stage = Stage::Established { version };
                    return Ok(Some(AcceptorEvent::Established { role, key }));
                }
                Err(rejected) => {
                    if let Some(welcome) = rejected.say {
                        self.assembler.preamble(&welcome);
                    }
                    return Err(rejected.error);
                }
            }
        }
        if matches!(self.stage, Stage::Failed) {
            return Ok(None);
        }
        match self.disassembler.next(input)? {
            None => Ok(None),
            Some(Piece::Data { kind: Kind::Request, id, bytes, last }) => {
                Ok(Some(AcceptorEvent::Data { id, bytes, last }))
            }
            Some(Piece::Data { kind, .. }) => Err(LinkError::Direction(kind)),
            Some(Piece::Control { control: Control::Accepted, .. }) => {
                Err(LinkError::Direction(Kind::Accepted))
            }
            Some(Piece::Control { control: Control::Refused(_), .. }) => {
                Err(LinkError::Direction(Kind::Refused))
            }
            Some(Piece::Control { control: Control::Resumed(_), .. }) => {
                Err(LinkError::Direction(Kind::Resumed))
            }
            // A client goes away by itself; what it says of that would be taken for its helper's.
            Some(Piece::Control { control: Control::Drain { .. }, .. }) => {
                Err(LinkError::Direction(Kind::Drain))
            }
            Some(Piece::Control { control, .. }) if control.is_of_sessions() && !self.carries_sessions() => {
                Err(LinkError::Sessions)
            }
            Some(Piece::Control { id, control }) => Ok(Some(AcceptorEvent::Control { id, control })),
        }
    }

    /// Passes on a piece of a reply. Pieces that follow each other share a frame: streams are bytes, and whoever
    /// does not read makes us hold few headers.
    pub fn data(&mut self, id: Id, bytes: &[u8]) {
        self.assembler.data(Kind::Reply, id, bytes);
    }

    /// Passes on a control message, or says one of our own.
    pub fn control(&mut self, id: Id, control: Control) {
        self.assembler.control(id, control);
    }

    /// Bytes that wait to be taken.
    pub fn pending(&self) -> usize {
        self.assembler.len()
    }

    /// Whether to read what the peer sends. It is not while too many answers wait for the peer to read them: then grant
    /// nothing more until batches were [taken](Self::flush) and sent.
    pub fn may_read(&self) -> bool {
        self.assembler.control_bytes() <= CONTROL_BYTES_MAX
    }

    /// Bytes of memory that they take.
    pub fn held(&self) -> usize {
        self.assembler.held()
    }

    /// A batch of whatever there is.
    pub fn flush(&mut self) -> Option<Chunk> {
        (!self.assembler.is_empty()).then(|| self.assembler.take())
    }

    /// Gives a spent batch's buffer back for reuse.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.assembler.recycle(chunk);
    }
}

#[cfg(test)]
mod tests {
    use spillway_auth::Key;
    use spillway_wire::CloseReason;

    use super::*;
    use crate::ends::Limits;
    use crate::opener::{OpenerConfig, OpenerEvent, OpenerLink};
    use crate::policy::PolicyKind;

    fn pair(key: Key) -> (OpenerLink, Acceptor) {
        let config = OpenerConfig {
            role: Role::Client,
            key,
            limits: Limits::default(),
            policy: PolicyKind::Fixed { delay: core::time::Duration::ZERO, bytes: 0 },
        };
        (OpenerLink::new(&config, Time(0), [1; 16]), Acceptor::new(1000, 1, Time(5), [2; 16]))
    }

    #[test]
    fn authenticates_and_passes_frames_on() {
        let key = Key::from_secret([3; 32]);
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        let (mut opener, mut acceptor) = pair(key.clone());
        let hello = opener.flush(Time(0)).unwrap();
        assert_eq!(acceptor.decompose(Time(0), &ring, &mut hello.as_slice()), Ok(None));
        let welcome = acceptor.flush().unwrap();
        let established = opener.decompose(Time(1), &mut welcome.as_slice()).unwrap();
        assert_eq!(established, Some(OpenerEvent::Established { connections_max: 1 }));
        assert_eq!(opener.initial_credit(), 1000);
        let id = opener.open("10.0.0.1:5".parse().unwrap(), None).unwrap();
        assert_eq!(opener.compose(id, b"get x"), 5);
        opener.close(id, CloseReason::Normal);
        let batch = opener.flush(Time(1)).unwrap();
        let mut input = batch.as_slice();
        let mut next = || acceptor.decompose(Time(2), &ring, &mut input).unwrap();
        assert_eq!(next(), Some(AcceptorEvent::Established { role: Role::Client, key: key.id() }));
        assert!(matches!(next(), Some(AcceptorEvent::Control { control: Control::Connect(_), .. })));
        assert_eq!(next(), Some(AcceptorEvent::Data { id, bytes: b"get x", last: true }));
        assert_eq!(next(), Some(AcceptorEvent::Control { id, control: Control::Close(CloseReason::Normal) }));
        assert_eq!(next(), None);
    }

    #[test]
    fn a_foreign_key_is_told_so_and_lateness_ends_it() {
        let (mut opener, mut acceptor) = pair(Key::from_secret([3; 32]));
        let hello = opener.flush(Time(0)).unwrap();
        let error = acceptor.decompose(Time(0), &KeyRing::new(), &mut hello.as_slice()).unwrap_err();
        assert!(matches!(error, LinkError::UnknownKey { role: Role::Client, .. }));
        assert!(opener.decompose(Time(0), &mut acceptor.flush().unwrap().as_slice()).is_err());
        let (_, mut acceptor) = pair(Key::from_secret([3; 32]));
        let late = acceptor.decompose(Time(5), &KeyRing::new(), &mut hello.as_slice());
        assert_eq!(late, Err(LinkError::HandshakeTimeout));
    }
}
