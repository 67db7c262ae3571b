//! Plain clients. [`requests`]: bytes from the client. [`replies`]: bytes to the client.

mod replies;
mod requests;

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::Id;
use spillway_requests::Tracker;
use spillway_transport::Time;

use crate::clients::backlog::Backlog;
use crate::clients::lingering::Lingering;
use crate::clients::reply_acks::{FinalAck, ReplyAcks};
use crate::clients::window::Window;
use crate::links::Linked;
use crate::measurement::RequestMetrics;
use crate::memory::{Held, Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// One plain client and its virtual connection.
#[derive(Debug)]
pub(crate) struct PlainClient {
    service: u16,
    /// Index of the link that carries the client.
    link: usize,
    id: Id,
    /// The client's address, as the server sees it.
    peer: SocketAddr,
    /// The load balancer in front of the client.
    via: Option<SocketAddr>,
    since: Time,
    bytes_in: u64,
    /// Length of the load balancer's PROXY header, which precedes the requests in the stream.
    header_bytes: u16,
    bytes_out: u64,
    /// Bytes that were granted and not received.
    granted: usize,
    /// The client is granted nothing: the link is congested, or the server has given no credit.
    stalled: Option<Stalled>,
    /// The client is in the link's list of waiting clients.
    waits_for_link: bool,
    /// Requests are not read, because memory is scarce and the client does not read its replies.
    is_paused: bool,
    unread: Unread,
    client_finished: bool,
    server_finished: bool,
    /// Requests that the link did not take. Together with `granted` at most `CLIENT_GRANT_BYTES`.
    requests: Backlog,
    window: Window,
    /// Replies that the transport did not take. Bounded by the window.
    replies: Backlog,
    /// Acknowledgements, if the server keeps replies.
    reply_acks: Option<Box<ReplyAcks>>,
    /// Follows the client's requests if the client is sampled for measurement.
    tracker: Option<Box<Tracker>>,
}

#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Time,
    by_link: bool,
}

/// How a plain client connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    /// The load balancer in front of the client.
    pub(crate) via: Option<SocketAddr>,
    /// Bytes that were granted for the PROXY header and not used by it.
    pub(crate) granted: usize,
    /// Length of the PROXY header.
    pub(crate) header_bytes: u16,
}

impl PlainClient {
    /// `window`: initial window in bytes.
    pub(crate) fn new(
        now: Time,
        service: u16,
        (link, id): (usize, Id),
        arrival: Arrival,
        window: u32,
    ) -> PlainClient {
        PlainClient {
            service,
            link,
            id,
            peer: arrival.peer,
            via: arrival.via,
            since: now,
            bytes_in: 0,
            header_bytes: arrival.header_bytes,
            bytes_out: 0,
            granted: arrival.granted,
            stalled: None,
            waits_for_link: false,
            is_paused: false,
            unread: Unread::new(now),
            client_finished: false,
            server_finished: false,
            requests: Backlog::default(),
            window: Window::new(now, window),
            replies: Backlog::default(),
            reply_acks: None,
            tracker: None,
        }
    }

    /// Forwards the client's acknowledgements from now on: the server keeps replies until they are acknowledged.
    pub(crate) fn report_acknowledgements(&mut self) {
        self.reply_acks = Some(Box::default());
    }

    /// Measures the client's requests.
    pub(crate) fn measure(&mut self, tracker: Tracker) {
        self.tracker = Some(Box::new(tracker));
    }

    /// Measures requests. Call this before they are forwarded.
    pub(crate) fn track_requests(&mut self, now: Time, bytes: &[u8], metrics: &mut RequestMetrics) {
        if let Some(tracker) = &mut self.tracker {
            metrics.requests(tracker, now, bytes);
        }
    }

    /// Measures replies. Call this before they are forwarded.
    pub(crate) fn track_replies(&mut self, now: Time, bytes: &[u8], metrics: &mut RequestMetrics) {
        if let Some(tracker) = &mut self.tracker {
            if !self.replies.is_empty() {
                // Outstanding requests are not measured: the server may wait for credit, as the client does not read.
                tracker.exclude_outstanding();
            }
            metrics.replies(tracker, now, bytes);
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// Id of the client's virtual connection.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client's memory in the relay. `queued`: bytes in the transport.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.unread.note(now, self.bytes_out, self.replies.len() + queued);
        Held {
            waiting_bytes: self.requests.len() + self.replies.len(),
            memory_bytes: self.requests.capacity() + self.replies.capacity(),
            age: self.unread.age(now),
        }
    }

    /// The client's TCP has acknowledged replies up to `through`. True: start the acknowledge timer.
    #[must_use]
    pub(crate) fn handle_acknowledged(&mut self, through: u64, linked: &mut Linked) -> bool {
        let id = self.id;
        self.reply_acks.as_mut().is_some_and(|acks| acks.handle_acknowledged(through, id, linked))
    }

    pub(crate) fn acknowledge_timer_runs(&self) -> bool {
        self.reply_acks.as_ref().is_some_and(|acks| acks.timer_runs())
    }

    pub(crate) fn acknowledge_timeout(&mut self, linked: Option<&mut Linked>) {
        if let Some(acks) = &mut self.reply_acks {
            acks.handle_timeout(self.id, linked);
        }
    }

    /// The last acknowledgement, if the server has closed and waits for it.
    pub(crate) fn final_ack(&self, linked: &mut Linked) -> Option<FinalAck> {
        FinalAck::new((self.link, self.id), self.bytes_out, self.reply_acks.as_deref().copied(), linked)
    }

    /// The server has closed. The returned client sends the remaining replies.
    pub(crate) fn linger(&mut self, final_ack: Option<FinalAck>, memory: &mut Memory) -> Lingering {
        self.window.release_memory(memory);
        self.requests.clear(memory);
        let remaining = (core::mem::take(&mut self.replies), self.unread);
        Lingering::plain(self.service, (self.peer, self.since), self.bytes_out, remaining, final_ack)
    }

    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        self.window.release_memory(memory);
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
            ..ClientStatus::new(self.peer, ClientKind::Plain, self.since)
        }
    }
}
