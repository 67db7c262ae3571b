//! Reads the connection of a socket until it has not changed meanwhile.

use std::io;
use std::os::fd::OwnedFd;

use spillway_wire::state::{ConnectionState, QUEUE_BYTES_MAX};

use crate::eligible::{Eligible, check_state};
use crate::ends::Ends;
use crate::error::{CaptureError, system};
use crate::info::{Info, KernelState};
use crate::muted::{Muted, mute, unmute};
use crate::queues::{peek_sending, peek_unread};
use crate::reading::Reading;
use crate::refusal::Refusal;
use crate::repair::Repair;
use crate::system::RepairWindow;

/// Number of times that the queues are read before the capture fails.
const ATTEMPTS: usize = 8;

/// Reads the connection of a socket in repair mode behind a filter, and mutes the socket: with a closed window it sends no
/// further bytes, which the state has as unsent. A segment that had passed the filter on another CPU may still change the
/// queues or open the window meanwhile: then they are read again.
///
/// # Errors
/// The socket is not muted then.
pub(crate) fn dump(
    repair: Repair<'_>,
    fd: &OwnedFd,
    eligible: &Eligible,
) -> Result<(ConnectionState, Muted), CaptureError> {
    let mut window = mute(repair, None)?;
    match read_unchanged(repair, fd, &mut window) {
        Ok(reading) => {
            let muted = Muted { ends: reading.ends, window: reading.window };
            Ok((reading.into_state(eligible), muted))
        }
        Err(error) => {
            unmute(repair, window)?;
            Err(error)
        }
    }
}

/// Reads a muted socket until nothing has changed meanwhile.
fn read_unchanged(
    repair: Repair<'_>,
    fd: &OwnedFd,
    window: &mut RepairWindow,
) -> Result<Reading, CaptureError> {
    for _ in 0..ATTEMPTS {
        let ends = Ends::read(repair, fd)?;
        let reading = read_once(repair, fd, ends, *window)?;
        let now = mute(repair, Some(*window))?;
        match reading {
            Some(reading) if now == *window && Ends::read(repair, fd)? == ends => return Ok(reading),
            _ => *window = now,
        }
    }
    Err(CaptureError::Changing)
}

/// Reads a socket once. `None` if the queues have changed.
fn read_once(
    repair: Repair<'_>,
    fd: &OwnedFd,
    ends: Ends,
    window: RepairWindow,
) -> Result<Option<Reading>, CaptureError> {
    let info = Info::read(fd)?;
    check_state(info.state)?;
    let fin = u32::from(info.state == KernelState::FinWait1);
    let Some(length) = ends.unacknowledged.checked_sub(fin) else { return Ok(None) };
    let longest = length.max(ends.unread);
    if longest as usize > QUEUE_BYTES_MAX {
        return Err(Refusal::Queue(longest).into());
    }
    let read = || -> io::Result<Option<Reading>> {
        let Some(sending) = peek_sending(repair, fd, length as usize)? else { return Ok(None) };
        let Some(unread) = peek_unread(repair, fd, ends.unread as usize)? else { return Ok(None) };
        Ok(Some(Reading {
            info,
            ends,
            window,
            mss: u16::try_from(repair.mss()?).unwrap_or(u16::MAX),
            clock: info.has_timestamps.then(|| repair.clock()).transpose()?,
            sending,
            unread,
        }))
    };
    read().map_err(system("read the socket's queues"))
}
