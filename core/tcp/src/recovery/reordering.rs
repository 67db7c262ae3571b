//! The time to wait for a segment that may only be out of order (RFC 8985 §6.2, `RACK_update_reo_wnd`).

use crate::seq::Seq;

/// Number of recoveries after the last D-SACK until the window is one quarter again.
const RECOVERIES_KEPT: u8 = 16;

/// Maximum of `quarters`. A wider window would have no effect, because the window is limited to a round trip.
const QUARTERS_MAX: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reordering {
    /// Segments have arrived out of order, or were retransmitted needlessly.
    is_seen: bool,
    /// The window, in quarters of the shortest round trip.
    quarters: u32,
    /// Number of recoveries until the window is one quarter again.
    recoveries_left: u8,
    /// Further D-SACKs do not count until this number is acknowledged.
    round_end: Option<Seq>,
}

impl Reordering {
    /// `is_seen`: whether the path was seen to reorder.
    pub(super) fn new(is_seen: bool) -> Reordering {
        Reordering { is_seen, quarters: 1, recoveries_left: 0, round_end: None }
    }

    pub(super) fn is_seen(&self) -> bool {
        self.is_seen
    }

    pub(super) fn quarters(&self) -> u32 {
        self.quarters
    }

    /// A segment arrived out of order, or was retransmitted needlessly.
    pub(super) fn set_seen(&mut self) {
        self.is_seen = true;
    }

    /// Handles an acknowledgement; `is_needless`: its D-SACK reports a needless retransmission.
    pub(super) fn on_ack(&mut self, una: Seq, nxt: Seq, is_needless: bool) {
        self.round_end = self.round_end.filter(|end| una < *end);
        if is_needless && self.round_end.is_none() {
            self.round_end = Some(nxt);
            self.quarters = (self.quarters + 1).min(QUARTERS_MAX);
            self.recoveries_left = RECOVERIES_KEPT;
        }
    }

    pub(super) fn on_recovered(&mut self) {
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.quarters = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_with_a_needless_retransmission_widens_the_window_once() {
        let mut reordering = Reordering::new(false);
        reordering.on_ack(10, 20, true);
        reordering.on_ack(15, 30, true);
        assert_eq!(reordering.quarters(), 2, "two D-SACKs of one round should count once");
        reordering.on_ack(20, 30, true);
        assert_eq!(reordering.quarters(), 3);
    }

    #[test]
    fn sixteen_recoveries_without_a_dsack_reset_the_window() {
        let mut reordering = Reordering::new(false);
        reordering.on_ack(10, 20, true);
        (0..15).for_each(|_| reordering.on_recovered());
        assert_eq!(reordering.quarters(), 2);
        reordering.on_recovered();
        assert_eq!(reordering.quarters(), 1);
    }
}
