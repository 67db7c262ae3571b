//! The boundary below a worker: what carries its connections, and waits for them.
//!
//! The worker has the protocol, the traffic and the measurements; they are the same for all engines. An engine opens
//! connections that behave as non-blocking sockets, and reports which are ready.

mod sockets;
#[cfg(feature = "xdp")]
pub(crate) mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use spillway_moving_client::{Network, Ready};

pub(crate) use sockets::Sockets;

/// Carries one worker's connections.
pub(crate) trait Engine: 'static {
    /// Opens the connections.
    type Network: Network;

    fn network(&self) -> &Self::Network;

    /// From now on, each [`wait`](Self::wait) reports the stream if it is ready for what `interest` requests.
    fn watch(&mut self, stream: &<Self::Network as Network>::Stream, interest: Interest) -> io::Result<()>;

    /// From now on, each [`wait`](Self::wait) reports the kernel's descriptor if it is readable. Only sessions need
    /// this: an engine without sessions returns an error.
    fn watch_descriptor(&mut self, descriptor: BorrowedFd<'_>, token: u64) -> io::Result<()>;

    /// Sends what was written, and waits until a stream or descriptor is ready, a message of the steering thread has
    /// arrived, or `timeout` has passed. May return early. Replaces `ready` by what is ready, possibly nothing.
    fn wait(&mut self, timeout: Duration, ready: &mut Vec<Readiness>) -> io::Result<()>;

    /// As [`wait`](Self::wait), but reports nothing: the next `wait` does.
    fn wait_for_message(&mut self, timeout: Duration) -> io::Result<()>;

    /// A cause, noticed at this end, for which attempts to connect stay unanswered.
    fn explain_silence(&self) -> Option<String> {
        None
    }

    /// Closes the connections of dropped streams, if the kernel does not do so. Waits a limited time.
    fn close(&mut self) {}
}

/// How to watch a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// Number that identifies the stream in reports.
    pub(crate) token: u64,
    /// The stream was not watched before.
    pub(crate) is_new: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A report: a stream or descriptor is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) token: u64,
    pub(crate) ready: Ready,
}
