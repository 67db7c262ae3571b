//! A plain client: any TCP program that speaks to the relay as if it were the server.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::Id;
use spillway_transport::{Conn, Time, Transport};

use crate::clients::acknowledging::{Acknowledging, Owed};
use crate::clients::backlog::Backlog;
use crate::clients::leaving::Leaving;
use crate::clients::window::Window;
use crate::counters::Stalls;
use crate::links::Linked;
use crate::memory::{CLIENT_GRANT_BYTES, Held, Memory, Unread};
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
    /// What the link did not take. With what is granted, never more than [`CLIENT_GRANT_BYTES`].
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

    /// The client has sent bytes.
    pub(crate) fn request<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        bytes: &[u8],
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.bytes_in += bytes.len() as u64;
        self.granted = self.granted.saturating_sub(bytes.len());
        let taken = if self.requests.is_empty() { linked.compose(self.id, bytes) } else { 0 };
        if taken < bytes.len() {
            self.requests.push(&bytes[taken..], memory);
        }
        self.grant(now, conn, linked, memory, out);
    }

    /// Where its stream is when so many bytes of requests have gone.
    pub(crate) fn stream_offset(&self, requests: u64) -> u64 {
        u64::from(self.before) + requests
    }

    /// The client sends no more.
    pub(crate) fn finished(&mut self, linked: &mut Linked) {
        self.client_finished = true;
        if self.requests.is_empty() {
            linked.finish(self.id);
        }
    }

    /// The link has room or credit for this client.
    pub(crate) fn link_has_room<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if !self.requests.is_empty() {
            loop {
                let offered = self.requests.front().len();
                let taken = linked.compose(self.id, self.requests.front());
                self.requests.advance(taken, memory);
                if taken < offered || self.requests.is_empty() {
                    break;
                }
            }
            if self.client_finished && self.requests.is_empty() {
                linked.finish(self.id);
            }
        }
        self.grant(now, conn, linked, memory, out);
    }

    /// The link has drained: grants are given again.
    pub(crate) fn link_drained<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.starved = false;
        self.grant(now, conn, linked, memory, out);
    }

    /// Grants as much as the server's credit and the bound allow, once half of it is used up; nothing while memory is
    /// scarce and replies wait here.
    pub(crate) fn grant<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if memory.is_scarce() && !self.replies.is_empty() {
            if !core::mem::replace(&mut self.paused, true) {
                memory.count_pause();
            }
            return;
        }
        self.paused = false;
        self.grant_more(conn, memory.grant_bytes(), linked, out);
        let stalls = self.granted == 0 && !self.client_finished;
        if stalls && self.stalled.is_none() {
            let by_link = linked.is_congested() || linked.credit(self.id) > 0;
            linked.count_stall(by_link);
            self.stalled = Some(Stalled { since: now, by_link });
        } else if !stalls {
            linked.add_stalls(self.end_stall(now));
        }
    }

    /// The time of a stall that ends here, if there is one.
    pub(crate) fn end_stall(&mut self, now: Time) -> Stalls {
        let Some(stalled) = self.stalled.take() else { return Stalls::default() };
        let ns = u64::try_from(now.since(stalled.since).as_nanos()).unwrap_or(u64::MAX);
        if stalled.by_link {
            Stalls { link_ns: ns, ..Stalls::default() }
        } else {
            Stalls { credit_ns: ns, ..Stalls::default() }
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether all that was granted has come, so that nothing more is read.
    pub(crate) fn is_granted_nothing(&self) -> bool {
        self.granted == 0
    }

    fn note_unread<T: Transport>(&mut self, now: Time, conn: Conn, out: &T) {
        self.unread.note(now, self.bytes_out, self.replies.len() + out.queued(conn));
    }

    /// What it holds. `queued`: bytes in the transport.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        self.unread.note(now, self.bytes_out, self.replies.len() + queued);
        let waits = self.requests.len() + self.replies.len();
        let bytes = self.requests.capacity() + self.replies.capacity();
        Held { waits, bytes, age: self.unread.age(now) }
    }

    fn grant_more<T: Transport>(&mut self, conn: Conn, most: usize, linked: &mut Linked, out: &mut T) {
        let credit = linked.credit(self.id);
        let allowed = credit.min(most);
        let used = self.granted + self.requests.len();
        if self.client_finished || used * 2 > allowed {
            return;
        }
        if linked.is_congested() {
            if !self.starved {
                self.starved = true;
                linked.starve(conn);
            }
            return;
        }
        let more = allowed - used;
        if more > 0 {
            self.granted += more;
            out.grant(conn, more as u32); // at most CLIENT_GRANT_BYTES
        }
        if credit < CLIENT_GRANT_BYTES {
            linked.want_room(self.id);
        }
    }

    /// The server has sent bytes.
    pub(crate) fn reply<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        bytes: &[u8],
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        self.bytes_out += bytes.len() as u64;
        let taken = if self.replies.is_empty() { self.send(conn, bytes, out) } else { 0 };
        if taken < bytes.len() {
            self.replies.push(&bytes[taken..], memory);
        } else if let Some(window) = self.window.taken(now, taken, linked.window_bytes_max(), memory) {
            linked.widen(self.id, window);
        }
        if taken > 0 {
            self.give_credit(linked, taken);
        }
        self.note_unread(now, conn, out);
    }

    /// Gives the transport what it takes, and not more than a window's bytes to queue. It tells when it takes more.
    fn send<T: Transport>(&self, conn: Conn, bytes: &[u8], out: &mut T) -> usize {
        let most = self.window.bytes().saturating_sub(out.queued(conn));
        let taken = out.send(conn, &bytes[..bytes.len().min(most)]);
        if taken < bytes.len() {
            out.want_room(conn);
        }
        taken
    }

    /// The client's connection has taken replies.
    fn give_credit(&self, linked: &mut Linked, taken: usize) {
        let outcome = linked.consumed(self.id, taken);
        debug_assert_eq!(outcome, Ok(()), "replies that are sent were received");
    }

    /// The server sends no more.
    pub(crate) fn server_finished<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.server_finished = true;
        if self.replies.is_empty() {
            out.finish(conn);
        }
    }

    /// The client's connection has room.
    pub(crate) fn client_has_room<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        linked: &mut Linked,
        memory: &mut Memory,
        out: &mut T,
    ) {
        while !self.replies.is_empty() {
            let offered = self.replies.front().len();
            let taken = self.send(conn, self.replies.front(), out);
            self.give_credit(linked, taken);
            self.replies.advance(taken, memory);
            if taken < offered {
                break;
            }
        }
        self.note_unread(now, conn, out);
        if self.server_finished && self.replies.is_empty() {
            out.finish(conn);
        }
        if self.paused {
            self.grant(now, conn, linked, memory, out);
        }
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
