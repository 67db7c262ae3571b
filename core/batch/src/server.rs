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
use crate::ends::{Disposition, Ends};
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::handshake::{Accepted, Accepting};
use crate::limits::{CLIENT_SPARE_BYTES_MAX, CONTROL_BYTES_MAX, Limits, LinkCounters};
use crate::overhead::Allowance;
use crate::policy::{Fixed, Policy};
use crate::records::{Encryption, Scratch};
use crate::run::RunOutcome;

/// Configuration of a server's link port.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Keys of helpers and clients.
    pub ring: KeyRing,
    /// Which client addresses may be carried.
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
/// even after an error: it may inform the peer of the reason. Read the socket only while [`may_read`](Self::may_read)
/// returns `true`.
#[derive(Debug)]
pub struct ServerLink {
    config: Arc<ServerConfig>,
    peer: SocketAddr,
    local: SocketAddr,
    stage: Stage,
    pub(crate) ends: Ends,
    /// The helper has announced that it drains.
    is_drained: bool,
    /// Keep the replies of this connection if it is the next one to be opened; cleared by any *connect*.
    keep_next: Option<Id>,
    /// [`unseal`](Self::unseal) completed the handshake; [`decompose`](Self::decompose) has yet to return the event.
    found_established: Option<(Role, KeyId)>,
    /// `None` on a helper's link, which carries many clients' control messages: the helper has their allowances.
    pub(crate) allowance: Option<Allowance>,
}

#[derive(Debug)]
enum Stage {
    Accepting { handshake: Box<Accepting>, deadline: Time },
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

    /// As [`new`](Self::new), with a batch policy for replies; without one they leave at once.
    pub fn with_policy(
        config: Arc<ServerConfig>,
        now: Time,
        peer: SocketAddr,
        local: SocketAddr,
        fresh: LinkRandomness,
        policy: Box<dyn Policy>,
    ) -> ServerLink {
        let limits = config.limits;
        let handshake = Accepting::new(config.encryption, fresh, limits.window_bytes, limits.connections_max);
        ServerLink {
            stage: Stage::Accepting {
                handshake: Box::new(handshake),
                deadline: now + limits.handshake_timeout,
            },
            ends: Ends::new(Batching::new(Kind::Reply, policy, limits.pending_bytes_max)),
            is_drained: false,
            keep_next: None,
            found_established: None,
            allowance: None,
            config,
            peer,
            local,
        }
    }

    /// Opens received bytes for [`decompose`](Self::decompose), which must use up the result before the next call. An
    /// encrypted link's records are opened into `scratch`; other links get the same bytes back. `decompose` reports
    /// errors of the bytes after the events that came before them.
    pub fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        let mut rest = wire;
        scratch.clear();
        while let Stage::Accepting { deadline, .. } = &self.stage {
            if *deadline <= now {
                return rest; // `decompose` reports the timeout.
            }
            match self.handshake(&mut rest) {
                Ok(Some(established)) => self.found_established = Some(established),
                Ok(None) if rest.is_empty() => return rest,
                Ok(None) => {}
                Err(error) => {
                    self.ends.receiving.fail(error);
                    return &[];
                }
            }
        }
        let is_failed = matches!(self.stage, Stage::Failed);
        self.ends.receiving.unseal(now, rest, scratch, is_failed)
    }

    /// Whether batches are encrypted, once the peer has authenticated.
    pub fn is_encrypted(&self) -> bool {
        self.ends.receiving.is_encrypted()
    }

    /// Bytes that the peer must send before this end can answer; pass more than that through [`unseal`](Self::unseal).
    /// 0 once the peer has authenticated.
    pub fn handshake_bytes_needed(&self) -> usize {
        match &self.stage {
            Stage::Accepting { handshake, .. } => handshake.wanted(),
            _ => 0,
        }
    }

    /// Takes the next event off the front of `input`, which [`unseal`](Self::unseal) returned; a link that is not
    /// encrypted also takes received bytes. `None`: `input` is used up. After an error, send what
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
        let event = self.next_opened(now, input, run);
        if event.is_err() {
            self.stage = Stage::Failed;
        }
        event
    }

    #[inline]
    fn next_opened<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
        mut run: Option<&mut &'a [u8]>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        if let Some((role, key)) = self.found_established.take() {
            return Ok(Some(ServerEvent::Established { role, key }));
        }
        let before = input.len();
        self.ends.receiving.check_opened(input)?;
        let event = self.next_event(now, input, run.as_deref_mut())?;
        self.ends.receiving.took(before - input.len());
        let is_all_told = event.is_none() && run.is_none_or(|run| run.is_empty());
        if is_all_told {
            self.allowance.iter_mut().for_each(|allowance| allowance.end_of_input(now));
            self.ends.receiving.end()?;
        }
        Ok(event)
    }

    /// `run`: where to put requests unchanged; if it is filled, the result is `None`.
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
                Stage::Accepting { deadline, .. } if *deadline <= now => {
                    return Err(LinkError::HandshakeTimeout);
                }
                Stage::Accepting { .. } => match self.handshake(input)? {
                    Some((role, key)) => return Ok(Some(ServerEvent::Established { role, key })),
                    None if input.is_empty() => return Ok(None),
                    None => continue,
                },
            };
            if let Some(run) = run.as_deref_mut()
                && self.ends.receiving.is_between_frames()
            {
                let before = input.len();
                let taken = self.ends.incoming_run(input);
                self.account_run(now, before - input.len(), &taken);
                match taken {
                    RunOutcome::Run(bytes) => {
                        *run = bytes;
                        return Ok(None);
                    }
                    RunOutcome::Incomplete => {
                        self.ends.send_acknowledges();
                        return Ok(None);
                    }
                    RunOutcome::Disassemble => {}
                }
            }
            let before = input.len();
            let piece = self.ends.receiving.next(input)?;
            let taken = before - input.len();
            let Some(piece) = piece else {
                self.account(now, taken, None);
                self.ends.send_acknowledges();
                return Ok(None);
            };
            if version < SESSIONS_SINCE
                && matches!(&piece, Piece::Control { control, .. } if control.is_of_sessions())
            {
                return Err(LinkError::Sessions);
            }
            let event = self.piece(role, version, piece)?;
            self.account(now, taken, event.as_ref());
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Charges `taken` bytes of input, which led to `event`, to the peer's allowance.
    #[inline]
    fn account(&mut self, now: Time, taken: usize, event: Option<&ServerEvent<'_>>) {
        let Some(allowance) = &mut self.allowance else { return };
        match event {
            Some(ServerEvent::Data { bytes, .. } | ServerEvent::Carried { bytes, .. }) => {
                allowance.carried(bytes.len());
                // Empty frames before this one.
                allowance.spend(now, taken.saturating_sub(HEADER_BYTES + bytes.len()));
            }
            _ => allowance.spend(now, taken),
        }
    }

    fn handshake(&mut self, input: &mut &[u8]) -> Result<Option<(Role, KeyId)>, LinkError> {
        let Stage::Accepting { handshake, .. } = &mut self.stage else { return Ok(None) };
        match handshake.advance(&self.config.ring, input) {
            Ok(Accepted::NeedsInput) => Ok(None),
            Ok(Accepted::Send(welcome, offer)) => {
                self.ends.batching.preamble(&welcome);
                if let Some(offer) = offer {
                    self.ends.batching.preamble(&offer);
                }
                Ok(None)
            }
            Ok(Accepted::Done { role, key, version, channel }) => {
                self.stage = Stage::Established { role, version };
                if role == Role::Client {
                    self.ends.batching.keep_at_most(CLIENT_SPARE_BYTES_MAX);
                    self.allowance = Some(Allowance::default());
                }
                if let Some(channel) = channel {
                    self.ends.receiving.encrypt(channel);
                }
                Ok(Some((role, key)))
            }
            Err(rejected) => {
                if let Some(welcome) = rejected.reply {
                    self.ends.batching.preamble(&welcome);
                }
                Err(rejected.error)
            }
        }
    }

    fn piece<'a>(
        &mut self,
        role: Role,
        version: u8,
        piece: Piece<'a>,
    ) -> Result<Option<ServerEvent<'a>>, LinkError> {
        let (id, disposition, event) = match piece {
            Piece::Data { kind: Kind::Request, id, bytes, last } => {
                match self.ends.incoming_data(id, bytes.len(), last) {
                    Disposition::Carry => return Ok(Some(ServerEvent::Carried { id, bytes })),
                    disposition => (id, disposition, ServerEvent::Data { id, bytes }),
                }
            }
            Piece::Data { kind, .. } => return Err(LinkError::Direction(kind)),
            Piece::Control { id, control } => match control {
                Control::Connect(connect) => return self.connect((role, version), id, connect).map(Some),
                Control::Reconnect(Reconnect { client, opening, .. }) => {
                    let connection = Connection::carrier();
                    let event = ServerEvent::Session { id, kind: Kind::Reconnect, client, opening };
                    return self.admit(role, id, client, connection, event).map(Some);
                }
                Control::Drain { deadline_ms } => return Ok(self.drained(role, id, deadline_ms)),
                control if self.ends.is_carrier(id) => {
                    if matches!(control, Control::Close(_)) {
                        self.ends.incoming_close(id);
                    }
                    // Also after our own *close*: the session waits for the peer's answer.
                    return Ok(Some(ServerEvent::CarriedControl { id, control }));
                }
                Control::Acknowledge(Acknowledge { received: 0, .. }) if self.ends.get(id).is_none() => {
                    self.keep_next = Some(id);
                    return Ok(None);
                }
                Control::Acknowledge(acknowledge) => {
                    let bytes_max = self.config.limits.kept_bytes_max;
                    let disposition = self.ends.incoming_acknowledge(id, acknowledge.received, bytes_max);
                    (id, disposition, ServerEvent::CarriedControl { id, control })
                }
                Control::Credit(limit) => {
                    self.ends.incoming_credit(id, limit);
                    return Ok(None);
                }
                Control::Finish(offset) => {
                    (id, self.ends.incoming_finish(id, offset), ServerEvent::Finished { id })
                }
                Control::Close(reason) => {
                    (id, self.ends.incoming_close(id), ServerEvent::Closed { id, reason })
                }
                Control::Accepted | Control::Refused(_) | Control::Resumed(_) => {
                    return Err(LinkError::Direction(control.kind()));
                }
            },
        };
        if matches!(disposition, Disposition::Deliver)
            && matches!(event, ServerEvent::Data { .. } | ServerEvent::Finished { .. })
        {
            self.ends.acknowledge_later(id);
        }
        Ok(match disposition {
            Disposition::Deliver | Disposition::Carry => Some(event),
            Disposition::Ignore => None,
            Disposition::Broken(reason) => Some(ServerEvent::Closed { id, reason }),
        })
    }

    /// A helper announces once, for its whole link, that it drains. Clients may not.
    fn drained<'a>(&mut self, role: Role, id: Id, deadline_ms: u32) -> Option<ServerEvent<'a>> {
        if role != Role::Helper || id != Id::LINK || core::mem::replace(&mut self.is_drained, true) {
            self.ends.stray();
            return None;
        }
        Some(ServerEvent::Drain { deadline_ms })
    }

    fn connect<'a>(
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
        if id == Id::LINK || id.0 > connections_max || self.ends.get(id).is_some() {
            return Err(LinkError::Id(id));
        }
        if let Err(why) = self.config.rules.check(role, self.peer, self.local, client) {
            self.ends.batching.control(id, Control::Refused(RefuseReason::Forbidden));
            return Ok(ServerEvent::Forbidden { client, why });
        }
        self.ends.insert(id, connection.of(client));
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
            Stage::Accepting { handshake, .. } => handshake.has_named_key(),
            Stage::Established { .. } => true,
            Stage::Failed => false,
        }
    }

    /// All connections that have not ended.
    pub fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.ends.ids()
    }

    /// Number of connections that have not ended.
    pub fn connections(&self) -> usize {
        self.ends.connections()
    }

    /// Takes a batch if the policy says that one is due.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        self.ends.poll_transmit(now)
    }

    /// Takes all that waits as one batch.
    pub fn flush(&mut self, now: Time) -> Option<Chunk> {
        self.ends.flush(now)
    }

    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.ends.batching.pending()
    }

    /// Whether to read the peer's bytes; otherwise leave them in the socket. Reading stops while more than
    /// [`CONTROL_BYTES_MAX`] bytes of control messages wait to be sent, and for a time after a client has sent far more
    /// bytes without data than its allowance, until [`poll_read_timeout`](Self::poll_read_timeout). Call again after
    /// each input, batch and timeout.
    pub fn may_read(&self) -> bool {
        self.paused_until().is_none() && self.ends.batching.control_bytes() <= CONTROL_BYTES_MAX
    }

    fn paused_until(&self) -> Option<Time> {
        self.allowance.as_ref()?.paused_until()
    }

    /// Gives a sent batch's buffer back for reuse.
    pub fn recycle(&mut self, chunk: Chunk) {
        self.ends.batching.recycle(chunk);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_transmit`](Self::poll_transmit) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let waited_for = match &self.stage {
            Stage::Failed => return None,
            Stage::Accepting { deadline, .. } => Some(*deadline),
            _ => self.poll_read_timeout(),
        };
        [self.ends.batching.poll_timeout(), waited_for].into_iter().flatten().min()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) for an incomplete record or a pause in reading.
    #[must_use]
    pub fn poll_read_timeout(&self) -> Option<Time> {
        if matches!(self.stage, Stage::Failed) {
            return None;
        }
        let record = self.ends.receiving.poll_timeout();
        [record, self.paused_until()].into_iter().flatten().min()
    }

    /// Whether [`poll_read_timeout`](Self::poll_read_timeout) has a time.
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
            Stage::Accepting { deadline, .. } if *deadline <= now => Err(LinkError::HandshakeTimeout),
            Stage::Established { .. } => self.ends.receiving.handle_timeout(now, may_read),
            _ => Ok(()),
        };
        if outcome.is_err() {
            self.stage = Stage::Failed;
        }
        outcome
    }

    /// Counters since the link began.
    pub fn counters(&self) -> LinkCounters {
        self.ends.counters()
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}
