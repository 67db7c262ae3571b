mod verbs;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_auth::LinkRandomness;
use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::{REQUESTS_ACKNOWLEDGED_SINCE, Role, SESSIONS_SINCE};
use spillway_wire::session::Acknowledge;
use spillway_wire::{CloseReason, Connect, Control, Id, Kind, Piece};

use crate::assembler::Updates;
use crate::batching::Batching;
use crate::connection::Connection;
use crate::error::LinkError;
use crate::handshake::{LinkTerms, OpenerHandshake, OpenerOutcome};
use crate::histogram::Batches;
use crate::ids::IdPool;
use crate::limits::{CLIENT_SPARE_BYTES_MAX, LinkCounters};
use crate::link_end::{Disposition, LinkEnd};
use crate::opener_event::{OpenError, OpenerConfig, OpenerEvent};
use crate::policy::PolicyKind;
use crate::records::Scratch;

/// The opening end of one link. Its methods correspond to those of [`ServerLink`](crate::ServerLink). There are two
/// kinds of connections: *own* ones, opened with [`open`](Self::open), whose credit this end manages; and *relayed*
/// ones, opened with [`open_with_message`](Self::open_with_message), whose frames come from another link's end or a
/// session.
#[derive(Debug)]
pub struct OpenerLink {
    stage: Stage,
    window_bytes: u32,
    connections_max: u32,
    handshake_deadline: Time,
    link_end: LinkEnd,
    ids: IdPool,
    /// Relayed connections by id. Ids are dense, so the table is about as long as the largest number of
    /// connections so far.
    relayed: Vec<Option<Updates>>,
    /// [`unseal`](Self::unseal) completed the handshake; [`decompose`](Self::decompose) has yet to return the event.
    pending_established: bool,
}

#[derive(Debug)]
enum Stage {
    Handshake(Box<OpenerHandshake>),
    Established(LinkTerms),
    Failed,
}

impl OpenerLink {
    /// A link over a connection that was just opened. The first batch is due at once.
    pub fn new(config: &OpenerConfig, now: Time, fresh: LinkRandomness) -> OpenerLink {
        let (handshake, hello) =
            OpenerHandshake::new(config.role, config.key.clone(), config.encryption, fresh);
        let limits = config.limits;
        let mut batching = Batching::new(Kind::Request, config.policy.build(), limits.pending_bytes_max);
        batching.keep_statistics();
        if config.role == Role::Client {
            batching.set_spare_bytes_max(CLIENT_SPARE_BYTES_MAX);
        }
        batching.preamble(&hello);
        OpenerLink {
            stage: Stage::Handshake(Box::new(handshake)),
            window_bytes: limits.window_bytes,
            connections_max: limits.connections_max,
            handshake_deadline: now + limits.handshake_timeout,
            link_end: LinkEnd::new(batching),
            ids: IdPool::new(0),
            relayed: Vec::new(),
            pending_established: false,
        }
    }

    /// Whether batches are encrypted, once both ends have authenticated.
    pub fn is_encrypted(&self) -> bool {
        self.link_end.receiving.is_encrypted()
    }

    /// Whether both ends have authenticated.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established(_))
    }

    /// Replaces the batch policy.
    pub fn set_policy(&mut self, policy: PolicyKind) {
        self.link_end.batching.set_policy(policy.build());
    }

    /// Opens a connection for a client. Requests may follow at once.
    pub fn open(&mut self, client: SocketAddr, server: Option<SocketAddr>) -> Result<Id, OpenError> {
        self.open_own(client, server, self.window_bytes, false)
    }

    /// As [`open`](Self::open), and requests the server to keep replies until they are
    /// [acknowledged](Self::acknowledge). The request is an *acknowledge* before *connect*, so that the first
    /// reply is kept too. It is sent only if the link's version [carries sessions](Self::carries_sessions).
    pub fn open_kept(&mut self, client: SocketAddr, server: Option<SocketAddr>) -> Result<Id, OpenError> {
        self.open_own(client, server, self.window_bytes, self.carries_sessions())
    }

    /// Reports that the client's TCP has acknowledged replies up to this offset. Call until this end closes,
    /// even after the server has closed. Without [`open_kept`](Self::open_kept) the server keeps replies from
    /// the first report on. Reports are sent only if the link's version
    /// [carries sessions](Self::carries_sessions).
    pub fn acknowledge(&mut self, id: Id, through: u64) {
        if self.carries_sessions() && self.link_end.get(id).is_some_and(Connection::may_send_control) {
            self.send_acknowledge(id, through);
        }
    }

    fn send_acknowledge(&mut self, id: Id, through: u64) {
        let acknowledge = Acknowledge { received: through, finish_received: false, requests_answer: false };
        self.link_end.batching.control(id, Control::Acknowledge(acknowledge));
    }

    /// Opens a connection whose server may send `window` bytes ahead of the [consumed](Self::consumed) bytes, until
    /// [`raise_window`](Self::raise_window). `is_kept`: as with [`open_kept`](Self::open_kept).
    pub fn open_with_window(
        &mut self,
        client: SocketAddr,
        window: u32,
        is_kept: bool,
    ) -> Result<Id, OpenError> {
        self.open_own(client, None, window, is_kept && self.carries_sessions())
    }

    fn open_own(
        &mut self,
        client: SocketAddr,
        server: Option<SocketAddr>,
        window: u32,
        is_kept: bool,
    ) -> Result<Id, OpenError> {
        let (id, terms) = self.assign_id(false)?;
        self.link_end.insert(id, Connection::new(u64::from(terms.credit), window));
        let credit = u64::from(window);
        if is_kept {
            self.send_acknowledge(id, 0);
        }
        self.link_end
            .batching
            .control(id, Control::Connect(Connect { client, server, credit, session: None }));
        Ok(id)
    }

    /// Opens a relayed connection with this message, *connect* or *reconnect*, which is forwarded unchanged.
    pub fn open_with_message(&mut self, opening: Control) -> Result<Id, OpenError> {
        if opening.is_of_sessions() && self.is_established() && !self.carries_sessions() {
            return Err(OpenError::Sessions);
        }
        let (id, _) = self.assign_id(true)?;
        self.link_end.batching.control(id, opening);
        Ok(id)
    }

    /// Whether the link's version can carry sessions.
    pub fn carries_sessions(&self) -> bool {
        matches!(&self.stage, Stage::Established(terms) if terms.version >= SESSIONS_SINCE)
    }

    /// Whether the server acknowledges requests of connections that were [opened](Self::open_kept) with replies kept.
    pub fn acknowledges_requests(&self) -> bool {
        matches!(&self.stage, Stage::Established(terms) if terms.version >= REQUESTS_ACKNOWLEDGED_SINCE)
    }

    fn assign_id(&mut self, is_relayed: bool) -> Result<(Id, LinkTerms), OpenError> {
        let Stage::Established(terms) = self.stage else { return Err(OpenError::NotEstablished) };
        let id = self.ids.assign().ok_or(OpenError::Full)?;
        let index = id.0 as usize;
        if self.relayed.len() <= index {
            self.relayed.resize(index + 1, None);
        }
        self.relayed[index] = is_relayed.then(Updates::default);
        Ok((id, terms))
    }

    /// Bytes of requests that a new connection may send at once, before it is accepted.
    pub fn initial_credit(&self) -> u32 {
        match self.stage {
            Stage::Established(terms) => terms.credit,
            _ => 0,
        }
    }

    /// Forwards a piece of a relayed connection's request; `last`: whether the piece ends a message.
    pub fn relay_data(&mut self, id: Id, bytes: &[u8], last: bool) {
        self.link_end.batching.frame(id, bytes, last);
    }

    /// Forwards a control message of a relayed connection. A batch carries only the connection's latest *credit* and
    /// *acknowledge*. On a link whose version cannot carry sessions, messages of sessions are dropped, because the
    /// server would end the whole link; a *close* with a reason of sessions is sent as a reset.
    pub fn relay_control(&mut self, id: Id, control: Control) {
        let control = match control {
            _ if !control.is_of_sessions() || self.carries_sessions() => control,
            Control::Close(_) => Control::Close(CloseReason::Reset),
            _ => return,
        };
        match self.relayed.get_mut(id.0 as usize) {
            Some(Some(updates)) => self.link_end.batching.update(id, control, updates),
            _ => self.link_end.batching.control(id, control),
        }
    }

    /// Frees a relayed connection's id, after *close* was relayed in both directions or the connection was refused.
    pub fn release_relayed(&mut self, id: Id) {
        if self.relayed.get_mut(id.0 as usize).and_then(Option::take).is_some() {
            self.ids.release(id);
        }
    }

    /// Decrypts bytes for [`decompose`](Self::decompose), as [`ServerLink::unseal`](crate::ServerLink::unseal) does.
    pub fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        let mut rest = wire;
        scratch.clear();
        if let Stage::Handshake(_) = &self.stage {
            if self.handshake_deadline <= now {
                return rest; // `decompose` reports the timeout.
            }
            match self.advance_handshake(&mut rest) {
                Ok(is_established) => self.pending_established = is_established,
                Err(error) => {
                    self.link_end.receiving.fail(error);
                    return &[];
                }
            }
        }
        let is_failed = matches!(self.stage, Stage::Failed);
        self.link_end.receiving.unseal(now, rest, scratch, is_failed)
    }

    /// Takes the next event off the front of `input`, which [`unseal`](Self::unseal) returned; on an unencrypted link
    /// `input` may also be the received bytes. `None`: `input` is used up. After an error, close the link; all its
    /// connections are lost.
    pub fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        let event = self.next_checked_event(now, input);
        if event.is_err() {
            self.stage = Stage::Failed;
        }
        event
    }

    fn next_checked_event<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        if core::mem::take(&mut self.pending_established) {
            return Ok(Some(OpenerEvent::Established { connections_max: self.ids.max() }));
        }
        let before = input.len();
        self.link_end.receiving.check_opened(input)?;
        let event = self.next_event(now, input)?;
        self.link_end.receiving.consumed_opened(before - input.len());
        if event.is_none() {
            self.link_end.receiving.take_error()?;
        }
        Ok(event)
    }

    fn next_event<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        match &mut self.stage {
            Stage::Failed => return Ok(None),
            Stage::Handshake(_) if self.handshake_deadline <= now => return Err(LinkError::HandshakeTimeout),
            Stage::Handshake(_) => {
                let is_established = self.advance_handshake(input)?;
                let connections_max = self.ids.max();
                return Ok(is_established.then_some(OpenerEvent::Established { connections_max }));
            }
            Stage::Established(_) => {}
        }
        while let Some(piece) = self.link_end.receiving.next(input)? {
            if let Some(event) = self.handle_piece(now, piece)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Consumes input of the handshake. Returns whether the handshake is complete.
    fn advance_handshake(&mut self, input: &mut &[u8]) -> Result<bool, LinkError> {
        let Stage::Handshake(handshake) = &mut self.stage else { return Ok(false) };
        let Some(OpenerOutcome { terms, proof, encrypted }) = handshake.advance(input)? else {
            return Ok(false);
        };
        self.link_end.batching.preamble(&proof);
        if let Some((answer, channel)) = encrypted {
            self.link_end.batching.preamble(&answer);
            self.link_end.receiving.enable_encryption(channel);
        }
        self.ids = IdPool::new(terms.connections_max.min(self.connections_max));
        self.stage = Stage::Established(terms);
        Ok(true)
    }

    fn handle_piece<'a>(
        &mut self,
        now: Time,
        piece: Piece<'a>,
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        match piece {
            Piece::Data { kind: Kind::Reply, id, bytes, last } => {
                self.link_end.batching.answered(now, id);
                if self.is_relayed(id) {
                    self.link_end.count_received(bytes.len(), last);
                    return Ok(Some(OpenerEvent::RelayedData { id, bytes, last }));
                }
                let disposition = self.link_end.handle_data(id, bytes.len(), last);
                Ok(event_of(id, disposition, OpenerEvent::Data { id, bytes }))
            }
            Piece::Data { kind, .. } => Err(LinkError::Direction(kind)),
            Piece::Control { control: Control::Connect(_), .. } => Err(LinkError::Direction(Kind::Connect)),
            Piece::Control { control: Control::Reconnect(_), .. } => {
                Err(LinkError::Direction(Kind::Reconnect))
            }
            Piece::Control { id: Id::LINK, control: Control::Drain { deadline_ms } } => {
                Ok(Some(OpenerEvent::Drain { deadline_ms }))
            }
            Piece::Control { id, control } if self.is_relayed(id) => {
                Ok(Some(OpenerEvent::RelayedControl { id, control }))
            }
            Piece::Control { id, control } => Ok(self.handle_control(id, control)),
        }
    }

    fn handle_control<'a>(&mut self, id: Id, control: Control) -> Option<OpenerEvent<'a>> {
        match control {
            Control::Accepted => self.link_end.get(id).is_some().then_some(OpenerEvent::Accepted { id }),
            Control::Refused(reason) => {
                // The server ignores frames that this end sent before it received the refusal: the id is free at once.
                let is_known = self.link_end.get(id).is_some();
                if is_known {
                    self.link_end.remove(id);
                    self.ids.release(id);
                }
                is_known.then_some(OpenerEvent::Refused { id, reason })
            }
            Control::Credit(limit) => {
                self.link_end.handle_credit(id, limit);
                None
            }
            Control::Finish(offset) => {
                let disposition = self.link_end.handle_finish(id, offset);
                event_of(id, disposition, OpenerEvent::Finished { id })
            }
            Control::Close(reason) => {
                let is_known = self.link_end.get(id).is_some();
                let disposition = self.link_end.handle_close(id);
                if is_known && self.link_end.get(id).is_none() {
                    self.ids.release(id);
                }
                event_of(id, disposition, OpenerEvent::Closed { id, reason })
            }
            Control::Acknowledge(acknowledge) if self.acknowledges_requests() => {
                let is_finished = acknowledge.finish_received;
                match self.link_end.check_acknowledge(id, acknowledge) {
                    Some(through) => Some(OpenerEvent::Acknowledged { id, through, is_finished }),
                    None => self.handle_disallowed(id, control),
                }
            }
            Control::Acknowledge(_) | Control::Resumed(_) => self.handle_disallowed(id, control),
            Control::Connect(_) | Control::Reconnect(_) | Control::Drain { .. } => None,
        }
    }

    fn handle_disallowed<'a>(&mut self, id: Id, control: Control) -> Option<OpenerEvent<'a>> {
        event_of(id, self.link_end.handle_disallowed(id), OpenerEvent::RelayedControl { id, control })
    }

    fn is_relayed(&self, id: Id) -> bool {
        self.relayed.get(id.0 as usize).is_some_and(Option::is_some)
    }

    /// Number of own connections that have not ended.
    pub fn connections(&self) -> usize {
        self.link_end.connections()
    }

    /// Takes a batch if it is due according to the policy. The preamble is due at once.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        if self.is_established() { self.link_end.poll_transmit(now) } else { self.link_end.flush(now) }
    }

    /// Takes all waiting output as one batch.
    pub fn flush(&mut self, now: Time) -> Option<Chunk> {
        self.link_end.flush(now)
    }

    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.link_end.batching.pending()
    }

    /// Bytes of memory that the link holds: waiting output, and an incomplete record.
    pub fn held(&self) -> usize {
        self.link_end.held()
    }

    /// Bytes of memory that hold an incomplete record.
    pub fn held_incomplete(&self) -> usize {
        self.link_end.receiving.held_bytes()
    }

    /// Whether too many bytes are pending. While `true`, [`compose`](Self::compose) takes no bytes, and the
    /// caller must hold back relayed frames.
    pub fn is_full(&self) -> bool {
        self.link_end.batching.is_full()
    }

    /// Gives a sent batch's buffer back for reuse.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.link_end.batching.recycle(chunk);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.stage {
            Stage::Handshake(_) if self.link_end.batching.is_empty() => Some(self.handshake_deadline),
            Stage::Handshake(_) => Some(Time::ZERO),
            Stage::Failed => None,
            _ => [self.link_end.batching.poll_timeout(), self.poll_record_timeout()]
                .into_iter()
                .flatten()
                .min(),
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, while nothing can be sent.
    #[must_use]
    pub fn poll_record_timeout(&self) -> Option<Time> {
        match &self.stage {
            Stage::Handshake(_) => Some(self.handshake_deadline),
            Stage::Failed => None,
            _ => self.link_end.receiving.poll_timeout(),
        }
    }

    /// Call at [`poll_timeout`](Self::poll_timeout). Fails when the server has not authenticated in time, or the rest
    /// of a record did not arrive.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        let outcome = match &self.stage {
            Stage::Handshake(_) if self.handshake_deadline <= now => Err(LinkError::HandshakeTimeout),
            Stage::Established(_) => self.link_end.receiving.handle_timeout(now, true),
            _ => Ok(()),
        };
        if outcome.is_err() {
            self.stage = Stage::Failed;
        }
        outcome
    }

    /// Starts the batch's waiting time unless it has started. Call when the batch cannot be sent now although
    /// it may be due.
    pub fn start_waiting(&mut self, now: Time) {
        self.link_end.batching.start_waiting(now);
    }

    /// Counters since the link began.
    pub fn counters(&self) -> LinkCounters {
        self.link_end.counters()
    }

    /// Distributions of the batches sent.
    pub fn batches(&self) -> Batches {
        self.link_end.batching.statistics()
    }
}

fn event_of<'a>(id: Id, disposition: Disposition, event: OpenerEvent<'a>) -> Option<OpenerEvent<'a>> {
    match disposition {
        Disposition::Deliver | Disposition::Carry => Some(event),
        Disposition::Ignore => None,
        Disposition::Broken(reason) => Some(OpenerEvent::Closed { id, reason }),
    }
}
