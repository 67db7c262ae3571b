//! A captured socket's connection as a state.
//!
//! The kernel does not reveal initial sequence numbers, so the numbers of the state begin at the capture: the state's initial
//! numbers are those before the first number that the state names.

use std::io;
use std::os::fd::OwnedFd;

use spillway_wire::state::{
    Agreed, ConnectionState, Finish, QUEUE_BYTES_MAX, Receiving, Sending, Stage, Stamps,
};
use spillway_wire::{Bytes, Chunks};

use crate::eligible::{Eligible, check_state};
use crate::error::{CaptureError, system};
use crate::info::{Info, KernelState};
use crate::queues::{peek_sending, peek_unread};
use crate::refusal::Refusal;
use crate::repair::{Queue, Repair};
use crate::system::{RepairWindow, UNACKNOWLEDGED, UNREAD, UNSENT, queued};

/// Number of times that the queues are read before the capture fails.
const ATTEMPTS: usize = 8;

/// The ends of both queues, as numbers of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// RCV.NXT.
    pub received: u32,
    /// Number behind the send queue's last byte, and behind a FIN.
    written: u32,
    /// Bytes that the peer has not acknowledged, and a FIN.
    unacknowledged: u32,
    /// Bytes that were not sent, and a FIN.
    unsent: u32,
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

/// What was read of a socket between two equal readings of the queues' ends.
struct Reading {
    info: Info,
    ends: Ends,
    window: RepairWindow,
    mss: u16,
    clock: Option<u32>,
    sending: Bytes,
    unread: Bytes,
}

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
    let result = read_unchanged(repair, fd, &mut window);
    match result {
        Ok((reading, ends)) => Ok((reading.into_state(eligible), Muted { ends, window })),
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
) -> Result<(Reading, Ends), CaptureError> {
    for _ in 0..ATTEMPTS {
        let ends = Ends::read(repair, fd)?;
        let reading = Reading::take(repair, fd, ends, *window)?;
        let now = mute(repair, Some(*window))?;
        match reading {
            Some(reading) if now == *window && Ends::read(repair, fd)? == ends => return Ok((reading, ends)),
            _ => *window = now,
        }
    }
    Err(CaptureError::Changing)
}

/// What [`dump`] leaves behind at the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Muted {
    /// The queues' ends in the state.
    pub ends: Ends,
    /// The windows in the state. The socket's own copy says that the peer's window is closed.
    pub window: RepairWindow,
}

/// Closes the peer's window in the socket's view. Returns the windows as they were before the first call: `known`, unless a
/// segment has changed them since.
fn mute(repair: Repair<'_>, known: Option<RepairWindow>) -> Result<RepairWindow, CaptureError> {
    let mute = || -> io::Result<RepairWindow> {
        let now = repair.window()?;
        let closed = RepairWindow { snd_wnd: 0, ..now };
        if let Some(known) = known
            && closed == (RepairWindow { snd_wnd: 0, ..known })
            && now.snd_wnd == 0
        {
            return Ok(known);
        }
        repair.set_window(closed)?;
        Ok(now)
    };
    mute().map_err(system("close the socket's window"))
}

/// Gives the socket back the peer's window, unless a segment has set it since.
pub(crate) fn unmute(repair: Repair<'_>, window: RepairWindow) -> Result<(), CaptureError> {
    let unmute = || -> io::Result<()> {
        let now = repair.window()?;
        let is_muted = now.snd_wnd == 0 && now.snd_wl1 == window.snd_wl1;
        if is_muted { repair.set_window(RepairWindow { snd_wnd: window.snd_wnd, ..now }) } else { Ok(()) }
    };
    unmute().map_err(system("open the socket's window again"))
}

impl Reading {
    /// `None` if the queues have changed.
    fn take(
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

    fn into_state(self, eligible: &Eligible) -> ConnectionState {
        let (sending, receiving) = (self.sending(), self.receiving());
        let una = sending.una;
        let (window_update, receiving) = self.with_window_update(una, receiving);
        // The application may not have read the peer's FIN yet if there are bytes before it: the FIN is then part of the
        // receiving direction only.
        let stage = match self.info.state {
            KernelState::FinWait1 => Stage::FinWait1,
            KernelState::FinWait2 => Stage::FinWait2,
            KernelState::CloseWait if receiving.late.is_empty() => Stage::CloseWait,
            _ => Stage::Established,
        };
        ConnectionState {
            local: eligible.local,
            peer: eligible.peer,
            stage,
            listener: None,
            sending: Sending { window_update, ..sending },
            receiving,
            agreed: Agreed {
                mss: self.mss,
                has_sack: self.info.has_sack,
                stamps: self.clock.map(|clock| Stamps {
                    clock: latest_clock(clock),
                    recent: None,
                    recent_age_ns: 0,
                }),
            },
            received_age_ns: u64::try_from(self.info.received_age.as_nanos()).unwrap_or(u64::MAX),
            recovery: None,
            attachment: None,
        }
    }

    fn sending(&self) -> Sending {
        let ends = &self.ends;
        let finish = match self.info.state {
            KernelState::FinWait1 => Finish::Unacknowledged,
            KernelState::FinWait2 => Finish::Acknowledged,
            _ => Finish::No,
        };
        let una = ends.written.wrapping_sub(ends.unacknowledged);
        // An acknowledged FIN has a number of its own before SND.UNA.
        let acknowledged_fin = u64::from(finish == Finish::Acknowledged);
        let una_number = 1 + acknowledged_fin;
        let initial = una.wrapping_sub(1 + u32::from(finish == Finish::Acknowledged));
        Sending {
            initial,
            una: una_number,
            nxt: una_number + u64::from(ends.unacknowledged.saturating_sub(ends.unsent)),
            window: self.window.snd_wnd.into(),
            window_largest: self.window.max_window.max(self.window.snd_wnd).into(),
            window_update: None,
            scale: self.info.peer_scale,
            finish,
            wants_room: false,
            is_watched: false,
            reported_acknowledged: 0,
            queue: Chunks::from(self.sending.clone()),
        }
    }

    fn receiving(&self) -> Receiving {
        let has_fin = self.info.state == KernelState::CloseWait;
        let ends = &self.ends;
        let first = self.first_received();
        let number = |seq: u32| u64::from(seq.wrapping_sub(first.wrapping_sub(1)));
        let end = ends.received.wrapping_sub(u32::from(has_fin));
        let unread_from = number(end.wrapping_sub(ends.unread));
        // The application has read everything before the FIN: the FIN counts as passed to it.
        let is_past_fin = has_fin && ends.unread == 0;
        // Without scaling the kernel may note a larger window than it could advertise.
        let window = u64::from(self.window.rcv_wnd).min(u64::from(u16::MAX) << self.info.own_scale);
        let acknowledged = number(self.window.rcv_wup);
        let next = unread_from + u64::from(is_past_fin);
        Receiving {
            initial: first.wrapping_sub(1),
            next,
            granted: next,
            edge: acknowledged + window,
            window_largest: window,
            scale: self.info.own_scale,
            fin: has_fin.then(|| number(end)),
            reported_finished: false,
            gate: None,
            acknowledged,
            owes: self.window.rcv_wup != ends.received,
            late: if self.unread.is_empty() { vec![] } else { vec![(unread_from, self.unread.clone())] },
        }
    }

    /// The first number of the peer's stream that the state names: of the unread bytes, of the last acknowledgement, or of
    /// the segment that has set the peer's window, whichever is first.
    fn first_received(&self) -> u32 {
        let has_fin = self.info.state == KernelState::CloseWait;
        let unread_from = self.ends.received.wrapping_sub(u32::from(has_fin)).wrapping_sub(self.ends.unread);
        [self.window.rcv_wup, self.window.snd_wl1].into_iter().fold(unread_from, |first, seq| {
            if first.wrapping_sub(seq).cast_signed() > 0 { seq } else { first }
        })
    }

    /// SND.WL1 and SND.WL2. The kernel keeps no SND.WL2 and uses SND.UNA instead, which has the same effect, because
    /// acknowledgements before SND.UNA never set the window (RFC 9293 §3.10.7.4).
    fn with_window_update(&self, una: u64, receiving: Receiving) -> (Option<(u64, u64)>, Receiving) {
        let segment = self.window.snd_wl1.wrapping_sub(receiving.initial);
        // A number behind all that has arrived could only be one from before: sequence numbers have wrapped since.
        let is_known = segment.cast_signed() > 0;
        (is_known.then_some((u64::from(segment), una)), receiving)
    }
}

/// The latest value that the peer may have seen of a clock as [`Repair::clock`] returns it. The lowest bit is not part of the
/// clock: it is 0 for milliseconds, and the true value may be larger by 1.
fn latest_clock(clock: u32) -> u32 {
    clock | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exported_clock_never_goes_back() {
        // 100 stands for 100 or 101 milliseconds, 101 for 100 or 101 microseconds.
        assert_eq!(latest_clock(100), 101);
        assert_eq!(latest_clock(101), 101);
    }
}
