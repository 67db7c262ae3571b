//! A session of the client library, and the worker's state for it.

use spillway_client::Session;

#[derive(Debug)]
pub(crate) struct SessionState {
    pub session: Session,
    /// The first carrier was established.
    pub is_open: bool,
    /// Time at which the session must have its first carrier.
    pub(super) deadline_ns: u64,
    /// Time of the session's valid timer in the worker's heap; other timers of the session there are stale.
    pub(super) timer_ns: u64,
    pub(super) is_moving: bool,
    /// The reason for which the last carrier was lost.
    pub(super) trouble: Option<String>,
}

impl SessionState {
    pub(super) fn new(session: Session, deadline_ns: u64) -> SessionState {
        SessionState {
            session,
            is_open: false,
            deadline_ns,
            timer_ns: u64::MAX,
            is_moving: false,
            trouble: None,
        }
    }
}
