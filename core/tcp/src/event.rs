//! Events that a stack reports to its driver.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;

use spillway_transport::{Conn, LostReason};

/// In-order payload of the frame that was just handled, as a range of that frame: the bytes are not copied (PostMan
/// §5.1). Pass it to the application before calling [`poll_event`](crate::Stack::poll_event).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The connection that received the bytes.
    pub conn: Conn,
    /// Position of the bytes in the frame.
    pub range: Range<usize>,
    /// Stream offset after the bytes.
    pub end: u64,
}

/// An event of a connection. Like [`spillway_transport::Event`], but it owns its bytes: they arrived out of order, or
/// before they could be delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackEvent {
    /// The connection is established.
    Opened {
        /// Address and port of the peer.
        peer: SocketAddr,
        /// Index of the listener; `None` for connections that this end opened.
        listener: Option<u16>,
    },
    /// In-order bytes.
    Data {
        /// Stream offset after the bytes.
        end: u64,
        /// The bytes; never empty.
        bytes: Vec<u8>,
    },
    /// The peer has acknowledged bytes of this end.
    Acknowledged {
        /// Stream offset up to which all bytes are acknowledged.
        through: u64,
    },
    /// The send buffer has room again.
    Room,
    /// The peer has finished: its FIN has arrived after all bytes.
    Finished,
    /// The connection is over. Polling this event frees its slot.
    Lost(LostReason),
}

/// Events not polled yet. The queue stays short, because a driver must empty it after each frame.
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
