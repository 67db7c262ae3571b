//! Errors, in the order of who can do something about them.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_wire::packet::PacketError;

use crate::refusal::Refusal;

/// Why a connection was not exported, imported or continued.
#[derive(Debug)]
pub enum CaptureError {
    /// The connection does not move.
    Refused(Refusal),
    /// The connection's queues changed during each attempt to read them.
    Changing,
    /// The state contradicts itself; the text names the field.
    Contradiction(&'static str),
    /// The kernel cannot continue a connection with this property, which the text names.
    NotOfKernels(&'static str),
    /// The host has a socket with these addresses.
    Present(SocketAddr, SocketAddr),
    /// The host does not have the state's local address.
    NoAddress(SocketAddr),
    /// The process may not use repair mode.
    Permission,
    /// The process may not inject segments.
    PermissionToInject,
    /// The kernel has no repair mode.
    NoRepairMode,
    /// The bytes are not a TCP packet.
    NotAPacket(PacketError),
    /// The kernel has not taken a segment that was injected on behalf of the peer.
    NotInjected,
    /// A system call failed; the text says what it was to do.
    System(&'static str, io::Error),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Refused(refusal) => refusal.fmt(f),
            CaptureError::Changing => f.write_str(
                "the connection's queues changed during each attempt to read them: hold its segments and its threads \
                 first",
            ),
            CaptureError::Contradiction(field) => write!(f, "the state contradicts itself: {field}"),
            CaptureError::NotOfKernels(property) => {
                write!(f, "the kernel cannot continue a connection with {property}")
            }
            CaptureError::Present(local, peer) => write!(
                f,
                "this host has a socket for {local} and {peer} already: close it silently before the import"
            ),
            CaptureError::NoAddress(local) => {
                write!(f, "this host does not have the address {}: add it, or change the state's", local.ip())
            }
            CaptureError::Permission => {
                f.write_str("repair mode needs CAP_NET_ADMIN in the socket's network namespace")
            }
            CaptureError::PermissionToInject => {
                f.write_str("segments on behalf of a peer need CAP_NET_RAW in this network namespace")
            }
            CaptureError::NoRepairMode => f.write_str(
                "this kernel has no repair mode (TCP_REPAIR) that ends without a probe: Linux 4.19 or later has it",
            ),
            CaptureError::NotAPacket(error) => write!(f, "not a TCP packet of a peer: {error}"),
            CaptureError::NotInjected => f.write_str(
                "the kernel has not taken a segment on behalf of the peer: `lo` must be up, and packet filters must \
                 let segments of the peer pass there",
            ),
            CaptureError::System(what, source) => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for CaptureError {}

impl From<Refusal> for CaptureError {
    fn from(refusal: Refusal) -> CaptureError {
        CaptureError::Refused(refusal)
    }
}

/// A step that failed, and the value that it would have used up, unchanged.
#[derive(Debug)]
pub struct Failed<T> {
    /// The socket or connection, as before the step.
    pub kept: T,
    /// Why the step failed.
    pub error: CaptureError,
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for Failed<T> {}

/// An error of the system while it was to do `what`.
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> CaptureError {
    move |source| CaptureError::System(what, source)
}
