//! What a session tells C.

use std::ffi::c_char;

/// What happened to a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_session_event_kind {
    /// Another route carries it from now on, or the first one does.
    SPW_SESSION_MOVED = 1,
    /// A route carries it no more, or did not come to it; `why` tells the reason. Another is tried.
    SPW_SESSION_CARRIER_LOST = 2,
    /// The server's application accepted it.
    SPW_SESSION_ACCEPTED = 3,
    /// `spw_send` has room again after it took less than it was given.
    SPW_SESSION_ROOM = 4,
}

/// An event of a session. None needs an answer.
#[repr(C)]
pub struct spw_session_event {
    /// Which: a `spw_session_event_kind`.
    pub kind: i32,
    /// Of *moved* and *carrier lost*: the route, a helper's number or `SPW_DIRECT`.
    pub route: u32,
    /// Of these two: the route's address. Otherwise empty, never null. Lent until the next call with this session.
    pub address: *const c_char,
    /// Of *carrier lost*: why, in words. Otherwise empty, never null. Lent likewise.
    pub why: *const c_char,
}
