//! Reads the connection of a socket until it has not changed meanwhile.

use std::io;
use std::os::fd::OwnedFd;

use crate::ends::{Contents, lengths, read};
use crate::error::{CaptureError, system};
use crate::info::{Info, KernelState};
use crate::movable::{check_length, check_state, check_urgent};
use crate::muted::{Muted, mute, unmute};
use crate::reading::Reading;
use crate::repair::Repair;
use crate::system::RepairWindow;

/// Number of times that the queues are read before the capture fails.
const ATTEMPTS: usize = 8;

/// Reads the connection of a socket in repair mode behind a filter, and mutes the socket: with a closed window it sends no
/// further bytes, which the state has as unsent. A segment that had passed the filter on another CPU may still change the
/// queues or open the window meanwhile: then they are read again. `info`: any earlier reading of the socket. If nothing has
/// changed since, it belongs to what is read here.
///
/// # Errors
/// The socket is not muted then.
pub(crate) fn dump(repair: Repair<'_>, fd: &OwnedFd, info: Info) -> Result<(Reading, Muted), CaptureError> {
    let mut window = mute(repair, None)?;
    match read_unchanged(repair, fd, info, &mut window) {
        Ok(reading) => {
            let muted = Muted { ends: reading.ends, progress: reading.info.progress, window: reading.window };
            Ok((reading, muted))
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
    mut info: Info,
    window: &mut RepairWindow,
) -> Result<Reading, CaptureError> {
    for _ in 0..ATTEMPTS {
        let reading = read_once(repair, fd, info, *window)?;
        let (window_now, info_now) = (mute(repair, Some(*window))?, Info::read(fd)?);
        match reading {
            Some(reading) if window_now == *window && info_now.progress == info.progress => {
                return Ok(reading);
            }
            _ => (*window, info) = (window_now, info_now),
        }
    }
    Err(CaptureError::Changing)
}

/// Reads a socket once. `None` if the queues have changed.
fn read_once(
    repair: Repair<'_>,
    fd: &OwnedFd,
    info: Info,
    window: RepairWindow,
) -> Result<Option<Reading>, CaptureError> {
    check_state(info.state())?;
    check_urgent(fd)?;
    let lengths = lengths(fd).map_err(system("read the lengths of the socket's queues"))?;
    check_length(lengths.0.max(lengths.1))?;
    let fin = u32::from(info.state() == KernelState::FinWait1);
    let read = || -> io::Result<Option<Reading>> {
        let contents = read(repair, fd, lengths, fin)?;
        let Contents { ends, sending: Some(sending), unread: Some(unread) } = contents else {
            return Ok(None);
        };
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
