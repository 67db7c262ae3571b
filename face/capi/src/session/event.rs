//! Events of sessions, for C.

use std::ffi::c_char;

/// Kinds of events of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_session_event_kind {
    /// A route carries the session: the first one, or another one than before.
    SPW_SESSION_MOVED = 1,
    /// A route does not carry the session any more, or could not be used; `why` is the cause. Another route is tried.
    SPW_SESSION_CARRIER_LOST = 2,
    /// The server's application accepted the session.
    SPW_SESSION_ACCEPTED = 3,
    /// An earlier `spw_send` accepted only a part of its bytes. Now there is room again.
    SPW_SESSION_ROOM = 4,
}

/// An event of a session. It needs no answer. Texts are valid until the next call with this session, and never null.
#[repr(C)]
pub struct spw_session_event {
    /// A `spw_session_event_kind`.
    pub kind: i32,
    /// *Moved* and *carrier lost*: the route, a helper's number or `SPW_DIRECT`.
    pub route: u32,
    /// *Moved* and *carrier lost*: the route's address. Otherwise empty.
    pub address: *const c_char,
    /// *Carrier lost*: the cause, as text. Otherwise empty.
    pub why: *const c_char,
}
