//! What an error of the host says about a connection.

use rustix::io::Errno;
use spillway_transport::LostReason;

/// Why a connection is lost that met this error.
pub fn reason(error: Errno) -> LostReason {
    match error {
        Errno::CONNREFUSED => LostReason::Refused,
        Errno::CONNRESET | Errno::PIPE => LostReason::Reset,
        Errno::TIMEDOUT => LostReason::TimedOut,
        _ => LostReason::Failed,
    }
}
