//! Maps errors of the host to reasons of [`LostReason`].

use rustix::io::Errno;
use spillway_transport::LostReason;

/// The reason for the loss of a connection with this error.
pub fn reason(error: Errno) -> LostReason {
    match error {
        Errno::CONNREFUSED => LostReason::Refused,
        Errno::CONNRESET | Errno::PIPE => LostReason::Reset,
        Errno::TIMEDOUT => LostReason::TimedOut,
        _ => LostReason::Failed,
    }
}
