//! What a stack tells its driver.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;

use spillway_transport::{Conn, LostReason};

/// In-order payload of a frame that was just handled, as a range of that frame: it is nowhere copied (PostMan §5.1).
/// Pass it on before [`poll_event`](crate::Stack::poll_event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Whose.
    pub conn: Conn,
    /// Where the bytes are in the frame.
    pub range: Range<usize>,
    /// Stream offset after them.
    pub end: u64,
}

/// What happened to a connection. As [`spillway_transport::Event`], but bytes are owned: they came out of order, or before
/// they could be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackEvent {
    /// It is established.
    Opened {
        /// The other end.
        peer: SocketAddr,
        /// Index of the listener; `None` for connections of ours.
        listener: Option<u16>,
    },
    /// Bytes in order.
    Data {
        /// Stream offset after them.
        end: u64,
        /// Never empty.
        bytes: Vec<u8>,
    },
    /// Ours, acknowledged by the peer.
    Acknowledged {
        /// Stream offset.
        through: u64,
    },
    /// There is room to send again.
    Room,
    /// The peer sends no more.
    Finished,
    /// It is gone; the slot is free when this was polled.
    Lost(LostReason),
}

/// Events that nobody has polled. Empty between two frames where the driver keeps to the rules, so a few entries.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<(Conn, StackEvent)>,
}

impl Events {
    pub(crate) fn push(&mut self, conn: Conn, event: StackEvent) {
        self.queue.push_back((conn, event));
    }

    pub(crate) fn pop(&mut self) -> Option<(Conn, StackEvent)> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
