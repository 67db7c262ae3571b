//! What has gone wrong, for the log.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use spillway_bpf::BpfError;
use spillway_capture::{CaptureError, InjectError};

/// Maximum number of faults that wait. Beyond it further ones are dropped.
const FAULTS_MAX: usize = 64;

/// What has gone wrong with a connection.
#[derive(Debug)]
pub enum Fault {
    /// The connection was not exported, and continues.
    NotExported(SocketAddr, CaptureError),
    /// A connection that was to come was refused.
    NotImported(SocketAddr, CaptureError),
    /// A connection that has not moved does not continue.
    NotResumed(SocketAddr, CaptureError),
    /// A part of the connection's state was not restored: the peer repeats what is missing, or waits for it.
    Incomplete(SocketAddr, CaptureError),
    /// A packet of the peer was not given to the connection's socket. The peer sends it again.
    NotInjected(SocketAddr, InjectError),
    /// What the peer has sent to the captured socket cannot be read.
    NotForwarded(SocketAddr, CaptureError),
    /// Packets are not held as they should be.
    NotHeld(BpfError),
    /// It is not known which sockets the kernel has removed.
    NotWatched(BpfError),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotExported(peer, error) => write!(f, "connection of {peer} not moved: {error}"),
            Fault::NotImported(peer, error) => write!(f, "connection of {peer} refused: {error}"),
            Fault::NotResumed(peer, error) => {
                write!(f, "connection of {peer}, which has not moved, cannot continue: {error}")
            }
            Fault::Incomplete(peer, error) => write!(f, "connection of {peer} restored in part: {error}"),
            Fault::NotInjected(peer, error) => {
                write!(f, "packet of {peer} lost, which will be repeated: {error}")
            }
            Fault::NotForwarded(peer, error) => {
                write!(f, "packets of {peer} that arrived during its move are not forwarded: {error}")
            }
            Fault::NotWatched(error) => write!(f, "the ends of sockets are not known: {error}"),
            Fault::NotHeld(error) => write!(f, "packets of connections that move are not held: {error}"),
        }
    }
}

/// Faults that wait for the log.
#[derive(Debug, Default)]
pub(crate) struct Faults(VecDeque<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        if self.0.len() < FAULTS_MAX {
            self.0.push_back(fault);
        }
    }

    pub(crate) fn poll(&mut self) -> Option<Fault> {
        self.0.pop_front()
    }
}
