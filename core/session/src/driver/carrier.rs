//! One carrier of a session: a link with one connection.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::LinkRandomness;
use spillway_batch::{Control, Id, Limits, LinkError, OpenerEvent, OpenerLink, Scratch};
use spillway_transport::{Chunk, Time};

use super::target::LinkTarget;
use crate::carriers::OpenerLinkCarrier;
use crate::client::ClientSession;
use crate::stream::Carrier;

/// Maximum bytes that wait on a link for the socket; further bytes wait in the session.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Receives copies of the control messages that a session sends, as an attacker on the path would, and may replay old
/// ones. Simulators implement it; programs use `()`.
pub trait Observer {
    /// The session sends this message.
    fn observe(&mut self, _control: &Control) {}

    /// An old message to replay now, while the session has nothing to send.
    fn poll_replay(&mut self) -> Option<Control> {
        None
    }
}

impl Observer for () {}

/// The chosen link port, and the link to it once the host's socket is connected.
#[derive(Debug)]
pub(super) struct LinkCarrier {
    target: LinkTarget,
    /// [`poll_open`](Self::poll_open) has returned the target.
    is_opened: bool,
    connected: Option<ConnectedLink>,
    chosen_at: Time,
    /// The server must have answered by then.
    deadline: Time,
}

/// A link over a connected socket.
#[derive(Debug)]
struct ConnectedLink {
    link: OpenerLink,
    /// The socket's local address, which the opening message names.
    client: SocketAddr,
    /// The session's connection on the link, once the opening message is sent.
    id: Option<Id>,
    /// The rest of a batch that the socket has not taken.
    unsent: Chunk,
}

impl LinkCarrier {
    /// Chooses a link port now; the server must answer within `timeout`.
    pub(super) fn new(target: LinkTarget, now: Time, timeout: Duration) -> LinkCarrier {
        LinkCarrier { target, is_opened: false, connected: None, chosen_at: now, deadline: now + timeout }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.target.address
    }

    pub(super) fn deadline(&self) -> Time {
        self.deadline
    }

    /// The time since the link port was chosen.
    pub(super) fn age(&self, now: Time) -> Duration {
        now.since(self.chosen_at)
    }

    /// Whether the host has been asked to connect, so that there may be a socket.
    pub(super) fn is_opened(&self) -> bool {
        self.is_opened
    }

    /// The link port to connect to; `Some` only once.
    pub(super) fn poll_open(&mut self) -> Option<&LinkTarget> {
        (!core::mem::replace(&mut self.is_opened, true)).then_some(&self.target)
    }

    pub(super) fn handle_connected(&mut self, now: Time, client: SocketAddr, fresh: LinkRandomness) {
        let link = OpenerLink::new(&self.target.opener(Limits::default()), now, fresh);
        self.connected = Some(ConnectedLink { link, client, id: None, unsent: Chunk::default() });
    }

    pub(super) fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        match &mut self.connected {
            Some(connected) => connected.link.unseal(now, wire, scratch),
            None => &[],
        }
    }

    pub(super) fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        match &mut self.connected {
            Some(connected) => connected.link.decompose(now, input),
            None => Ok(None),
        }
    }

    /// Whether the other end of an established link can carry a session.
    pub(super) fn carries_sessions(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| connected.link.carries_sessions())
    }

    /// Probes the server.
    pub(super) fn probe(&mut self, session: &mut ClientSession) {
        if let Some(ConnectedLink { link, id: Some(id), .. }) = &mut self.connected {
            session.probe(&mut OpenerLinkCarrier { link, id: *id, pending_bytes_max: PENDING_BYTES_MAX });
        }
    }

    /// Fills a batch with the session's messages, the opening message first, unless the last batch is not sent yet.
    pub(super) fn fill(&mut self, now: Time, session: &mut ClientSession, observer: &mut impl Observer) {
        let Some(connected) = self.connected.as_mut().filter(|connected| connected.unsent.is_empty()) else {
            return;
        };
        if connected.id.is_none() && connected.link.is_established() {
            let opening_message = session.open(now, connected.client, self.target.server);
            observer.observe(&opening_message);
            connected.id = connected.link.open_with_message(opening_message).ok();
            debug_assert!(
                connected.id.is_some(),
                "a link that cannot carry sessions should have been left when it was established"
            );
        }
        if let Some(id) = connected.id {
            let carrier =
                OpenerLinkCarrier { link: &mut connected.link, id, pending_bytes_max: PENDING_BYTES_MAX };
            session.transmit(now, &mut ObservedCarrier { carrier, observer });
        }
        connected.unsent = connected.link.flush(now).unwrap_or_default();
        if let Some(id) = connected.id
            && connected.unsent.is_empty()
            && session.is_attached()
            && let Some(copy) = observer.poll_replay()
        {
            connected.link.relay_control(id, copy);
            connected.unsent = connected.link.flush(now).unwrap_or_default();
        }
    }

    /// The next bytes for the socket.
    pub(super) fn unsent(&self) -> Option<&[u8]> {
        self.connected.as_ref().map(|connected| connected.unsent.as_slice()).filter(|bytes| !bytes.is_empty())
    }

    /// The socket took this many bytes.
    pub(super) fn advance_unsent(&mut self, bytes: usize) {
        let Some(connected) = &mut self.connected else { return };
        connected.unsent.advance(bytes);
        if connected.unsent.is_empty() {
            connected.link.recycle(core::mem::take(&mut connected.unsent));
        }
    }

    /// Whether bytes of a batch wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent().is_some()
    }

    /// Bytes of memory that hold bytes for the socket and the received part of an incomplete record.
    pub(super) fn held_bytes(&self) -> usize {
        let Some(ConnectedLink { link, unsent, .. }) = &self.connected else { return 0 };
        let pending_bytes = if link.pending() == 0 { link.held_incomplete() } else { link.held() };
        pending_bytes + if unsent.is_empty() { 0 } else { unsent.capacity() }
    }
}

/// A carrier that passes copies of its control messages to an [`Observer`].
struct ObservedCarrier<'a, E> {
    carrier: OpenerLinkCarrier<'a>,
    observer: &'a mut E,
}

impl<E: Observer> Carrier for ObservedCarrier<'_, E> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.carrier.data(bytes)
    }

    fn control(&mut self, control: Control) {
        self.observer.observe(&control);
        self.carrier.control(control);
    }
}
