//! The peer's window (RFC 9293 §3.10.7.4, fifth; RFC 7323 §2).

use crate::seq::Seq;

/// The window that the peer has advertised last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerWindow {
    /// SND.WND, bytes from SND.UNA on.
    pub(super) size: u64,
    /// Acknowledgement and sequence number of the segment that advertised the window: SND.WL2 and SND.WL1. `None` after an
    /// import from a stack that does not reveal them: the next segment then sets the window.
    advertised: Option<(Seq, Seq)>,
    /// The scale of the peer's windows, in bits.
    pub(super) scale: u8,
    /// The largest window so far: half of it is worth a segment (RFC 9293 §3.8.6.2.1).
    pub(super) largest: u64,
}

impl PeerWindow {
    /// Takes over a segment's window unless a newer segment has set it. Returns whether the window has changed.
    ///
    /// RFC 9293 compares sequence numbers first. Here acknowledgements are compared first, because a
    /// retransmission has an old sequence number and a new acknowledgement: a window that counted from the
    /// old acknowledgement would be wrong.
    #[inline]
    pub(super) fn update(&mut self, seq: Seq, ack: Seq, field: u16, is_syn: bool) -> bool {
        if self.advertised.is_some_and(|last| (ack, seq) < last) {
            return false;
        }
        let size = u64::from(field) << if is_syn { 0 } else { self.scale };
        let is_changed = size != self.size;
        (self.size, self.advertised) = (size, Some((ack, seq)));
        self.largest = self.largest.max(size);
        is_changed
    }

    /// SND.WL1 and SND.WL2, for an export.
    pub(super) fn last_update(&self) -> Option<(Seq, Seq)> {
        self.advertised.map(|(ack, seq)| (seq, ack))
    }

    /// The window of an imported connection; `last_update`: SND.WL1 and SND.WL2, if they are known.
    pub(super) fn restored(
        size: u64,
        last_update: Option<(Seq, Seq)>,
        scale: u8,
        largest: u64,
    ) -> PeerWindow {
        PeerWindow { size, advertised: last_update.map(|(seq, ack)| (ack, seq)), scale, largest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_segments_do_not_change_the_window() {
        let mut window = PeerWindow { scale: 2, ..PeerWindow::default() };
        assert!(window.update(100, 50, 1000, false), "the first segment should set the window");
        assert_eq!(window.size, 4000);
        assert!(!window.update(99, 50, 1, false), "an older segment should not change the window");
        assert!(!window.update(100, 49, 1, false), "an older acknowledgement should not change the window");
        assert!(
            window.update(100, 50, 500, false),
            "a window update should count, although it repeats both numbers"
        );
        assert!(window.update(101, 50, 7, true) && window.size == 7, "a SYN's window should not be shifted");
        assert_eq!(window.largest, 4000);
        assert_eq!(window.last_update(), Some((101, 50)));
        assert!(
            window.update(99, 51, 1, false) && window.size == 4,
            "a retransmission should count: it has old bytes, but a new acknowledgement"
        );
    }

    #[test]
    fn the_first_segment_after_an_import_without_the_last_update_sets_the_window() {
        let mut window = PeerWindow::restored(500, None, 0, 500);
        assert!(window.update(1, 1, 300, false), "any segment should set the window");
        assert!(!window.update(0, 1, 700, false), "an older one should not change it");
        assert_eq!((window.size, window.last_update()), (300, Some((1, 1))));
    }
}
