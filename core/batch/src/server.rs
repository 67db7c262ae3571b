//! The server's end of a link (PostMan §4.2: *compose*, *decompose*, *get_info*).

mod verbs;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::SocketAddr;

use spillway_auth::{KeyRing, LinkRandomness};
use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::{KeyId, REQUESTS_ACKNOWLEDGED_SINCE, Role, SESSIONS_SINCE};
use spillway_wire::session::{Acknowledge, Reconnect};
use spillway_wire::{Connect, Control, HEADER_BYTES, Id, Kind, Piece, RefuseReason};

use crate::addresses::AddressRules;
use crate::batching::Batching;
use crate::connection::Connection;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::handshake::{AcceptorHandshake, AcceptorProgress};
use crate::limits::{CLIENT_SPARE_BYTES_MAX, CONTROL_BYTES_MAX, Limits, LinkCounters};
use crate::link_end::{Disposition, LinkEnd};
use crate::overhead::Allowance;
use crate::policy::{Fixed, Policy};
use crate::records::{Encryption, Scratch};
use crate::run::RunOutcome;

/// Configuration of a server's link port.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Accepted keys of helpers and clients.
    pub ring: KeyRing,
    /// Client addresses that links may carry.
    pub rules: AddressRules,
    /// Bounds.
    pub limits: Limits,
    /// Whether links are encrypted.
    pub encryption: Encryption,
}

/// The server's end of one link.
///
/// Pass received bytes through [`unseal`](Self::unseal) to [`decompose`](Self::decompose), answer with
/// [`compose`](Self::compose), and send what [`flush`](Self::flush) or [`poll_transmit`](Self::poll_transmit) returns,
/// even after an error, because the output may state the reason to the peer. Read the socket only while
/// [`may_read`](Self::may_read) returns `true`.
#[derive(Debug)]
pub struct ServerLink {
    config: Arc<ServerConfig>,
    peer: SocketAddr,
    local: SocketAddr,
    stage: Stage,
    pub(crate) link_end: LinkEnd,
    /// The helper has announced that it drains.
    is_draining: bool,
    /// The helper has requested that this connection's replies are kept. The request applies only if the next
    /// opening message is this connection's *connect*.
    keep_next: Option<Id>,
    /// [`unseal`](Self::unseal) completed the handshake; [`decompose`](Self::decompose) has yet to return the event.
    pending_established: Option<(Role, KeyId)>,
    /// `None` on a helper's link, which carries many clients' control messages: the helper limits each client.
    pub(crate) allowance: Option<Allowance>,
}

#[derive(Debug)]
enum Stage {
    Handshake { handshake: Box<AcceptorHandshake>, deadline: Time },
    Established { role: Role, version: u8 },
    Failed,
}

impl ServerLink {
    /// A link that was just accepted.
    pub fn new(
        config: Arc<ServerConfig>,
        now: Time,
        peer: SocketAddr,
        local: SocketAddr,
        fresh: LinkRandomness,
    ) -> ServerLink {
        ServerLink::with_policy(config, now, peer, local, fresh, Box::new(Fixed::immediate()))
    }

    /// As [`new`](Self::new), but with a batch policy for replies, which otherwise leave at once.
    pub fn with_policy(
        config: Arc<ServerConfig>,
        now: Time,
        peer: SocketAddr,
        local: SocketAddr,
        fresh: LinkRandomness,
        policy: Box<dyn Policy>,
    ) -> ServerLink {
        let limits = config.limits;
        let handshake =
            AcceptorHandshake::new(config.encryption, fresh, limits.window_bytes, limits.connections_max);
        ServerLink {
            stage: Stage::Handshake {
                handshake: Box::new(handshake),
                deadline: now + limits.handshake_timeout,
            },
            link_end: LinkEnd::new(Batching::new(Kind::Reply, policy, limits.pending_bytes_max)),
            is_draining: false,
            keep_next: None,
            pending_established: None,
            allowance: None,
            config,
            peer,
            local,
        }
    }

    /// Decrypts received bytes for [`decompose`](Self::decompose), which must use up the result before the next call.
    /// An encrypted link's records are decrypted into `scratch`; for other links the result is the part of `wire` after
    /// the handshake. `decompose` reports errors in the bytes after the events that precede them.
    pub fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        let mut rest = wire;
        scratch.clear();
        while let Stage::Handshake { deadline, .. } = &self.stage {
            if *deadline <= now {
                return rest; // `decompose` reports the timeout.
            }
            match self.advance_handshake(&mut rest) {
                Ok(Some(established)) => self.pending_established = Some(established),
                Ok(None) if rest.is_empty() => return rest,
                Ok(None) => {}
                Err(error) => {
                    self.link_end.receiving.fail(error);
                    return &[];
                }
            }
        }
        let is_failed = matches!(self.stage, Stage::Failed);
        self.link_end.receiving.unseal(now, rest, scratch, is_failed)
    }

    /// Whether batches are encrypted, once the peer has authenticated.
    pub fn is_encrypted(&self) -> bool {
        self.link_end.receiving.is_encrypted()
    }

    /// Bytes of the handshake that the peer must send before this end can answer; 0 once the peer has authenticated.
    /// Later bytes may be encrypted: do not pass them to [`decompose`](Self::decompose) without
    /// [`unseal`](Self::unseal).
    pub fn handshake_bytes_needed(&self) -> usize {
        match &self.stage {
            Stage::Handshake { handshake, .. } => handshake.bytes_needed(),
            _ => 0,
        }
    }

    /// Takes the next event off the front of `input`, which [`unseal`](Self::unseal) returned; on an unencrypted link
    /// `input` may also be the received bytes. `None`: `input` is used up. After an error, send what
    /// [`flush`](Self::flush) returns and close the link; all its connections are lost.
    pub fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        self.next_event_or_fail(now, input, None)
    }

    #[inline(always)]
    pub(crate) fn next_event_or_fail<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
        run: Option<&mut &'a [u8]>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        let event = self.next_checked_event(now, input, run);
        if event.is_err() {
            self.stage = Stage::Failed;
        }
        event
    }

    #[inline]
    fn next_checked_event<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
        mut run: Option<&mut &'a [u8]>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        if let Some((role, key)) = self.pending_established.take() {
            return Ok(Some(ServerEvent::Established { role, key }));
        }
        let before = input.len();
        self.link_end.receiving.check_opened(input)?;
        let event = self.next_event(now, input, run.as_deref_mut())?;
        self.link_end.receiving.consumed_opened(before - input.len());
        let is_input_used_up = event.is_none() && run.is_none_or(|run| run.is_empty());
        if is_input_used_up {
            self.allowance.iter_mut().for_each(|allowance| allowance.decide_pause(now));
            self.link_end.receiving.take_error()?;
        }
        Ok(event)
    }

    /// If `run` is given, data frames of requests are stored there unchanged instead of being returned as
    /// events, and the result is then `None`.
    fn next_event<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
        mut run: Option<&mut &'a [u8]>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        loop {
            let (role, version) = match &self.stage {
                Stage::Established { role, version } => (*role, *version),
                Stage::Failed => return Ok(None),
                Stage::Handshake { deadline, .. } if *deadline <= now => {
                    return Err(LinkError::HandshakeTimeout);
                }
                Stage::Handshake { .. } => match self.advance_handshake(input)? {
                    Some((role, key)) => return Ok(Some(ServerEvent::Established { role, key })),
                    None if input.is_empty() => return Ok(None),
                    None => continue,
                },
            };
            if let Some(run) = run.as_deref_mut()
                && self.link_end.receiving.is_between_frames()
            {
                let before = input.len();
                let taken = self.link_end.take_run(input);
                self.charge_run(now, before - input.len(), &taken);
                match taken {
                    RunOutcome::Run(bytes) => {
                        *run = bytes;
                        return Ok(None);
                    }
                    RunOutcome::Incomplete => {
                        self.link_end.send_acknowledges();
                        return Ok(None);
                    }
                    RunOutcome::Disassemble => {}
                }
            }
            let before = input.len();
            let piece = self.link_end.receiving.next(input)?;
            let taken = before - input.len();
            let Some(piece) = piece else {
                self.charge(now, taken, None);
                self.link_end.send_acknowledges();
                return Ok(None);
            };
            if version < SESSIONS_SINCE
                && matches!(&piece, Piece::Control { control, .. } if control.is_of_sessions())
            {
                return Err(LinkError::Sessions);
            }
            let event = self.handle_piece(role, version, piece)?;
            self.charge(now, taken, event.as_ref());
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Charges `taken` bytes of input, which led to `event`, to the peer's allowance. Data raises the
    /// allowance instead.
    #[inline]
    fn charge(&mut self, now: Time, taken: usize, event: Option<&ServerEvent<'_>>) {
        let Some(allowance) = &mut self.allowance else { return };
        match event {
            Some(ServerEvent::Data { bytes, .. } | ServerEvent::Carried { bytes, .. }) => {
                allowance.earn(bytes.len());
                // The other bytes are empty frames before this one.
                allowance.spend(now, taken.saturating_sub(HEADER_BYTES + bytes.len()));
            }
            _ => allowance.spend(now, taken),
        }
    }

    fn advance_handshake(&mut self, input: &mut &[u8]) -> Result<Option<(Role, KeyId)>, LinkError> {
        let Stage::Handshake { handshake, .. } = &mut self.stage else { return Ok(None) };
        match handshake.advance(&self.config.ring, input) {
            Ok(AcceptorProgress::NeedsInput) => Ok(None),
            Ok(AcceptorProgress::Send(welcome, offer)) => {
                self.link_end.batching.preamble(&welcome);
                if let Some(offer) = offer {
                    self.link_end.batching.preamble(&offer);
                }
                Ok(None)
            }
            Ok(AcceptorProgress::Done { role, key, version, channel }) => {
                self.stage = Stage::Established { role, version };
                if role == Role::Client {
                    self.link_end.batching.set_spare_bytes_max(CLIENT_SPARE_BYTES_MAX);
                    self.allowance = Some(Allowance::default());
                }
                if let Some(channel) = channel {
                    self.link_end.receiving.enable_encryption(channel);
                }
                Ok(Some((role, key)))
            }
            Err(rejected) => {
                if let Some(welcome) = rejected.reply {
                    self.link_end.batching.preamble(&welcome);
                }
                Err(rejected.error)
            }
        }
    }

    fn handle_piece<'a>(
        &mut self,
        role: Role,
        version: u8,
        piece: Piece<'a>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        let (id, disposition, event) = match piece {
            Piece::Data { kind: Kind::Request, id, bytes, last } => {
                match self.link_end.handle_data(id, bytes.len(), last) {
                    Disposition::Carry => return Ok(Some(ServerEvent::Carried { id, bytes })),
                    disposition => (id, disposition, ServerEvent::Data { id, bytes }),
                }
            }
            Piece::Data { kind, .. } => return Err(LinkError::Direction(kind)),
            Piece::Control { id, control } => match control {
                Control::Connect(connect) => {
                    return self.handle_connect((role, version), id, connect).map(Some);
                }
                Control::Reconnect(Reconnect { client, opening, .. }) => {
                    let connection = Connection::carrier();
                    let event = ServerEvent::Session { id, kind: Kind::Reconnect, client, opening };
                    return self.admit(role, id, client, connection, event).map(Some);
                }
                Control::Drain { deadline_ms } => return Ok(self.handle_drain(role, id, deadline_ms)),
                control if self.link_end.is_carrier(id) => {
                    if matches!(control, Control::Close(_)) {
                        self.link_end.handle_close(id);
                    }
                    // Returned even after our own *close*, because the session waits for the peer's *close*.
                    return Ok(Some(ServerEvent::CarriedControl { id, control }));
                }
                Control::Acknowledge(Acknowledge { received: 0, .. }) if self.link_end.get(id).is_none() => {
                    self.keep_next = Some(id);
                    return Ok(None);
                }
                Control::Acknowledge(acknowledge) => {
                    let bytes_max = self.config.limits.kept_bytes_max;
                    let disposition = self.link_end.handle_acknowledge(id, acknowledge.received, bytes_max);
                    (id, disposition, ServerEvent::CarriedControl { id, control })
                }
                Control::Credit(limit) => {
                    self.link_end.handle_credit(id, limit);
                    return Ok(None);
                }
                Control::Finish(offset) => {
                    (id, self.link_end.handle_finish(id, offset), ServerEvent::Finished { id })
                }
                Control::Close(reason) => {
                    (id, self.link_end.handle_close(id), ServerEvent::Closed { id, reason })
                }
                Control::Accepted | Control::Refused(_) | Control::Resumed(_) => {
                    return Err(LinkError::Direction(control.kind()));
                }
            },
        };
        if matches!(disposition, Disposition::Deliver)
            && matches!(event, ServerEvent::Data { .. } | ServerEvent::Finished { .. })
        {
            self.link_end.acknowledge_later(id);
        }
        Ok(match disposition {
            Disposition::Deliver | Disposition::Carry => Some(event),
            Disposition::Ignore => None,
            Disposition::Broken(reason) => Some(ServerEvent::Closed { id, reason }),
        })
    }

    /// A helper announces once, for its whole link, that it drains. Other *drain* messages are ignored.
    fn handle_drain<'a>(&mut self, role: Role, id: Id, deadline_ms: u32) -> Option<ServerEvent<'a>> {
        if role != Role::Helper || id != Id::LINK || core::mem::replace(&mut self.is_draining, true) {
            self.link_end.count_unknown_frame();
            return None;
        }
        Some(ServerEvent::Drain { deadline_ms })
    }

    fn handle_connect<'a>(
        &mut self,
        (role, version): (Role, u8),
        id: Id,
        connect: Connect,
    ) -> Result<ServerEvent<'a>, LinkError> {
        let Connect { client, server, credit, session } = connect;
        let (connection, event) = match session {
            None => {
                let limits = self.config.limits;
                let mut connection = Connection::new(credit, limits.window_bytes);
                if self.keep_next == Some(id) {
                    if limits.kept_bytes_max > 0 {
                        connection.outgoing.keep(limits.kept_bytes_max);
                    }
                    if version >= REQUESTS_ACKNOWLEDGED_SINCE {
                        connection.incoming.enable_acknowledgements();
                    }
                }
                (connection, ServerEvent::Connect { id, client, server })
            }
            Some(opening) => {
                let event = ServerEvent::Session { id, kind: Kind::Connect, client, opening };
                (Connection::carrier(), event)
            }
        };
        self.admit(role, id, client, connection, event)
    }

    fn admit<'a>(
        &mut self,
        role: Role,
        id: Id,
        client: SocketAddr,
        connection: Connection,
        event: ServerEvent<'a>,
    ) -> Result<ServerEvent<'a>, LinkError> {
        self.keep_next = None;
        let connections_max = self.config.limits.connections_max_of(role);
        if id == Id::LINK || id.0 > connections_max || self.link_end.get(id).is_some() {
            return Err(LinkError::Id(id));
        }
        if let Err(why) = self.config.rules.check(role, self.peer, self.local, client) {
            self.link_end.batching.control(id, Control::Refused(RefuseReason::Forbidden));
            return Ok(ServerEvent::Forbidden { client, why });
        }
        self.link_end.insert(id, connection.with_client(client));
        Ok(event)
    }

    /// The peer's role, once it has authenticated.
    pub fn role(&self) -> Option<Role> {
        match self.stage {
            Stage::Established { role, .. } => Some(role),
            _ => None,
        }
    }

    /// Whether the peer has authenticated and the link has not failed.
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

    /// All connections that have not ended.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.link_end.ids()
    }

    /// Number of connections that have not ended.
    pub fn connections(&self) -> usize {
        self.link_end.connections()
    }

    /// Takes a batch if it is due according to the policy.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        self.link_end.poll_transmit(now)
    }

    /// Takes all waiting output as one batch.
    pub fn flush(&mut self, now: Time) -> Option<Chunk> {
        self.link_end.flush(now)
    }

    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.link_end.batching.pending()
    }

    /// Whether to read the peer's bytes; otherwise leave them in the socket. `false` while more than
    /// [`CONTROL_BYTES_MAX`] bytes of control messages wait to be sent; and, until
    /// [`poll_read_timeout`](Self::poll_read_timeout), after a library client has exceeded its allowance for
    /// control messages and empty frames by more than a burst. Call again after each input, batch and
    /// timeout.
    pub fn may_read(&self) -> bool {
        self.paused_until().is_none() && self.link_end.batching.control_bytes() <= CONTROL_BYTES_MAX
    }

    fn paused_until(&self) -> Option<Time> {
        self.allowance.as_ref()?.paused_until()
    }

    /// Gives a sent batch's buffer back for reuse.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.link_end.batching.recycle(chunk);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let stage_timeout = match &self.stage {
            Stage::Failed => return None,
            Stage::Handshake { deadline, .. } => Some(*deadline),
            _ => self.poll_read_timeout(),
        };
        [self.link_end.batching.poll_timeout(), stage_timeout].into_iter().flatten().min()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) for an incomplete record or a pause in reading.
    #[must_use]
    pub fn poll_read_timeout(&self) -> Option<Time> {
        if matches!(self.stage, Stage::Failed) {
            return None;
        }
        let record = self.link_end.receiving.poll_timeout();
        [record, self.paused_until()].into_iter().flatten().min()
    }

    /// Whether [`poll_read_timeout`](Self::poll_read_timeout) returns a time.
    pub fn has_read_timeout(&self) -> bool {
        self.poll_read_timeout().is_some()
    }

    /// Call at [`poll_timeout`](Self::poll_timeout); may end a pause in [reading](Self::may_read). Fails when the peer
    /// has not authenticated in time, or the rest of a record did not arrive.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        if let Some(allowance) = &mut self.allowance {
            allowance.handle_timeout(now);
        }
        let may_read = self.may_read();
        let outcome = match &self.stage {
            Stage::Handshake { deadline, .. } if *deadline <= now => Err(LinkError::HandshakeTimeout),
            Stage::Established { .. } => self.link_end.receiving.handle_timeout(now, may_read),
            _ => Ok(()),
        };
        if outcome.is_err() {
            self.stage = Stage::Failed;
        }
        outcome
    }

    /// Counters since the link began.
    pub fn counters(&self) -> LinkCounters {
        self.link_end.counters()
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}
