//! Events of link ports, for C.

use std::ffi::{c_char, c_void};
use std::fmt::{Display, Write};
use std::ptr::{null, null_mut};

use crate::argument::SPW_ADDRESS_BYTES;

/// The number of a client's connection. Never 0. A number is used again only after about 4 billion further connections.
pub type spw_client = u64;

/// Kinds of events of a link port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_event_kind {
    /// A client connects: answer with `spw_accept` or `spw_refuse`, now or later. Requests may arrive before the answer.
    /// `text` is the client's address.
    SPW_CONNECTED = 1,
    /// `data` and `length`: at least one byte of a client's requests; a request may be split over several events at any
    /// byte. Call `spw_consumed` when the bytes are processed: until then they count against the client's window.
    SPW_DATA = 2,
    /// The client sends no more bytes, but still receives replies.
    SPW_FINISHED = 3,
    /// The connection has ended, and the number is not valid any more; no answer is needed. This is the last event with
    /// the client's `context`: free what `context` points to. `reason` is 0 if the client closed the connection.
    /// Otherwise the connection was reset: by the client, because its link was lost, or because a bound was exceeded.
    SPW_DISCONNECTED = 4,
    /// An earlier `spw_compose` accepted only a part of the bytes; now it accepts more.
    SPW_CAN_COMPOSE = 5,
    /// A helper or a library client has opened a link. For the log.
    SPW_LINK_OPENED = 6,
    /// A link was lost. Each of its connections without a session has ended with `SPW_DISCONNECTED` before; its
    /// sessions have no event and continue on another link. For the log.
    SPW_LINK_LOST = 7,
    /// A connection was refused: the link on which it arrived may not carry clients of that address. For the log.
    SPW_FORBIDDEN = 8,
    /// A helper drains, and moves its clients itself. For the log.
    SPW_LINK_DRAINS = 9,
}

/// An event of a link port. `data` and `text` are valid until the next `spw_decompose` or `spw_port_handle` with this port.
#[repr(C)]
pub struct spw_event {
    /// A `spw_event_kind`.
    pub kind: i32,
    /// `SPW_DISCONNECTED`: 0 if the client closed the connection, otherwise the code of the reset's cause.
    pub reason: i32,
    /// The client's number; 0 for events of links.
    pub client: spw_client,
    /// The pointer that `spw_set_context` has set for this client; null before.
    pub context: *mut c_void,
    /// `SPW_DATA`: the bytes.
    pub data: *const u8,
    /// `SPW_DATA`: the number of bytes.
    pub length: usize,
    /// `SPW_CONNECTED` and events of links: addresses and causes, as text. Otherwise null.
    pub text: *const c_char,
}

impl spw_event {
    pub(super) fn of(kind: spw_event_kind, client: spw_client) -> spw_event {
        spw_event { kind: kind as i32, client, ..spw_event::empty() }
    }

    pub(super) fn empty() -> spw_event {
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

/// A client's role, address and byte counts: the paper's *get_info*.
#[repr(C)]
pub struct spw_info {
    /// The role of the client's link: `SPW_HELPER` or `SPW_CLIENT`, a library client's own link.
    pub role: i32,
    /// The client's own address.
    pub address: [c_char; SPW_ADDRESS_BYTES],
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}

/// The last event's text, which C may read until the next call.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn lend(&mut self, text: &impl Display) -> *const c_char {
        self.0.clear();
        // Writing to a `String` does not fail, and these texts contain no zero.
        let _ = write!(self.0, "{text}\0");
        self.0.as_ptr().cast()
    }
}
