use core::net::SocketAddr;

use spillway_transport::{Conn, Time, Transport};

use crate::clients::backlog::Backlog;
use crate::clients::client_type::ClientType;
use crate::clients::reply_acks::FinalAck;
use crate::links::Linked;
use crate::memory::{Held, Memory, Unread};
use crate::status::{ClientKind, ClientStatus};

/// A client that gets its last bytes before its connection ends: the replies after its server's close, or the
/// rejection of its authentication.
#[derive(Debug)]
pub(crate) struct Lingering {
    service: u16,
    client_type: ClientType,
    peer: SocketAddr,
    since: Time,
    backlog: Backlog,
    unread: Unread,
    stream: Stream,
    /// The client has sent bytes after the server's close.
    sent_after_close: bool,
    /// Stream offset that the client's TCP has acknowledged.
    acknowledged: u64,
    /// `acknowledged` when the linger timer was started.
    acknowledged_before: u64,
    /// The last acknowledgement, if the server keeps replies and waits for it.
    final_ack: Option<FinalAck>,
}

/// Length of the stream to the client.
#[derive(Clone, Copy, Debug)]
enum Stream {
    /// Length of the whole stream. The client has all replies when this offset is acknowledged.
    Known { bytes: u64 },
    /// Length of the backlog only. Earlier bytes were not counted, and acknowledgements are not watched.
    Unknown { bytes: u64 },
}

impl Lingering {
    pub(crate) fn library(
        now: Time,
        service: u16,
        peer: SocketAddr,
        since: Time,
        backlog: Backlog,
    ) -> Lingering {
        Lingering {
            service,
            client_type: ClientType::Library,
            peer,
            since,
            stream: Stream::Unknown { bytes: backlog.len() as u64 },
            sent_after_close: false,
            backlog,
            unread: Unread::new(now),
            acknowledged: 0,
            acknowledged_before: 0,
            final_ack: None,
        }
    }

    /// `bytes`: length of all replies to the client.
    pub(crate) fn plain(
        service: u16,
        (peer, since): (SocketAddr, Time),
        bytes: u64,
        (backlog, unread): (Backlog, Unread),
        final_ack: Option<FinalAck>,
    ) -> Lingering {
        Lingering {
            service,
            client_type: ClientType::Plain,
            peer,
            since,
            stream: Stream::Known { bytes },
            sent_after_close: false,
            backlog,
            unread,
            acknowledged: final_ack.as_ref().map_or(0, FinalAck::acknowledged),
            acknowledged_before: 0,
            final_ack,
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    pub(crate) fn client_type(&self) -> ClientType {
        self.client_type
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends the backlog, and finishes the connection after the last byte.
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

    /// The client has sent bytes after the server's close. A kernel would answer them with a reset, and only
    /// the reset tells a client that only writes of the close. The relay resets the client once the client's
    /// TCP has acknowledged all replies: an earlier reset could overtake the replies.
    pub(crate) fn received_after_close(&mut self) {
        self.sent_after_close = true;
    }

    /// Whether the client must be reset because it sent bytes after the server's close.
    pub(crate) fn is_reset_due(&self) -> bool {
        let Stream::Known { bytes } = self.stream else { return false };
        self.sent_after_close && self.acknowledged >= bytes && self.backlog.is_empty()
    }

    /// Index of the link whose server waits for the last acknowledgement.
    pub(crate) fn final_ack_link(&self) -> Option<usize> {
        self.final_ack.as_ref().map(FinalAck::link)
    }

    /// The client's TCP has acknowledged bytes up to `through`. `linked`: the link of
    /// [`final_ack_link`](Self::final_ack_link), if it is open. True: start the acknowledge timer.
    #[must_use]
    pub(crate) fn handle_acknowledged(
        &mut self,
        conn: Conn,
        through: u64,
        linked: Option<&mut Linked>,
    ) -> bool {
        self.acknowledged = through;
        match self.final_ack.take_if(|final_ack| final_ack.is_last(through)) {
            Some(final_ack) => {
                final_ack.send(conn, Some(through), linked);
                false
            }
            None => {
                let final_ack = self.final_ack.as_mut();
                final_ack.is_some_and(|final_ack| final_ack.handle_acknowledged(conn, through, linked))
            }
        }
    }

    pub(crate) fn acknowledge_timer_runs(&self) -> bool {
        self.final_ack.as_ref().is_some_and(FinalAck::timer_runs)
    }

    pub(crate) fn acknowledge_timeout(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        if let Some(final_ack) = &mut self.final_ack {
            final_ack.handle_timeout(conn, linked);
        }
    }

    /// Sends the server the last acknowledgement. Call this when the client's connection has ended.
    pub(crate) fn send_final_ack(&mut self, conn: Conn, linked: Option<&mut Linked>) {
        if let Some(final_ack) = self.final_ack.take() {
            final_ack.send(conn, None, linked);
        }
    }

    /// The link of the server that waits for the last acknowledgement was lost.
    pub(crate) fn cancel_final_ack(&mut self) {
        self.final_ack = None;
    }

    /// Whether the client's TCP has acknowledged bytes since the last call. Bytes that the host has taken do not
    /// count, because the host's buffer may hold them for a long time.
    pub(crate) fn check_progress(&mut self) -> bool {
        let before = core::mem::replace(&mut self.acknowledged_before, self.acknowledged);
        self.acknowledged > before
    }

    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        self.backlog.clear(memory);
    }

    /// The client's memory in the relay. `queued`: bytes in the transport.
    pub(crate) fn held(&mut self, now: Time, queued: usize) -> Held {
        let (Stream::Known { bytes } | Stream::Unknown { bytes }) = self.stream;
        self.unread.note(now, bytes, self.backlog.len() + queued);
        Held {
            waiting_bytes: self.backlog.len(),
            memory_bytes: self.backlog.capacity(),
            age: self.unread.age(now),
        }
    }

    pub(crate) fn status(&self) -> ClientStatus {
        ClientStatus {
            buffered: self.backlog.len(),
            ..ClientStatus::new(self.peer, ClientKind::Lingering, self.since)
        }
    }
}
