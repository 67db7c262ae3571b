//! The ends of a socket's queues, and the bytes in them.

use std::io;
use std::os::fd::OwnedFd;

use spillway_wire::Bytes;

use crate::queues::{peek_sending, peek_unread};
use crate::repair::Repair;
use crate::system::{UNACKNOWLEDGED, UNREAD, queued};

/// The ends of both queues, as numbers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// RCV.NXT.
    pub received: u32,
    /// Number behind the send queue's last byte, and behind a FIN.
    pub written: u32,
    /// Bytes that the peer has not acknowledged, and a FIN.
    pub unacknowledged: u32,
    /// Bytes that the application has not read, without a FIN.
    pub unread: u32,
}

/// Both queues. `None` instead of a queue whose length has changed meanwhile.
#[derive(Debug)]
pub(crate) struct Contents {
    pub ends: Ends,
    /// The unacknowledged and the unsent bytes.
    pub sending: Option<Bytes>,
    /// The bytes that the application has not read.
    pub unread: Option<Bytes>,
}

/// The lengths of both queues: unacknowledged and unsent bytes with a FIN, and unread bytes without.
pub(crate) fn lengths(fd: &OwnedFd) -> io::Result<(u32, u32)> {
    Ok((queued(fd, UNACKNOWLEDGED)?, queued(fd, UNREAD)?))
}

/// Reads both queues. `fin`: 1 if the send queue ends with a FIN, otherwise 0.
pub(crate) fn read(
    repair: Repair<'_>,
    fd: &OwnedFd,
    (unacknowledged, unread): (u32, u32),
    fin: u32,
) -> io::Result<Contents> {
    let receive = || Ok((repair.selected_end()?, peek_unread(fd, unread as usize)?));
    let send = || {
        let length = unacknowledged.checked_sub(fin);
        let sending = length.map(|length| peek_sending(fd, length as usize)).transpose()?.flatten();
        Ok((repair.selected_end()?, sending))
    };
    let ((received, unread_bytes), (written, sending)) = repair.with_queues(receive, send)?;
    let ends = Ends { received, written, unacknowledged, unread };
    Ok(Contents { ends, sending, unread: unread_bytes })
}
