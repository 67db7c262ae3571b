//! The ends of a socket's queues.

use std::io;
use std::os::fd::OwnedFd;

use crate::error::{CaptureError, system};
use crate::repair::{Queue, Repair};
use crate::system::{UNACKNOWLEDGED, UNREAD, UNSENT, queued};

/// The ends of both queues, as numbers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// RCV.NXT.
    pub received: u32,
    /// Number behind the send queue's last byte, and behind a FIN.
    pub written: u32,
    /// Bytes that the peer has not acknowledged, and a FIN.
    pub unacknowledged: u32,
    /// Bytes that were not sent, and a FIN.
    pub unsent: u32,
    /// Bytes that the application has not read, without a FIN.
    pub unread: u32,
}

impl Ends {
    /// What the peer has sent between an earlier reading and this one: bytes, and whether a FIN.
    pub(crate) fn received_since(&self, earlier: &Ends) -> (u32, bool) {
        let bytes = self.unread.saturating_sub(earlier.unread);
        (bytes, self.received.wrapping_sub(earlier.received) > bytes)
    }

    pub(crate) fn read(repair: Repair<'_>, fd: &OwnedFd) -> Result<Ends, CaptureError> {
        let read = || -> io::Result<Ends> {
            Ok(Ends {
                received: repair.queue_end(Queue::Receive)?,
                written: repair.queue_end(Queue::Send)?,
                unacknowledged: queued(fd, UNACKNOWLEDGED)?,
                unsent: queued(fd, UNSENT)?,
                unread: queued(fd, UNREAD)?,
            })
        };
        read().map_err(system("read the ends of the socket's queues"))
    }
}
