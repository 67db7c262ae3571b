//! A session of the client library, and the worker's state for it.

use spillway_client::Session;

#[derive(Debug)]
pub(crate) struct SessionState {
    pub session: Session,
    /// The first carrier was established.
    pub is_open: bool,
    /// Deadline of the first carrier.
    pub(super) limit_ns: u64,
    /// Time of the session's valid timer in the worker's heap; other timers of the session there are stale.
    pub(super) timer_ns: u64,
    /// A commanded move is in progress.
    pub(super) is_moving: bool,
    /// Why the last carrier was lost, for people.
    pub(super) trouble: Option<String>,
}

impl SessionState {
    /// A session that must open by `limit_ns`.
    pub(super) fn new(session: Session, limit_ns: u64) -> SessionState {
        SessionState { session, is_open: false, limit_ns, timer_ns: u64::MAX, is_moving: false, trouble: None }
    }
}
