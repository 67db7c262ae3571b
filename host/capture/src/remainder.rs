//! What a captured socket still gets of the peer after its state was read. The new owner must get all of it: nothing else
//! acknowledges a copy, and the peer has an acknowledgement for each late byte, so it sends none of them again.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use spillway_wire::packet::tcp::Timestamps;
use spillway_wire::state::ConnectionState;

use crate::copies::Inbox;
use crate::ends::{self, Ends};
use crate::error::{CaptureError, system};
use crate::info::{Info, Progress};
use crate::movable::check_urgent;
use crate::muted::Muted;
use crate::peer_packet::{PeerPacket, PeerSegment};
use crate::repair::Repair;

/// Number of times that late bytes are read before the caller must try again.
const ATTEMPTS: usize = 8;
/// Longest packet that is made: an IP packet of any family may have this length.
const PACKET_BYTES_MAX: usize = 65_535;

/// Late bytes, and copies of what the filter has not let pass.
#[derive(Debug)]
pub(crate) struct Remainder {
    late: Late,
    /// `None` if the filter drops.
    inbox: Option<Inbox>,
}

/// Bytes and a FIN that have passed the filter on another CPU, and were queued and acknowledged after the dump. They stay in
/// the socket's queue, so they are read again to be repeated, and no copy is kept.
#[derive(Debug)]
struct Late {
    /// What the state has.
    exported: Position,
    /// What the new owner has, or gets with `packets`, unless one of its packets was lost.
    given: Position,
    /// The largest number of received sequence numbers so far, since the socket exists.
    received_max: u64,
    /// How segments of the peer begin; their sequence number is that of `given`.
    head: PeerSegment,
    packets: VecDeque<PeerPacket>,
}

/// A place in the peer's stream.
#[derive(Clone, Copy, Debug)]
struct Position {
    ends: Ends,
    progress: Progress,
}

impl Remainder {
    pub(crate) fn new(state: &ConnectionState, muted: Muted, inbox: Option<Inbox>) -> Remainder {
        let stamps = state.agreed.stamps.and_then(|stamps| {
            // An echo of the last timestamp sent measures no round trip, because the segment acknowledges nothing new.
            stamps.recent.map(|value| Timestamps { value, echo: stamps.clock })
        });
        let scaled = muted.window.snd_wnd.checked_shr(state.sending.scale.into()).unwrap_or(0);
        let head = PeerSegment {
            peer: state.peer,
            local: state.local,
            seq: muted.ends.received,
            ack: muted.ends.written.wrapping_sub(muted.ends.unacknowledged),
            has_fin: false,
            window: u16::try_from(scaled).unwrap_or(u16::MAX),
            stamps,
        };
        let exported = Position { ends: muted.ends, progress: muted.progress };
        let received_max = exported.progress.received;
        let late = Late { exported, given: exported, received_max, head, packets: VecDeque::new() };
        Remainder { late, inbox }
    }

    /// Returns all late bytes again, because a packet with such bytes may have been lost, or the new owner may have had no room
    /// for it. Copies are not repeated: the peer does that.
    pub(crate) fn repeat_late(&mut self) {
        self.late.given = self.late.exported;
        self.late.packets.clear();
    }

    /// Number of late bytes so far, and of a FIN.
    pub(crate) fn late_numbers(&self) -> u64 {
        self.late.received_max - self.late.exported.progress.received
    }

    /// The next packet for the new owner, if there is one now. Late bytes come first: they had arrived first.
    pub(crate) fn next(&mut self, fd: &OwnedFd) -> Result<Option<PeerPacket>, CaptureError> {
        match self.late.next(fd)? {
            Some(packet) => Ok(Some(packet)),
            None => self.next_copy(),
        }
    }

    /// The next copy, if there is one. Late bytes are in the socket's own queue.
    pub(crate) fn next_copy(&mut self) -> Result<Option<PeerPacket>, CaptureError> {
        self.inbox.as_ref().map_or(Ok(None), Inbox::next)
    }
}

impl Late {
    fn next(&mut self, fd: &OwnedFd) -> Result<Option<PeerPacket>, CaptureError> {
        if self.packets.is_empty() {
            self.read(fd)?;
        }
        Ok(self.packets.pop_front())
    }

    /// Reads what is new in the receive queue until nothing has changed meanwhile.
    fn read(&mut self, fd: &OwnedFd) -> Result<(), CaptureError> {
        let repair = Repair::of(fd);
        let mut progress = Info::read(fd)?.progress;
        for _ in 0..ATTEMPTS {
            if progress.received == self.given.progress.received {
                return Ok(());
            }
            check_urgent(fd)?;
            let read = || ends::read(repair, fd, ends::lengths(fd)?, 0);
            let contents = read().map_err(system("read late bytes of the socket"))?;
            let now = Info::read(fd)?.progress;
            if now == progress
                && let Some(unread) = contents.unread
                && let Some(has_fin) = has_late_fin(&self.given.ends, &contents.ends)
            {
                // `unread` is as long as the number in `contents.ends`, which is not smaller than the number before.
                let late = unread.get(self.given.ends.unread as usize..).unwrap_or_default();
                self.packets = self.segments(late, has_fin)?;
                self.given = Position { ends: contents.ends, progress: now };
                self.received_max = self.received_max.max(now.received);
                return Ok(());
            }
            progress = now;
        }
        Err(CaptureError::Changing)
    }

    fn segments(&self, bytes: &[u8], has_fin: bool) -> Result<VecDeque<PeerPacket>, CaptureError> {
        let step = PACKET_BYTES_MAX - PeerPacket::header_bytes(self.head.local);
        // A FIN alone is a segment without data.
        let pieces = bytes.len().div_ceil(step).max(usize::from(has_fin));
        (0..pieces)
            .map(|piece| {
                let (from, to) = (piece * step, (piece * step + step).min(bytes.len()));
                let seq = self.given.ends.received.wrapping_add(from as u32);
                let has_fin = has_fin && piece + 1 == pieces;
                PeerPacket::made(&PeerSegment { seq, has_fin, ..self.head }, &bytes[from..to])
            })
            .collect()
    }
}

/// Whether a FIN is among the numbers that were received since an earlier reading. The state does not say it: after a FIN in
/// FIN-WAIT-2 the kernel's socket is in CLOSED. `None` if the numbers and the bytes that can be read do not belong together.
fn has_late_fin(before: &Ends, now: &Ends) -> Option<bool> {
    let bytes = now.unread.checked_sub(before.unread)?;
    match now.received.wrapping_sub(before.received).checked_sub(bytes)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_fin_is_a_number_without_a_byte() {
        let ends = |received, unread| Ends { received, written: 0, unacknowledged: 0, unread };
        let before = ends(u32::MAX - 1, 5);
        assert_eq!(has_late_fin(&before, &before), Some(false));
        assert_eq!(has_late_fin(&before, &ends(8, 15)), Some(false));
        assert_eq!(has_late_fin(&before, &ends(9, 15)), Some(true));
        assert_eq!(has_late_fin(&before, &ends(u32::MAX, 5)), Some(true));
        // Reads end at an urgent byte, or the application has read.
        assert_eq!(has_late_fin(&before, &ends(10, 15)), None);
        assert_eq!(has_late_fin(&before, &ends(8, 16)), None);
        assert_eq!(has_late_fin(&before, &ends(8, 4)), None);
    }
}
