//! One carrier of a session: a link with one connection.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::LinkRandomness;
use spillway_batch::{Control, Id, Limits, LinkError, OpenerEvent, OpenerLink, Scratch};
use spillway_transport::{Chunk, Time};

use super::target::LinkTarget;
use crate::carriers::OnOpenerLink;
use crate::client::ClientSession;
use crate::stream::Carrier;

/// The most bytes that wait on a link for the socket; further bytes wait in the session.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Sees the control messages that a session sends, as an attacker on the path would, and may replay old ones. Simulators
/// implement it; programs use `()`.
pub trait Observer {
    /// The session sends this message.
    fn hears(&mut self, _said: &Control) {}

    /// An old message to replay now, while the session has nothing to send.
    fn repeats(&mut self) -> Option<Control> {
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
    line: Option<Line>,
    chosen_at: Time,
    /// The server must have answered by then.
    deadline: Time,
}

/// A link over a connected socket.
#[derive(Debug)]
struct Line {
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
        LinkCarrier { target, is_opened: false, line: None, chosen_at: now, deadline: now + timeout }
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

    pub(super) fn connected(&mut self, now: Time, client: SocketAddr, fresh: LinkRandomness) {
        let link = OpenerLink::new(&self.target.opener(Limits::default()), now, fresh);
        self.line = Some(Line { link, client, id: None, unsent: Chunk::default() });
    }

    pub(super) fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        match &mut self.line {
            Some(line) => line.link.unseal(now, wire, scratch),
            None => &[],
        }
    }

    pub(super) fn decompose<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<OpenerEvent<'a>>, LinkError> {
        match &mut self.line {
            Some(line) => line.link.decompose(now, input),
            None => Ok(None),
        }
    }

    /// Whether the other end of an established link can carry a session.
    pub(super) fn carries_sessions(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.link.carries_sessions())
    }

    /// Probes the server.
    pub(super) fn ask(&mut self, session: &mut ClientSession) {
        if let Some(Line { link, id: Some(id), .. }) = &mut self.line {
            session.ask(&mut OnOpenerLink { link, id: *id, pending_bytes_max: PENDING_BYTES_MAX });
        }
    }

    /// Fills a batch with the session's messages, the opening message first, unless a batch waits for the socket already.
    pub(super) fn fill(&mut self, now: Time, session: &mut ClientSession, ear: &mut impl Observer) {
        let Some(line) = self.line.as_mut().filter(|line| line.unsent.is_empty()) else { return };
        if line.id.is_none() && line.link.is_established() {
            let words = session.open(now, line.client, self.target.server);
            ear.hears(&words);
            line.id = line.link.open_relayed(words).ok();
            debug_assert!(
                line.id.is_some(),
                "a link that carries no sessions was left when it was established"
            );
        }
        if let Some(id) = line.id {
            let carrier = OnOpenerLink { link: &mut line.link, id, pending_bytes_max: PENDING_BYTES_MAX };
            session.transmit(now, &mut Heard { carrier, ear });
        }
        line.unsent = line.link.flush(now).unwrap_or_default();
        if let Some(id) = line.id
            && line.unsent.is_empty()
            && session.is_attached()
            && let Some(copy) = ear.repeats()
        {
            line.link.relay_control(id, copy);
            line.unsent = line.link.flush(now).unwrap_or_default();
        }
    }

    /// The next bytes for the socket.
    pub(super) fn unsent(&self) -> Option<&[u8]> {
        self.line.as_ref().map(|line| line.unsent.as_slice()).filter(|bytes| !bytes.is_empty())
    }

    /// The socket took this many bytes.
    pub(super) fn sent(&mut self, bytes: usize) {
        let Some(line) = &mut self.line else { return };
        line.unsent.advance(bytes);
        if line.unsent.is_empty() {
            line.link.recycle(core::mem::take(&mut line.unsent));
        }
    }

    /// Whether bytes of a batch wait for the socket.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent().is_some()
    }

    /// Bytes of memory that hold bytes for the socket and the received part of an incomplete record.
    pub(super) fn held_bytes(&self) -> usize {
        let Some(Line { link, unsent, .. }) = &self.line else { return 0 };
        let waiting = if link.pending() == 0 { link.held_incomplete() } else { link.held() };
        waiting + if unsent.is_empty() { 0 } else { unsent.capacity() }
    }
}

/// A carrier whose control messages an [`Observer`] sees.
struct Heard<'a, E> {
    carrier: OnOpenerLink<'a>,
    ear: &'a mut E,
}

impl<E: Observer> Carrier for Heard<'_, E> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.carrier.data(bytes)
    }

    fn control(&mut self, control: Control) {
        self.ear.hears(&control);
        self.carrier.control(control);
    }
}
