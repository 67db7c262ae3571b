//! A link port and the links that it has accepted.

mod carriers;
pub(crate) mod forwarding;
mod other_threads;
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
use self::other_threads::Member;
use self::release::AutomaticRelease;
use crate::event::{ClientId, LinkId};
use crate::link::Link;
use crate::listener::Listener;
use crate::settings::{BindError, Settings};
use crate::table::Table;
use crate::threads::CarrierName;

/// Maximum of links accepted in one turn, so that a burst of new links does not delay the others.
const ACCEPTED_PER_TURN: usize = 64;

/// A link port and the links that were opened to it. See the crate's documentation for the order of calls.
#[derive(Debug)]
pub struct Links {
    /// The instant of [`Time::ZERO`].
    epoch: Instant,
    config: Arc<ServerConfig>,
    listener: Listener,
    address: SocketAddr,
    table: Table<Link>,
    /// Deadlines for the authentication of links, in order. Links that have authenticated or ended since are skipped.
    handshakes: VecDeque<(Instant, LinkId)>,
    unauthenticated: Unauthenticated<LinkId>,
    /// Links with a read timeout: they have an incomplete record, or are not read for a time. May also contain links
    /// whose read timeout has ended.
    read_timeouts: Vec<LinkId>,
    /// Links that have something to send, or whose [`Interest`](crate::watch::Interest) has changed.
    touched: Vec<LinkId>,
    /// Lost links with events that [`poll_event`](Self::poll_event) has yet to return.
    lost: VecDeque<LinkId>,
    /// Connections that have room for replies again.
    room: VecDeque<ClientId>,
    sessions: Port<CarrierName>,
    /// The session of each carrier, on links of this thread and of others.
    carriers: Carriers,
    /// Abandoned and overflowed sessions whose end [`poll_event`](Self::poll_event) has yet to return.
    ended: VecDeque<SessionHandle>,
    /// The override of where sessions are carried.
    placement: Placement,
    automatic_release: Option<AutomaticRelease>,
    links_max: usize,
    /// Whether other link ports may have this address without sharing their sessions, see [`Settings::reuse_port`].
    shares_port: bool,
    /// The port's threads, see [`Settings::threads`].
    member: Option<Member>,
    /// Each session's window: bytes that its client may send before they are consumed.
    window_bytes: u32,
    /// Time of the latest call.
    latest: Time,
    /// Buffer for the plaintext of encrypted links' records.
    scratch: Scratch,
}

impl Links {
    /// Opens a link port.
    ///
    /// # Errors
    /// There is no key, but the address is not a loopback address or encryption is required; a setting of
    /// [`Settings::release`] is out of its bounds; the address cannot be listened on; or the host lacks descriptors or
    /// random bytes.
    pub fn bind(now: Instant, address: SocketAddr, settings: Settings) -> Result<Links, BindError> {
        let ring = match settings.keys.is_empty() {
            true if settings.encryption == Encryption::Required => {
                return Err(BindError::NeedsKeyForEncryption(address));
            }
            true if !address.ip().to_canonical().is_loopback() => {
                return Err(BindError::NeedsKeyForAddress(address));
            }
            true => KeyRing::loopback_only(),
            false => settings.keys,
        };
        let mut random = [0; 8];
        let nonce = spillway_keys::fresh_nonce().map_err(BindError::Host)?;
        random.copy_from_slice(&nonce[..8]);
        let config = ServerConfig {
            ring,
            rules: settings.rules,
            limits: settings.limits,
            encryption: settings.encryption,
        };
        let member = settings.threads.map(Member::join).transpose().map_err(BindError::Host)?;
        let listener = Listener::bind(address, settings.reuse_port || member.is_some())
            .map_err(|error| BindError::Listen(address, error))?;
        let address = listener.local_address().map_err(BindError::Host)?;
        // The seed of the jitter between returning sessions: it need not differ between servers.
        let automatic_release = |release| AutomaticRelease::new(release, u64::from(address.port()));
        let automatic_release =
            settings.release.map(automatic_release).transpose().map_err(BindError::Release)?;
        let thread = member.as_ref().map_or(0, |member| member.thread);
        Ok(Links {
            epoch: now,
            config: Arc::new(config),
            listener,
            address,
            // Links that were lost in this turn stay in the table until `poll_event` has returned their events.
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
            automatic_release,
            shares_port: settings.reuse_port && member.is_none(),
            member,
            window_bytes: settings.sessions.stream.window_bytes,
            latest: Time::ZERO,
            scratch: Scratch::new(),
        })
    }

    /// The link port's local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of links, including those that have not authenticated yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no links.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of links that were dropped for newer ones before they had authenticated, since the port was opened.
    pub fn evicted_handshakes(&self) -> u64 {
        self.unauthenticated.evicted()
    }

    fn time(&mut self, now: Instant) -> Time {
        self.latest = self.latest.max(Time::ZERO + now.saturating_duration_since(self.epoch));
        self.latest
    }

    /// Runs `act` on a link that is not lost. If the link has something to send afterwards, [`flush`](Self::flush) sends it.
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
