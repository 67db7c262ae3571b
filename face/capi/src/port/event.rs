//! What a link port tells C.

use std::ffi::{c_char, c_void};
use std::fmt::{Display, Write};
use std::ptr::{null, null_mut};

use crate::argument::PM_ADDRESS_BYTES;

/// Names a client's connection. Never 0; a number that has ended is not another's for a long time.
pub type pm_client = u64;

/// What happened at a link port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum pm_event_kind {
    /// A client connects: answer with `pm_accept` or `pm_refuse`, now or later. Its requests may come before the
    /// answer. `text` is its address.
    PM_CONNECTED = 1,
    /// `data` and `length`: bytes of a client, cut anywhere, at least one. Say `pm_consumed` when they are dealt with: until
    /// then they count against the client's window.
    PM_DATA = 2,
    /// The client sends no more. Replies still reach it.
    PM_FINISHED = 3,
    /// The connection has ended; the number is no longer good, and needs no answer. `context` is there for the last time:
    /// free what it points to. `reason` is 0 when the client closed it, otherwise it was reset.
    PM_CLOSED_BY_CLIENT = 4,
    /// `pm_compose` took less than it was given, and would take more now.
    PM_ROOM = 5,
    /// A helper, or a client that speaks links itself, has opened a link. For the log.
    PM_LINK_OPENED = 6,
    /// A link is gone. Each of its connections was told as closed before; sessions go on. For the log.
    PM_LINK_LOST = 7,
    /// A link claimed a client address that it may not carry; that connection was refused. For the log.
    PM_FORBIDDEN = 8,
    /// A helper wants to go away, and moves its clients itself. For the log.
    PM_LINK_DRAINS = 9,
}

/// An event of a link port.
#[repr(C)]
pub struct pm_event {
    /// Which: a `pm_event_kind`.
    pub kind: i32,
    /// Of `PM_CLOSED_BY_CLIENT`.
    pub reason: i32,
    /// Whose; 0 for events of links.
    pub client: pm_client,
    /// What `pm_set_context` has set for this client; null before.
    pub context: *mut c_void,
    /// Of `PM_DATA`: the bytes, lent until the next call of `pm_decompose` or `pm_port_handle` with this port.
    pub data: *const u8,
    /// How many.
    pub length: usize,
    /// Of `PM_CONNECTED` and of links: who, and why, in words. Otherwise null. Lent likewise.
    pub text: *const c_char,
}

impl pm_event {
    pub(super) fn of(kind: pm_event_kind, client: pm_client) -> pm_event {
        pm_event { kind: kind as i32, client, ..pm_event::nothing() }
    }

    pub(super) fn nothing() -> pm_event {
        pm_event { kind: 0, reason: 0, client: 0, context: null_mut(), data: null(), length: 0, text: null() }
    }
}

/// What is known about a client: the paper's *get_info*.
#[repr(C)]
pub struct pm_info {
    /// `PM_HELPER`: through a helper. `PM_CLIENT`: it speaks links itself.
    pub role: i32,
    /// Its own address.
    pub address: [c_char; PM_ADDRESS_BYTES],
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
