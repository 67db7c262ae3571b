//! A plain client: any TCP program that speaks to the relay as if it were the server. [`requests`] has what it sends,
//! [`replies`] what it is sent.

mod replies;
mod requests;

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::Id;
use spillway_transport::Time;

use crate::clients::acknowledging::{Acknowledging, Owed};
use crate::clients::backlog::Backlog;
use crate::clients::leaving::Leaving;
use crate::clients::window::Window;
use crate::links::Linked;
use crate::memory::{Held, Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// One plain client and its virtual connection.
#[derive(Debug)]
pub(crate) struct RawClient {
    service: u16,
    /// Index of the link that carries it.
    link: usize,
    id: Id,
    /// The client, as the server sees it.
    peer: SocketAddr,
    /// The load balancer that spoke for it.
    via: Option<SocketAddr>,
    since: Time,
    bytes_in: u64,
    /// Bytes of its stream before the first request: its load balancer's header.
    before: u16,
    bytes_out: u64,
    /// Granted and not yet received.
    granted: usize,
    /// It can send nothing, and why.
    stalled: Option<Stalled>,
    /// Waits for a grant until the link has drained.
    starved: bool,
    /// Its requests are not read while memory is scarce, because it does not read its replies.
    paused: bool,
    unread: Unread,
    client_finished: bool,
    server_finished: bool,
    /// What the link did not take. With what is granted, never more than [`CLIENT_GRANT_BYTES`](crate::memory::CLIENT_GRANT_BYTES).
    requests: Backlog,
    window: Window,
    /// What the transport did not take: bounded by the window that the server sees.
    replies: Backlog,
    /// Where the server was asked to keep replies.
    acknowledging: Option<Box<Acknowledging>>,
}

#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Time,
    by_link: bool,
}

/// How a plain client came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    pub(crate) via: Option<SocketAddr>,
    /// Granted already, for its load balancer's header, and not received.
    pub(crate) granted: usize,
    /// Bytes of its load balancer's header.
    pub(crate) before: u16,
}

impl RawClient {
    /// `window`: bytes that its server may send at first.
    pub(crate) fn new(
        now: Time,
        service: u16,
        (link, id): (usize, Id),
        arrival: Arrival,
        window: u32,
    ) -> RawClient {
        RawClient {
            service,
            link,
            id,
            peer: arrival.peer,
            via: arrival.via,
            since: now,
            bytes_in: 0,
            before: arrival.before,
            bytes_out: 0,
            granted: arrival.granted,
            stalled: None,
            starved: false,
            paused: false,
            unread: Unread::new(now),
            client_finished: false,
            server_finished: false,
            requests: Backlog::default(),
            window: Window::new(now, window),
            replies: Backlog::default(),
            acknowledging: None,
        }
    }

    /// Its server was asked to keep replies until they are acknowledged.
    pub(crate) fn keeps_replies(&mut self) {
        self.acknowledging = Some(Box::default());
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    /// Index of the link that carries it.
    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// Its virtual connection on that link.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// The client, as the server sees it.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What it holds. `queued`: bytes in the transport.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.unread.note(now, self.bytes_out, self.replies.len() + queued);
        let waits = self.requests.len() + self.replies.len();
        let bytes = self.requests.capacity() + self.replies.capacity();
        Held { waits, bytes, age: self.unread.age(now) }
    }

    /// Its TCP has replies up to this offset. True: a timer is to be started.
    #[must_use]
    pub(crate) fn heard(&mut self, through: u64, linked: &mut Linked) -> bool {
        let id = self.id;
        self.acknowledging.as_mut().is_some_and(|acknowledging| acknowledging.heard(through, id, linked))
    }

    /// A timer for what the server is to learn runs.
    pub(crate) fn is_acknowledgement_due(&self) -> bool {
        self.acknowledging.as_ref().is_some_and(|acknowledging| acknowledging.is_due())
    }

    pub(crate) fn acknowledge_timeout(&mut self, linked: Option<&mut Linked>) {
        if let Some(acknowledging) = &mut self.acknowledging {
            acknowledging.handle_timeout(self.id, linked);
        }
    }

    /// After the server has closed: what it is owed.
    pub(crate) fn owed(&self, linked: &mut Linked) -> Option<Owed> {
        Owed::new((self.link, self.id), self.bytes_out, self.acknowledging.as_deref().copied(), linked)
    }

    /// The server has closed: the client takes what is left, and the server gets what it is owed.
    pub(crate) fn leave(&mut self, owed: Option<Owed>, memory: &mut Memory) -> Leaving {
        self.window.over(memory);
        self.requests.clear(memory);
        let left = (core::mem::take(&mut self.replies), self.unread);
        Leaving::plain(self.service, (self.peer, self.since), self.bytes_out, left, owed)
    }

    /// Nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        self.window.over(memory);
        self.requests.clear(memory);
        self.replies.clear(memory);
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            via: self.via,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            buffered: self.requests.len() + self.replies.len(),
            stalled_since: self.stalled.map(|stalled| stalled.since),
            ..ClientStatus::new(self.peer, ClientKind::Raw, self.since)
        }
    }
}
