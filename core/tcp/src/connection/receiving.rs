//! The receiving direction: bytes in order, waiting bytes, and the advertised window.

use alloc::vec::Vec;
use core::ops::Range;

use spillway_wire::state;

use super::gate::Gate;
use crate::narrow::{in_field, in_memory};
use crate::reassembly::{Inserted, Reassembly};
use crate::seq::{Base, FIRST, Seq, extended};

/// The state of the peer's stream. Sequence numbers are extended; the first byte is `FIRST + 1`.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) base: Base,
    /// All bytes before this number were delivered to the application. Never beyond `granted`.
    pub(super) next: Seq,
    /// End of the bytes that the application has granted.
    pub(super) granted: Seq,
    /// The rightmost window edge advertised so far: bytes before it are accepted (RFC 7323 §2.4).
    pub(super) edge: Seq,
    /// The window edge advertised last; less than one unit of the scale left of `edge`.
    pub(super) offered: Seq,
    /// The largest window that could be advertised so far: for silly window avoidance.
    pub(super) largest: u64,
    /// The scale of advertised windows in bits; 0 without scaling (RFC 7323 §2).
    pub(super) scale: u8,
    /// Sequence number of the peer's FIN, once it has arrived.
    pub(super) fin: Option<Seq>,
    /// Bytes that were received out of order, or before they were granted.
    pub(super) waiting: Reassembly,
    pub(super) gate: Gate,
}

/// The result of taking a segment's payload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TakenPayload {
    /// The part of the payload that is next in order.
    pub(super) direct: Option<Range<usize>>,
    /// The first range of bytes that had arrived before, to be reported by D-SACK (RFC 2883).
    pub(super) duplicate: Option<(Seq, Seq)>,
    /// [`Receiving::next`] has advanced.
    pub(super) is_advanced: bool,
    /// Bytes are or were missing, or wait for a grant, or arrived twice: an acknowledgement is due at once (RFC 5681
    /// §4.2).
    pub(super) is_out_of_order: bool,
    /// Bytes are or were missing, or arrived twice: packets are lost or reordered.
    pub(super) is_disordered: bool,
    /// Bytes arrived out of order or before they were granted, and there was no room to keep them.
    pub(super) has_no_room: bool,
}

/// Limits of the bytes that a connection may keep waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes wait only within this distance of RCV.NXT. All bytes within the distance fit, unless the stack's total is
    /// used up, so that bytes reported by SACK need not be discarded for nearer ones.
    pub(super) ahead: usize,
    /// Bytes that may wait in total.
    pub(super) bytes: usize,
}

/// The acknowledgement and window of a segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advertised {
    pub(super) acknowledged: Seq,
    pub(super) window: u16,
    /// The right edge of the window.
    pub(super) offered: Seq,
}

/// Whether the window has grown since it was advertised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowUpdate {
    None,
    /// Grown, but too little for an acknowledgement of its own.
    Small,
    Due,
}

impl Receiving {
    /// `initial`: sequence number of the peer's SYN. `initial_window`: advertised before the first grant.
    pub(super) fn new(initial: u32, scale: u8, initial_window: u16, is_gated: bool) -> Receiving {
        let next = FIRST + 1;
        Receiving {
            base: Base::new(initial),
            next,
            granted: next,
            edge: next + u64::from(initial_window),
            offered: next + u64::from(initial_window),
            largest: u64::from(initial_window),
            scale,
            fin: None,
            waiting: Reassembly::new(),
            gate: Gate::new(is_gated.then_some(next)),
        }
    }

    /// Restores the state of an imported connection, which was checked.
    pub(super) fn restored(state: &state::Receiving, waiting: Reassembly) -> Receiving {
        let edge = extended(state.edge);
        let mut receiving = Receiving {
            base: Base::new(state.initial),
            next: extended(state.next),
            granted: extended(state.granted),
            edge,
            offered: edge,
            largest: state.window_largest,
            scale: state.scale,
            fin: state.fin.map(extended),
            waiting,
            gate: Gate::new(state.gate.map(extended)),
        };
        if receiving.granted <= receiving.next {
            receiving.offered = receiving.to_advertise().offered;
        }
        receiving
    }

    /// RCV.NXT: everything before it has arrived. Bytes from `next` to RCV.NXT were within the advertised window and
    /// wait for a grant. These bytes are acknowledged: otherwise the peer would retransmit them until it gives up.
    #[inline]
    pub(super) fn received(&self) -> Seq {
        if self.waiting.is_empty() {
            return self.next + u64::from(self.fin == Some(self.next));
        }
        let held = self.waiting.contiguous_until(self.next);
        let held = self.fin.map_or(held, |fin| held.min(fin.max(self.next))); // bytes beyond the FIN do not count
        held + u64::from(self.fin == Some(held))
    }

    /// The acknowledgement field of segments sent now.
    #[inline]
    pub(super) fn acknowledged(&self) -> Seq {
        self.gate.limit(self.received())
    }

    /// Whether the gate holds back the acknowledgement of received bytes.
    pub(super) fn is_held_back(&self) -> bool {
        let received = self.received();
        self.gate.limit(received) < received
    }

    /// Whether the FIN has arrived, and all bytes before it were delivered.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// Whether a segment is acceptable (RFC 9293 §3.10.7.4, first). `end` counts SYN and FIN.
    ///
    /// Without bytes the number after the window is acceptable, too, as in Linux and FreeBSD: it is that of every
    /// acknowledgement of a peer whose window is full, while some of its bytes were lost.
    ///
    /// A bare FIN that is next in order needs no window: its sender has no bytes to probe the window with.
    pub(super) fn is_acceptable(&self, seq: Seq, end: Seq, is_bare_fin: bool) -> bool {
        if seq == end {
            // Bytes that wait for a grant were acknowledged: a window probe has the number before `received`.
            let received = self.received();
            return seq == received || (received..=self.edge).contains(&seq);
        }
        let within = |at: Seq| (self.next..self.edge).contains(&at);
        within(seq)
            || within(end - 1)
            || (seq < self.next && end > self.edge)
            || (is_bare_fin && seq == self.next)
    }

    /// Takes the bytes and the FIN of an acceptable segment. Cuts off bytes that were delivered before, bytes beyond
    /// the window, and bytes beyond the FIN.
    pub(super) fn take(&mut self, seq: Seq, payload: &[u8], has_fin: bool, room: Room) -> TakenPayload {
        let mut taken = TakenPayload::default();
        let contiguous = self.waiting.contiguous_until(self.next);
        taken.is_disordered = seq > contiguous || self.waiting.reaches_beyond(contiguous);
        let before = self.next;
        let mut end = seq + payload.len() as u64;
        if has_fin && self.fin.is_none() && end <= self.edge.max(self.next) && end >= self.received() {
            self.fin = Some(end);
        }
        if end > self.edge {
            end = self.edge.max(seq);
        }
        if let Some(fin) = self.fin {
            end = end.min(fin).max(seq);
        }
        if seq < self.next && !payload.is_empty() {
            taken.duplicate = Some((seq, end.min(self.next)));
        }
        let part = |from: Seq, to: Seq| in_memory(from - seq)..in_memory(to - seq);
        if seq <= self.next && end > self.next {
            // The first copy of a byte is kept: new bytes do not replace held ones.
            let held_from = self.waiting.first().unwrap_or(Seq::MAX);
            let to = end.min(self.granted).min(held_from).max(self.next);
            if to > self.next {
                taken.direct = Some(part(self.next, to));
                self.next = to;
            }
            if end > to {
                let kept = self.keep(to, &payload[part(to, end)], room);
                taken.duplicate = taken.duplicate.or(kept.duplicate);
                taken.has_no_room = kept.refused;
            }
        } else if seq > self.next && end > seq {
            let kept = self.keep(seq, &payload[part(seq, end)], room);
            (taken.duplicate, taken.has_no_room) = (kept.duplicate, kept.refused);
            taken.is_out_of_order = true;
        }
        self.advance_over_fin();
        taken.is_advanced = self.next > before;
        taken.is_disordered |= taken.duplicate.is_some();
        let is_early = has_fin && !self.is_finished();
        taken.is_out_of_order |= is_early || taken.duplicate.is_some() || !self.waiting.is_empty();
        taken
    }

    /// Keeps bytes that cannot be delivered yet, if there is room.
    fn keep(&mut self, from: Seq, bytes: &[u8], room: Room) -> Inserted {
        let end = from + bytes.len() as u64;
        let is_far = end > self.next.saturating_add(room.ahead as u64);
        let bytes_max = if is_far { 0 } else { room.bytes };
        self.waiting.insert(from, bytes, bytes_max)
    }

    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes bytes that waited and are next in order.
    pub(super) fn take_waiting(&mut self) -> Option<Vec<u8>> {
        let until = self.fin.map_or(self.granted, |fin| fin.min(self.granted));
        let bytes = self.waiting.take(self.next, until)?;
        self.next += bytes.len() as u64;
        self.advance_over_fin();
        Some(bytes)
    }

    fn advance_over_fin(&mut self) {
        if self.fin == Some(self.next) {
            self.next += 1;
            self.waiting = Reassembly::new(); // bytes beyond the FIN are not part of the stream
        }
    }

    /// The application grants `bytes` more.
    pub(super) fn grant(&mut self, bytes: u32) {
        self.granted = self.granted.saturating_add(u64::from(bytes));
        self.largest = self.largest.max(self.granted.saturating_sub(self.next));
    }

    /// The acknowledgement and window of a segment sent now. While granted bytes are left, the window is rounded up to
    /// a unit of the scale, so that all of them can arrive. Afterwards the window is rounded down, and its edge moves
    /// left by less than a unit (RFC 7323 §2.4). A peer that has sent a few bytes beyond the edge waits for a larger
    /// window, and does not treat these bytes as lost.
    #[inline]
    pub(super) fn to_advertise(&self) -> Advertised {
        let acknowledged = self.acknowledged();
        let unit_less_one = (1_u64 << self.scale) - 1;
        let granted = self.granted.saturating_sub(acknowledged);
        let granted = if self.granted > self.next { granted + unit_less_one } else { granted };
        let advertised_before = self.edge.saturating_sub(acknowledged);
        let units = (granted.max(advertised_before) >> self.scale).min(u64::from(u16::MAX));
        Advertised { acknowledged, window: in_field(units), offered: acknowledged + (units << self.scale) }
    }

    #[inline]
    pub(super) fn on_advertised(&mut self, advertised: Advertised) {
        self.offered = advertised.offered;
        self.edge = self.edge.max(advertised.offered);
    }

    /// Whether the window has grown enough to be advertised (RFC 9293 §3.8.6.2.2): by a segment, or half of the largest
    /// window. As in Linux, at once only if less than half of the window is left and the growth doubles it: otherwise
    /// the next acknowledgement is early enough.
    #[inline]
    pub(super) fn window_update(&self, mss: u16) -> WindowUpdate {
        if self.granted <= self.offered {
            return WindowUpdate::None;
        }
        let left = self.offered.saturating_sub(self.received());
        let half = self.largest / 2;
        match self.to_advertise().offered.saturating_sub(self.offered) {
            // Growth below one unit is not advertised: it increases while the peer uses up the advertised window.
            growth if growth < 1 << self.scale => WindowUpdate::None,
            growth if growth >= u64::from(mss).min(half) && left <= half.min(growth) => WindowUpdate::Due,
            _ => WindowUpdate::Small,
        }
    }

    /// SACK blocks (RFC 2018), most recent first. Bytes in order that wait for a grant are not reported.
    pub(super) fn blocks(&self, out: &mut [(Seq, Seq)]) -> usize {
        let mut blocks = [(0, 0); 5];
        let held = self.waiting.blocks(&mut blocks);
        let mut count = 0;
        for block in blocks[..held].iter().filter(|block| block.0 > self.next).take(out.len()) {
            out[count] = *block;
            count += 1;
        }
        count
    }

    /// The stream offset of `next`; the FIN does not count.
    pub(super) fn offset(&self) -> u64 {
        self.next - FIRST - 1 - u64::from(self.is_finished())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_BYTE: Seq = FIRST + 1;
    const ROOM: Room = Room { ahead: 100, bytes: 100 };

    #[test]
    fn bytes_within_the_window_but_not_granted_are_acknowledged_and_wait() {
        let mut receiving = Receiving::new(7, 0, 10, false);
        receiving.grant(4);
        let taken = receiving.take(FIRST_BYTE, b"0123456789", true, ROOM);
        assert_eq!(taken.direct, Some(0..4));
        assert_eq!(
            (receiving.acknowledged(), receiving.is_finished()),
            (FIRST_BYTE + 11, false),
            "the FIN should be acknowledged, too"
        );
        assert!(
            receiving.is_acceptable(FIRST_BYTE + 11, FIRST_BYTE + 11, false),
            "an acknowledgement after the FIN should be acceptable"
        );
        assert!(
            !receiving.is_acceptable(FIRST_BYTE + 10, FIRST_BYTE + 10, false),
            "a window probe, numbered before RCV.NXT, should be unacceptable, so that it is answered"
        );
        receiving.grant(4);
        assert_eq!(receiving.take_waiting(), Some(b"4567".to_vec()));
        receiving.grant(4);
        assert_eq!(receiving.take_waiting(), Some(b"89".to_vec()));
        assert_eq!((receiving.acknowledged(), receiving.is_finished()), (FIRST_BYTE + 11, true));
    }

    #[test]
    fn a_granted_window_is_rounded_up_and_its_rest_rounded_down() {
        let mut receiving = Receiving::new(7, 3, 0, true);
        receiving.grant(20);
        let advertised = receiving.to_advertise();
        assert_eq!(
            (advertised.window, advertised.offered),
            (3, FIRST_BYTE + 24),
            "the window should be the 20 granted bytes, rounded up to 3 units of 8"
        );
        receiving.on_advertised(advertised);
        receiving.take(FIRST_BYTE, &[0; 23], false, ROOM);
        receiving.gate.open(20);
        let advertised = receiving.to_advertise();
        assert_eq!(
            (advertised.acknowledged, advertised.window),
            (FIRST_BYTE + 20, 0),
            "3 bytes that wait for a grant should stay behind the gate, and the window should be rounded down"
        );
        receiving.on_advertised(advertised);
        assert!(
            receiving.is_acceptable(FIRST_BYTE + 23, FIRST_BYTE + 24, false),
            "a number within the advertised window should be acceptable"
        );
        receiving.grant(2);
        assert_ne!(
            receiving.window_update(1460),
            WindowUpdate::None,
            "a grant within the former edge should count as growth"
        );
    }

    #[test]
    fn growth_below_a_unit_is_not_advertised() {
        let mut receiving = Receiving::new(7, 5, u16::MAX, false);
        receiving.grant(1 << 16);
        assert_eq!(
            receiving.window_update(1460),
            WindowUpdate::None,
            "a window of one byte more than a SYN can advertise should not be advertised"
        );
        receiving.grant(32);
        assert_eq!(receiving.window_update(1460), WindowUpdate::Small);
    }

    #[test]
    fn bytes_behind_a_closed_gate_are_not_acknowledged() {
        let mut receiving = Receiving::new(7, 0, 10, true);
        receiving.grant(4);
        receiving.take(FIRST_BYTE, b"0123456789", false, ROOM);
        assert_eq!(receiving.acknowledged(), FIRST_BYTE);
        receiving.gate.open(4);
        assert_eq!(receiving.acknowledged(), FIRST_BYTE + 4);
    }
}
