//! A helper's end of a link from a library client: authenticates the client, then returns the client's frames
//! unchanged. The caller forwards the frames and keeps the table of connections; credit is end to end.

use alloc::boxed::Box;

use spillway_auth::{KeyRing, LinkRandomness};
use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::{KeyId, Role, SESSIONS_SINCE};
use spillway_wire::{Control, Disassembler, HEADER_BYTES, Id, Kind, Piece};

use crate::assembler::Assembler;
use crate::error::LinkError;
use crate::handshake::{AcceptorHandshake, AcceptorProgress};
use crate::limits::CONTROL_BYTES_MAX;
use crate::overhead::Overhead;
use crate::records::{Encryption, Records, Scratch};

/// Maximum capacity, in bytes, of an empty buffer that is kept. Small, because a helper has thousands of idle library
/// clients.
const SPARE_BYTES_MAX: usize = 1024;

/// An event of an accepted link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptorEvent<'a> {
    /// The peer has authenticated.
    Established {
        /// The peer's role.
        role: Role,
        /// The key with which the peer authenticated.
        key: KeyId,
    },
    /// A piece of a request, unchanged.
    Data {
        /// The virtual connection.
        id: Id,
        /// The bytes, never empty.
        bytes: &'a [u8],
        /// Whether this piece ends a message.
        last: bool,
    },
    /// A control message, unchanged. Its kind is one that an opener may send.
    Control {
        /// The virtual connection, or [`Id::LINK`].
        id: Id,
        /// The message.
        control: Control,
    },
}

/// The accepting end of one link whose frames are forwarded unchanged.
#[derive(Debug)]
pub struct Acceptor {
    stage: Stage,
    assembler: Assembler,
    disassembler: Disassembler,
    /// `None`: the link is not encrypted.
    records: Option<Box<Records>>,
    /// The handshake's result, which [`decompose`](Self::decompose) has yet to return.
    pending_established: Option<(Role, KeyId)>,
    /// An error that [`unseal`](Self::unseal) found; `decompose` returns it after the events that precede it.
    pending_error: Option<LinkError>,
    overhead: Overhead,
    /// Time of the last [`unseal`](Self::unseal).
    now: Time,
}

#[derive(Debug)]
enum Stage {
    Handshake { handshake: Box<AcceptorHandshake>, deadline: Time },
    Established { version: u8 },
    Failed,
}

impl Acceptor {
    /// A link that was just accepted. `deadline`: when the peer must have authenticated. `credit`: bytes of requests
    /// that may follow each *connect*.
    pub fn new(
        encryption: Encryption,
        credit: u32,
        connections_max: u32,
        deadline: Time,
        fresh: LinkRandomness,
    ) -> Acceptor {
        let handshake = Box::new(AcceptorHandshake::new(encryption, fresh, credit, connections_max));
        let mut assembler = Assembler::new();
        assembler.set_spare_bytes_max(SPARE_BYTES_MAX);
        Acceptor {
            stage: Stage::Handshake { handshake, deadline },
            assembler,
            disassembler: Disassembler::new(),
            records: None,
            pending_established: None,
            pending_error: None,
            overhead: Overhead::default(),
            now: Time::ZERO,
        }
    }

    /// Whether batches are encrypted, once the peer has authenticated.
    pub fn is_encrypted(&self) -> bool {
        self.records.is_some()
    }

    /// Whether the peer has authenticated.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established { .. })
    }

    /// Whether the peer has named an accepted key. Its proof may still be missing.
    pub fn has_named_key(&self) -> bool {
        match &self.stage {
            Stage::Handshake { handshake, .. } => handshake.has_named_key(),
            Stage::Established { .. } => true,
            Stage::Failed => false,
        }
    }

    fn carries_sessions(&self) -> bool {
        matches!(self.stage, Stage::Established { version } if version >= SESSIONS_SINCE)
    }

    /// Decrypts received bytes for [`decompose`](Self::decompose), as [`ServerLink::unseal`](crate::ServerLink::unseal)
    /// does. Until the peer has authenticated, `ring` must contain the peer's key.
    pub fn unseal<'a>(
        &mut self,
        now: Time,
        ring: &KeyRing,
        wire: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> &'a [u8] {
        let mut rest = wire;
        scratch.clear();
        self.now = now;
        match self.advance_handshake(now, ring, &mut rest) {
            Ok(established) => self.pending_established = self.pending_established.or(established),
            Err(error) => self.pending_error = Some(error),
        }
        if self.pending_error.is_some() || matches!(self.stage, Stage::Failed) {
            return &[];
        }
        let Some(records) = &mut self.records else { return rest };
        let (opened, outcome) = records.unseal(now, rest, scratch);
        self.pending_error = outcome.err();
        opened
    }

    /// Takes the next event off the front of `input`, which [`unseal`](Self::unseal) returned. `None`: `input` is used
    /// up. After an error, send what [`flush`](Self::flush) returns and close the link.
    pub fn decompose<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        let event = self.next_event(input);
        if event.is_err() {
            self.stage = Stage::Failed;
        }
        event
    }

    fn advance_handshake(
        &mut self,
        now: Time,
        ring: &KeyRing,
        input: &mut &[u8],
    ) -> Result<Option<(Role, KeyId)>, LinkError> {
        while let Stage::Handshake { handshake, deadline } = &mut self.stage {
            if *deadline <= now {
                return Err(LinkError::HandshakeTimeout);
            }
            match handshake.advance(ring, input) {
                Ok(AcceptorProgress::NeedsInput) => return Ok(None),
                Ok(AcceptorProgress::Send(welcome, offer)) => {
                    self.assembler.preamble(&welcome);
                    if let Some(offer) = offer {
                        self.assembler.preamble(&offer);
                    }
                }
                Ok(AcceptorProgress::Done { role, key, version, channel }) => {
                    self.stage = Stage::Established { version };
                    self.records = channel.map(Records::new);
                    return Ok(Some((role, key)));
                }
                Err(rejected) => {
                    if let Some(welcome) = rejected.reply {
                        self.assembler.preamble(&welcome);
                    }
                    return Err(rejected.error);
                }
            }
        }
        Ok(None)
    }

    fn next_event<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        if let Some((role, key)) = self.pending_established.take() {
            return Ok(Some(AcceptorEvent::Established { role, key }));
        }
        let before = input.len();
        if let Some(records) = &self.records {
            records.check_opened(input)?;
        }
        let event = if self.is_established() { self.next_frame(input)? } else { None };
        let taken = before - input.len();
        if let Some(records) = &mut self.records {
            records.consumed_opened(taken);
        }
        match &event {
            Some(AcceptorEvent::Data { bytes, .. }) => {
                self.overhead.earn(bytes.len());
                self.overhead.spend(self.now, taken.saturating_sub(HEADER_BYTES + bytes.len()));
            }
            _ => self.overhead.spend(self.now, taken),
        }
        if event.is_none() { self.pending_error.take().map_or(Ok(None), Err) } else { Ok(event) }
    }

    fn next_frame<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
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
            // The server would interpret a forwarded *drain* of a client as a drain of the helper.
            Some(Piece::Control { control: Control::Drain { .. }, .. }) => {
                Err(LinkError::Direction(Kind::Drain))
            }
            Some(Piece::Control { control, .. }) if control.is_of_sessions() && !self.carries_sessions() => {
                Err(LinkError::Sessions)
            }
            Some(Piece::Control { id, control }) => Ok(Some(AcceptorEvent::Control { id, control })),
        }
    }

    /// Forwards a piece of a reply. Consecutive pieces share a frame, so that few headers wait for a slow client.
    pub fn data(&mut self, id: Id, bytes: &[u8]) {
        self.overhead.earn(bytes.len());
        self.assembler.data(Kind::Reply, id, bytes);
    }

    /// Sends a control message, forwarded or the helper's own.
    pub fn control(&mut self, id: Id, control: Control) {
        self.assembler.control(id, control);
    }

    /// Bytes that wait for [`flush`](Self::flush).
    pub fn pending(&self) -> usize {
        self.assembler.len()
    }

    /// Whether to read from the peer. `false` while more than [`CONTROL_BYTES_MAX`] bytes of control messages wait for
    /// [`flush`](Self::flush): do not grant credit and do not read until they are sent.
    pub fn may_read(&self) -> bool {
        self.assembler.control_bytes() <= CONTROL_BYTES_MAX
    }

    /// When the peer may be read again; `None`: now. A time is returned after the peer has exceeded, by more
    /// than a burst, its allowance for bytes that are not data of an open connection.
    pub fn throttled_until(&self, now: Time) -> Option<Time> {
        self.overhead.throttled_until(now)
    }

    /// Charges the peer's allowance for data from [`decompose`](Self::decompose) that belonged to no open
    /// connection.
    pub fn charge_ignored_data(&mut self, bytes: usize) {
        self.overhead.spend(self.now, HEADER_BYTES + bytes);
    }

    /// Bytes of memory that the link holds: waiting output, and an incomplete record.
    pub fn held(&self) -> usize {
        self.assembler.held() + self.held_incomplete()
    }

    /// Bytes of memory that hold an incomplete record.
    pub fn held_incomplete(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.held_bytes())
    }

    /// When the first bytes of the incomplete record arrived.
    #[must_use]
    pub fn incomplete_since(&self) -> Option<Time> {
        self.records.as_ref()?.incomplete_since()
    }

    /// Call every 5 s while a record is incomplete; `is_reading`: the driver reads the socket. Fails with
    /// [`LinkError::RecordTimeout`] if the rest did not arrive: close the link.
    pub fn handle_record_timeout(&mut self, now: Time, is_reading: bool) -> Result<(), LinkError> {
        self.records.as_mut().map_or(Ok(()), |records| records.handle_timeout(now, is_reading))
    }

    /// Takes all waiting output as one batch.
    pub fn flush(&mut self) -> Option<Chunk> {
        (!self.assembler.is_empty()).then(|| self.assembler.take_for(self.records.as_deref_mut()))
    }

    /// Gives a sent batch's buffer back for reuse. Large buffers are freed.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.assembler.recycle(chunk);
    }
}

#[cfg(test)]
mod tests {
    use spillway_auth::Key;
    use spillway_wire::CloseReason;

    use super::*;
    use crate::limits::Limits;
    use crate::opener::OpenerLink;
    use crate::opener_event::{OpenerConfig, OpenerEvent};
    use crate::policy::PolicyKind;

    fn fresh(first: u8) -> LinkRandomness {
        LinkRandomness::from_random([first; LinkRandomness::BYTES])
    }

    fn pair(key: Key) -> (OpenerLink, Acceptor) {
        let config = OpenerConfig {
            role: Role::Client,
            key,
            limits: Limits::default(),
            policy: PolicyKind::Fixed { interval: core::time::Duration::ZERO, size_bytes: 0 },
            encryption: Encryption::Preferred,
        };
        let acceptor = Acceptor::new(Encryption::Preferred, 1000, 1, Time(5), fresh(2));
        (OpenerLink::new(&config, Time(0), fresh(1)), acceptor)
    }

    #[test]
    fn an_authenticated_clients_frames_are_returned_unchanged() {
        let key = Key::from_secret([3; 32]);
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        let (mut opener, mut acceptor) = pair(key.clone());
        let (mut scratch, mut opener_scratch) = (Scratch::new(), Scratch::new());
        let hello = opener.flush(Time(0)).unwrap();
        let mut input = acceptor.unseal(Time(0), &ring, hello.as_slice(), &mut scratch);
        assert_eq!(acceptor.decompose(&mut input), Ok(None));
        let welcome = acceptor.flush().unwrap();
        let mut input = opener.unseal(Time(1), welcome.as_slice(), &mut opener_scratch);
        let established = opener.decompose(Time(1), &mut input).unwrap();
        assert_eq!(established, Some(OpenerEvent::Established { connections_max: 1 }));
        assert_eq!(opener.initial_credit(), 1000);
        let id = opener.open("10.0.0.1:5".parse().unwrap(), None).unwrap();
        assert_eq!(opener.compose(id, b"get x"), 5);
        opener.close(id, CloseReason::Normal);
        let batch = opener.flush(Time(1)).unwrap();
        let mut input = acceptor.unseal(Time(2), &ring, batch.as_slice(), &mut scratch);
        assert!(acceptor.is_encrypted() && opener.is_encrypted(), "both ends should be encrypted");
        let mut next = || acceptor.decompose(&mut input).unwrap();
        assert_eq!(next(), Some(AcceptorEvent::Established { role: Role::Client, key: key.id() }));
        assert!(
            matches!(next(), Some(AcceptorEvent::Control { control: Control::Connect(_), .. })),
            "the client's connect should be returned"
        );
        assert_eq!(next(), Some(AcceptorEvent::Data { id, bytes: b"get x", last: true }));
        assert_eq!(next(), Some(AcceptorEvent::Control { id, control: Control::Close(CloseReason::Normal) }));
        assert_eq!(next(), None);
    }

    /// A helper has thousands of these links, so idle ones must free the buffers of large replies and records.
    #[test]
    fn an_idle_link_frees_its_buffers() {
        let key = Key::from_secret([3; 32]);
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key.clone());
        let (mut opener, mut acceptor) = pair(key);
        let mut scratch = Scratch::new();
        let hello = opener.flush(Time(0)).unwrap();
        let mut input = acceptor.unseal(Time(0), &ring, hello.as_slice(), &mut scratch);
        acceptor.decompose(&mut input).unwrap();
        let welcome = acceptor.flush().unwrap();
        let mut opener_scratch = Scratch::new();
        let mut input = opener.unseal(Time(1), welcome.as_slice(), &mut opener_scratch);
        opener.decompose(Time(1), &mut input).unwrap();
        let id = opener.open("10.0.0.1:5".parse().unwrap(), None).unwrap();
        opener.compose(id, &[1; 1000]);
        let batch = opener.flush(Time(1)).unwrap();
        let (first, rest) = batch.as_slice().split_at(batch.len() - 10);
        for (part, held) in [(first, first.len() - 300..first.len() + 300), (rest, 0..1)] {
            let mut input = acceptor.unseal(Time(2), &ring, part, &mut scratch);
            while acceptor.decompose(&mut input).unwrap().is_some() {}
            let incomplete = acceptor.held_incomplete();
            assert!(
                held.contains(&incomplete),
                "only an incomplete record should be held: {incomplete} bytes"
            );
        }
        assert!(acceptor.is_encrypted(), "the link should be encrypted");
        for _ in 0..3 {
            acceptor.data(id, &[2; 200_000]);
            assert!(acceptor.held() >= 200_000, "waiting bytes should count as held");
            let batch = acceptor.flush().unwrap();
            acceptor.recycle(batch);
            let held = acceptor.held();
            assert!(
                held <= 2 * SPARE_BYTES_MAX,
                "{held} held bytes should be at most the spare buffers of both directions"
            );
        }
    }

    #[test]
    fn an_unknown_key_is_rejected_and_a_late_handshake_times_out() {
        let (mut opener, mut acceptor) = pair(Key::from_secret([3; 32]));
        let hello = opener.flush(Time(0)).unwrap();
        let mut scratch = Scratch::new();
        let mut input = acceptor.unseal(Time(0), &KeyRing::new(), hello.as_slice(), &mut scratch);
        let error = acceptor.decompose(&mut input).unwrap_err();
        assert!(
            matches!(error, LinkError::UnknownKey { role: Role::Client, .. }),
            "an unknown key should be reported"
        );
        assert!(
            opener.decompose(Time(0), &mut acceptor.flush().unwrap().as_slice()).is_err(),
            "the opener should learn of the rejection"
        );
        let (_, mut acceptor) = pair(Key::from_secret([3; 32]));
        let mut input = acceptor.unseal(Time(5), &KeyRing::new(), hello.as_slice(), &mut scratch);
        let expired = acceptor.decompose(&mut input);
        assert_eq!(expired, Err(LinkError::HandshakeTimeout));
    }
}
