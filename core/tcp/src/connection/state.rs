//! The states of a connection.

/// The states of RFC 9293 §3.3.2 except LISTEN: `stack::listeners` has the listeners, and `stack::time_wait` most of
/// TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the RFC defines the names")]
pub(super) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}
