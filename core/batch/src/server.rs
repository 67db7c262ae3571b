//! The server's end of a link (PostMan §4.2: *compose*, *decompose*, *get_info*). This file takes received bytes apart
//! and has the timers.
//!
//! - `config`: what a link port accepts
//! - `stage`: the handshake, and the authenticated peer
//! - `frame_handler`: which connections may begin, and the event of each frame
//! - `peer_allowance`: the limit of bytes that are not data
//! - `verbs`: the application's operations on one connection

mod config;
mod frame_handler;
mod peer_allowance;
mod stage;
mod verbs;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::SocketAddr;

use spillway_auth::LinkRandomness;
use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::{KeyId, Role};
use spillway_wire::{Id, Kind};

use crate::batching::Batching;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::limits::{CLIENT_SPARE_BYTES_MAX, CONTROL_BYTES_MAX, LinkCounters};
use crate::link_end::LinkEnd;
use crate::policy::{Fixed, Policy};
use crate::records::Scratch;
use crate::run::RunOutcome;
use frame_handler::FrameHandler;
use peer_allowance::PeerAllowance;
use stage::Stage;

pub use config::ServerConfig;

/// The server's end of one link.
///
/// Pass received bytes through [`unseal`](Self::unseal) to [`decompose`](Self::decompose), answer with
/// [`compose`](Self::compose), and send what [`flush`](Self::flush) or [`poll_transmit`](Self::poll_transmit) returns,
/// even after an error, because the output may state the reason to the peer. Read the socket only while
/// [`may_read`](Self::may_read) returns `true`.
#[derive(Debug)]
pub struct ServerLink {
    stage: Stage,
    frame_handler: FrameHandler,
    pub(crate) link_end: LinkEnd,
    /// [`unseal`](Self::unseal) completed the handshake; [`decompose`](Self::decompose) has yet to return the event.
    pending_established: Option<(Role, KeyId)>,
    allowance: PeerAllowance,
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
        let limits = &config.limits;
        ServerLink {
            stage: Stage::new(config.encryption, limits, now, fresh),
            link_end: LinkEnd::new(Batching::new(Kind::Reply, policy, limits.pending_bytes_max)),
            frame_handler: FrameHandler::new(config, peer, local),
            pending_established: None,
            allowance: PeerAllowance::default(),
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
        self.stage.bytes_needed()
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
            self.allowance.decide_pause(now);
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
            let peer = match &self.stage {
                Stage::Established(peer) => *peer,
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
                self.allowance.charge_run(now, before - input.len(), &taken);
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
                self.allowance.charge(now, taken, None);
                self.link_end.send_acknowledges();
                return Ok(None);
            };
            let event = self.frame_handler.handle(&mut self.link_end, peer, piece)?;
            self.allowance.charge(now, taken, event.as_ref());
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn advance_handshake(&mut self, input: &mut &[u8]) -> Result<Option<(Role, KeyId)>, LinkError> {
        let established = self.stage.advance(self.frame_handler.ring(), input, &mut self.link_end)?;
        if let Some((Role::Client, _)) = established {
            self.link_end.batching.set_spare_bytes_max(CLIENT_SPARE_BYTES_MAX);
            self.allowance.begin();
        }
        Ok(established)
    }

    /// The peer's role, once it has authenticated.
    pub fn role(&self) -> Option<Role> {
        self.stage.role()
    }

    /// Whether the peer has authenticated and the link has not failed.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established(_))
    }

    /// Whether the peer has named an accepted key. Its proof may still be missing.
    pub fn has_named_key(&self) -> bool {
        self.stage.has_named_key()
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
        self.allowance.paused_until().is_none() && self.link_end.batching.control_bytes() <= CONTROL_BYTES_MAX
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
        [record, self.allowance.paused_until()].into_iter().flatten().min()
    }

    /// Whether [`poll_read_timeout`](Self::poll_read_timeout) returns a time.
    pub fn has_read_timeout(&self) -> bool {
        self.poll_read_timeout().is_some()
    }

    /// Call at [`poll_timeout`](Self::poll_timeout); may end a pause in [reading](Self::may_read). Fails when the peer
    /// has not authenticated in time, or the rest of a record did not arrive.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.allowance.handle_timeout(now);
        let may_read = self.may_read();
        let outcome = match &self.stage {
            Stage::Handshake { deadline, .. } if *deadline <= now => Err(LinkError::HandshakeTimeout),
            Stage::Established(_) => self.link_end.receiving.handle_timeout(now, may_read),
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
        self.frame_handler.peer()
    }
}
