//! A link port and its links.

mod carriers;
mod far;
pub(crate) mod forwarding;
mod release;
mod relief;
mod sessions;
mod turn;
mod verbs;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use spillway_auth::KeyRing;
use spillway_batch::{Encryption, Scratch, ServerConfig, Unauthenticated};
use spillway_session::{Placement, Port, SessionHandle};
use spillway_transport::Time;

use self::carriers::Carriers;
use self::far::Member;
use self::release::Releasing;
use crate::event::{Client, LinkId};
use crate::link::Link;
use crate::listener::Listener;
use crate::settings::{BindError, Settings};
use crate::table::Table;
use crate::threads::CarrierName;

/// Links accepted in one turn, so that those there are already do not wait for a crowd.
const ACCEPTED_PER_TURN: usize = 64;

/// A link port and the links that were opened to it. See the crate's documentation for the order of calls.
#[derive(Debug)]
pub struct Links {
    /// What the core's time counts from.
    epoch: Instant,
    config: Arc<ServerConfig>,
    listener: Listener,
    address: SocketAddr,
    table: Table<Link>,
    /// When links must have authenticated, in order. Links that have authenticated or ended meanwhile are skipped.
    handshakes: VecDeque<(Instant, LinkId)>,
    unauthenticated: Unauthenticated<LinkId>,
    /// Links on which the rest of a record is awaited, or that are not read for a time; and some for which neither is so any
    /// more.
    read_timeouts: Vec<LinkId>,
    /// Links that have something to send, or whose watch has changed.
    touched: Vec<LinkId>,
    /// Links that are gone and whose connections have to be told.
    lost: VecDeque<LinkId>,
    /// Connections that have room again.
    room: VecDeque<Client>,
    sessions: Port<CarrierName>,
    /// What carries them: connections of this thread's links, and perhaps of others'.
    carriers: Carriers,
    /// Sessions whose clients never returned, which the application has yet to be told.
    ended: VecDeque<SessionHandle>,
    /// Where its sessions are to be.
    placement: Placement,
    /// When they are sent back, if it is this end that decides.
    releasing: Option<Releasing>,
    /// See [`Settings::links_max`].
    links_max: usize,
    /// The port is one of several that do not know of each other, see [`Settings::reuse_port`].
    shares_port: bool,
    /// The port is one of several threads', see [`Settings::threads`].
    member: Option<Member>,
    /// Of each session: bytes that a client may send before it is answered.
    window_bytes: u32,
    /// The time that was last told.
    latest: Time,
    /// Where records of encrypted links are opened.
    scratch: Scratch,
}

impl Links {
    /// Opens a link port. Without any key, the address must be a loopback one.
    pub fn bind(now: Instant, address: SocketAddr, settings: Settings) -> Result<Links, BindError> {
        let ring = match settings.ring.is_empty() {
            true if settings.encryption == Encryption::Required => return Err(BindError::NeedsKey(address)),
            true if !address.ip().to_canonical().is_loopback() => return Err(BindError::NeedsKey(address)),
            true => KeyRing::loopback_only(),
            false => settings.ring,
        };
        let mut random = [0; 8];
        let nonce = spillway_keys::fresh_nonce().map_err(|error| BindError::Listen(address, error))?;
        random.copy_from_slice(&nonce[..8]);
        let config = ServerConfig {
            ring,
            rules: settings.rules,
            limits: settings.limits,
            encryption: settings.encryption,
        };
        let failed = |error| BindError::Listen(address, error);
        let member = settings.threads.map(Member::join).transpose().map_err(failed)?;
        let listener = Listener::bind(address, settings.reuse_port || member.is_some()).map_err(failed)?;
        let address = listener.local_address().map_err(|error| BindError::Listen(address, error))?;
        let thread = member.as_ref().map_or(0, |member| member.thread);
        Ok(Links {
            epoch: now,
            config: Arc::new(config),
            listener,
            address,
            // Links that were lost in this turn are in the table until the application has heard of them.
            table: Table::new(thread, settings.links_max.saturating_add(ACCEPTED_PER_TURN)),
            links_max: settings.links_max,
            handshakes: VecDeque::new(),
            unauthenticated: Unauthenticated::new(settings.unauthenticated),
            read_timeouts: Vec::new(),
            touched: Vec::new(),
            lost: VecDeque::new(),
            room: VecDeque::new(),
            sessions: Port::new(settings.sessions, u64::from_le_bytes(random)),
            carriers: Carriers::new(thread),
            ended: VecDeque::new(),
            placement: Placement::default(),
            // Any seed will do: it keeps sessions apart, not servers.
            releasing: settings.release.map(|release| Releasing::new(release, u64::from(address.port()))),
            shares_port: settings.reuse_port && member.is_none(),
            member,
            window_bytes: settings.sessions.stream.window_bytes,
            latest: Time::ZERO,
            scratch: Scratch::new(),
        })
    }

    /// The link port's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many links there are, those that have not authenticated yet included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no links.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Links that were dropped before they had authenticated, because newer ones came; since the port was opened.
    pub fn evicted_handshakes(&self) -> u64 {
        self.unauthenticated.evicted()
    }

    fn time(&mut self, now: Instant) -> Time {
        self.latest = self.latest.max(Time::ZERO + now.saturating_duration_since(self.epoch));
        self.latest
    }

    /// A link and, if something was done to it that has to be sent, a note to send it.
    fn with<T>(&mut self, link: LinkId, act: impl FnOnce(&mut Link) -> T) -> Option<T> {
        let entry = self.table.get_mut(link).filter(|entry| entry.lost.is_none())?;
        let result = act(entry);
        if !entry.touched && entry.end.pending() > 0 {
            entry.touched = true;
            self.touched.push(link);
        }
        Some(result)
    }
}
