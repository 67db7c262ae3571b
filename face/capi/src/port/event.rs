//! What a link port tells C.

use std::ffi::{c_char, c_void};
use std::fmt::{Display, Write};
use std::ptr::{null, null_mut};

use crate::argument::SPW_ADDRESS_BYTES;

/// Names a client's connection. Never 0; a number that has ended is not another's for a long time.
pub type spw_client = u64;

/// What happened at a link port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_event_kind {
    /// A client connects: answer with `spw_accept` or `spw_refuse`, now or later. Its requests may come before the
    /// answer. `text` is its address.
    SPW_CONNECTED = 1,
    /// `data` and `length`: bytes of a client, cut anywhere, at least one. Say `spw_consumed` when they are dealt with: until
    /// then they count against the client's window.
    SPW_DATA = 2,
    /// The client sends no more. Replies still reach it.
    SPW_FINISHED = 3,
    /// The connection has ended; the number is no longer good, and needs no answer. `context` is there for the last time:
    /// free what it points to. `reason` is 0 when the client closed it, otherwise it was reset.
    SPW_CLOSED_BY_CLIENT = 4,
    /// `spw_compose` took less than it was given, and would take more now.
    SPW_ROOM = 5,
    /// A helper, or a client that speaks links itself, has opened a link. For the log.
    SPW_LINK_OPENED = 6,
    /// A link is gone. Each of its connections was told as closed before; sessions go on. For the log.
    SPW_LINK_LOST = 7,
    /// A link claimed a client address that it may not carry; that connection was refused. For the log.
    SPW_FORBIDDEN = 8,
    /// A helper wants to go away, and moves its clients itself. For the log.
    SPW_LINK_DRAINS = 9,
}

/// An event of a link port.
#[repr(C)]
pub struct spw_event {
    /// Which: a `spw_event_kind`.
    pub kind: i32,
    /// Of `SPW_CLOSED_BY_CLIENT`.
    pub reason: i32,
    /// Whose; 0 for events of links.
    pub client: spw_client,
    /// What `spw_set_context` has set for this client; null before.
    pub context: *mut c_void,
    /// Of `SPW_DATA`: the bytes, lent until the next call of `spw_decompose` or `spw_port_handle` with this port.
    pub data: *const u8,
    /// How many.
    pub length: usize,
    /// Of `SPW_CONNECTED` and of links: who, and why, in words. Otherwise null. Lent likewise.
    pub text: *const c_char,
}

impl spw_event {
    pub(super) fn of(kind: spw_event_kind, client: spw_client) -> spw_event {
        spw_event { kind: kind as i32, client, ..spw_event::nothing() }
    }

    pub(super) fn nothing() -> spw_event {
        spw_event {
            kind: 0,
            reason: 0,
            client: 0,
            context: null_mut(),
            data: null(),
            length: 0,
            text: null(),
        }
    }
}

/// What is known about a client: the paper's *get_info*.
#[repr(C)]
pub struct spw_info {
    /// `SPW_HELPER`: through a helper. `SPW_CLIENT`: it speaks links itself.
    pub role: i32,
    /// Its own address.
    pub address: [c_char; SPW_ADDRESS_BYTES],
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}

/// Room for a text that is lent.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn lend(&mut self, text: &impl Display) -> *const c_char {
        self.0.clear();
        // Writing to a string does not fail; none of these texts has a zero in it.
        let _ = write!(self.0, "{text}\0");
        self.0.as_ptr().cast()
    }
}
