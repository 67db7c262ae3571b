//! A session of the client library, and what its worker notes about it.

use spillway_client::Session;

/// A session as its worker sees it.
#[derive(Debug)]
pub(crate) struct SessionLink {
    pub session: Session,
    /// A server answered once.
    pub is_open: bool,
    /// When that has taken too long.
    pub(super) limit_ns: u64,
    /// Its timer in the worker's heap; others of it there are void.
    pub(super) timer_ns: u64,
    /// It was told to move, and has not yet.
    pub(super) is_moving: bool,
    /// Why nothing carries it, for people.
    pub(super) trouble: Option<String>,
}

impl SessionLink {
    /// One that is being opened, and is to be open by then.
    pub(super) fn new(session: Session, limit_ns: u64) -> SessionLink {
        SessionLink { session, is_open: false, limit_ns, timer_ns: u64::MAX, is_moving: false, trouble: None }
    }
}
