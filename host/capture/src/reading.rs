//! What was read of a socket, as a state.
//!
//! The kernel does not reveal initial sequence numbers, so the numbers of the state begin at the capture: the state's initial
//! numbers are those before the first number that the state names.

use std::time::Duration;

use spillway_wire::state::{Agreed, ConnectionState, Finish, Receiving, Sending, Stage, Stamps};
use spillway_wire::{Bytes, Chunks};

use crate::eligible::Eligible;
use crate::ends::Ends;
use crate::info::{Info, KernelState};
use crate::programs::PeerStamp;
use crate::system::RepairWindow;

/// What was read of a socket between two equal readings of the queues' ends.
#[derive(Debug)]
pub(crate) struct Reading {
    pub info: Info,
    pub ends: Ends,
    pub window: RepairWindow,
    pub mss: u16,
    pub clock: Option<u32>,
    pub sending: Bytes,
    pub unread: Bytes,
}

impl Reading {
    /// `stamp`: TS.Recent, if it is known.
    pub(crate) fn into_state(self, eligible: &Eligible, stamp: Option<PeerStamp>) -> ConnectionState {
        let (sending, receiving) = (self.sending(), self.receiving());
        let window_update = self.window_update(sending.una, receiving.initial);
        // The application may not have read the peer's FIN yet if there are bytes before it: the FIN is then part of the
        // receiving direction only.
        let stage = match self.info.state() {
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
                    recent: stamp.map(|stamp| stamp.recent),
                    recent_age_ns: stamp.map_or(0, |stamp| nanoseconds(stamp.age)),
                }),
            },
            received_age_ns: nanoseconds(self.info.received_age),
            recovery: None,
            attachment: None,
        }
    }

    fn sending(&self) -> Sending {
        let ends = &self.ends;
        let finish = match self.info.state() {
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
            nxt: una_number + u64::from(ends.unacknowledged.saturating_sub(self.info.progress.unsent)),
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
        let has_fin = self.info.state() == KernelState::CloseWait;
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
        let has_fin = self.info.state() == KernelState::CloseWait;
        let unread_from = self.ends.received.wrapping_sub(u32::from(has_fin)).wrapping_sub(self.ends.unread);
        [self.window.rcv_wup, self.window.snd_wl1].into_iter().fold(unread_from, |first, seq| {
            if first.wrapping_sub(seq).cast_signed() > 0 { seq } else { first }
        })
    }

    /// SND.WL1 and SND.WL2. The kernel keeps no SND.WL2 and uses SND.UNA instead, which has the same effect, because
    /// acknowledgements before SND.UNA never set the window (RFC 9293 §3.10.7.4). `initial`: of the peer's stream.
    fn window_update(&self, una: u64, initial: u32) -> Option<(u64, u64)> {
        let segment = self.window.snd_wl1.wrapping_sub(initial);
        // A number behind all that has arrived could only be one from before: sequence numbers have wrapped since.
        let is_known = segment.cast_signed() > 0;
        is_known.then_some((u64::from(segment), una))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
