//! A client whose virtual connection has ended, and that still takes what is left for it.

use core::net::SocketAddr;

use spillway_transport::{Conn, Time, Transport};

use crate::clients::acknowledging::Owed;
use crate::clients::backlog::Backlog;
use crate::clients::sort::Sort;
use crate::links::Linked;
use crate::memory::{Held, Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// A client whose virtual connection has ended.
#[derive(Debug)]
pub(crate) struct Leaving {
    service: u16,
    sort: Sort,
    peer: SocketAddr,
    since: Time,
    backlog: Backlog,
    unread: Unread,
    stream: Stream,
    /// It has sent something since its server closed.
    has_spoken: bool,
    /// Stream offset that its TCP has acknowledged, and what that was when its timer was started.
    acknowledged: u64,
    acknowledged_before: u64,
    /// To a server that keeps its replies.
    owed: Option<Owed>,
}

/// How long the stream to a leaving client is.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// How many bytes were sent: all have arrived when as many are acknowledged.
    Known { bytes: u64 },
    /// Bytes sent before were not counted, and the peer's acknowledgements are not watched.
    Unknown { bytes: u64 },
}

impl Leaving {
    /// A library client, of whose stream only what is left is known.
    pub(crate) fn library(
        now: Time,
        service: u16,
        peer: SocketAddr,
        since: Time,
        backlog: Backlog,
    ) -> Leaving {
        Leaving {
            service,
            sort: Sort::Library,
            peer,
            since,
            stream: Stream::Unknown { bytes: backlog.len() as u64 },
            has_spoken: false,
            backlog,
            unread: Unread::new(now),
            acknowledged: 0,
            acknowledged_before: 0,
            owed: None,
        }
    }

    /// A plain client, to whom `bytes` are sent in all.
    pub(crate) fn plain(
        service: u16,
        (peer, since): (SocketAddr, Time),
        bytes: u64,
        (backlog, unread): (Backlog, Unread),
        owed: Option<Owed>,
    ) -> Leaving {
        Leaving {
            service,
            sort: Sort::Raw,
            peer,
            since,
            stream: Stream::Known { bytes },
            has_spoken: false,
            backlog,
            unread,
            acknowledged: owed.as_ref().map_or(0, Owed::acknowledged),
            acknowledged_before: 0,
            owed,
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    pub(crate) fn sort(&self) -> Sort {
        self.sort
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends what is left; after the last byte comes the end.
    pub(crate) fn transmit<T: Transport>(&mut self, conn: Conn, memory: &mut Memory, out: &mut T) {
        while !self.backlog.is_empty() {
            let offered = self.backlog.front().len();
            let taken = out.send(conn, self.backlog.front());
            self.backlog.advance(taken, memory);
            if taken < offered {
                break;
            }
        }
        if self.backlog.is_empty() {
            out.finish(conn);
        }
    }

    /// It sends although its server has closed. Once its TCP has all that was left for it, it is to be reset, as a kernel
    /// resets it at once: one that only writes notices nothing else.
    pub(crate) fn spoke(&mut self) {
        self.has_spoken = true;
    }

    pub(crate) fn is_to_be_reset(&self) -> bool {
        let Stream::Known { bytes } = self.stream else { return false };
        self.has_spoken && self.acknowledged >= bytes && self.backlog.is_empty()
    }

    /// Index of the link whose server is owed something.
    pub(crate) fn owed_link(&self) -> Option<usize> {
        self.owed.as_ref().map(Owed::link)
    }

    /// Its TCP has our bytes up to this offset. `linked`: the link of [`owed_link`](Self::owed_link), if it is open. True: a
    /// timer is to be started.
    #[must_use]
    pub(crate) fn heard(&mut self, conn: Conn, through: u64, linked: Option<&mut Linked>) -> bool {
        self.acknowledged = through;
        match self.owed.take_if(|owed| owed.is_last(through)) {
            Some(owed) => {
                owed.settle(conn, Some(through), linked);
                false
            }
            None => self.owed.as_mut().is_some_and(|owed| owed.heard(conn, through, linked)),
        }
    }

    /// A timer for the server that is owed something runs.
    pub(crate) fn is_acknowledgement_due(&self) -> bool {
        self.owed.as_ref().is_some_and(Owed::is_due)
    }

    pub(crate) fn acknowledge_timeout(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        if let Some(owed) = &mut self.owed {
            owed.handle_timeout(conn, linked);
        }
    }

    /// It has gone: its server gets what it is owed.
    pub(crate) fn settle(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        if let Some(owed) = self.owed.take() {
            owed.settle(conn, None, linked);
        }
    }

    /// The link of the server that is owed something is lost.
    pub(crate) fn owes_nothing(&mut self) {
        self.owed = None;
    }

    /// Whether it may stay: as long as its TCP acknowledges something in each period. Bytes given to
    /// the host are no sign of that: its buffer may hold them for long.
    pub(crate) fn makes_progress(&mut self) -> bool {
        let before = core::mem::replace(&mut self.acknowledged_before, self.acknowledged);
        self.acknowledged > before
    }

    /// Nothing of it counts any more.
    pub(crate) fn over(&mut self, memory: &mut Memory) {
        self.backlog.clear(memory);
    }

    /// What it holds. `queued`: bytes in the transport.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        let (Stream::Known { bytes } | Stream::Unknown { bytes }) = self.stream;
        self.unread.note(now, bytes, self.backlog.len() + queued);
        Held { waits: self.backlog.len(), bytes: self.backlog.capacity(), age: self.unread.age(now) }
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            buffered: self.backlog.len(),
            ..ClientStatus::new(self.peer, ClientKind::Leaving, self.since)
        }
    }
}
