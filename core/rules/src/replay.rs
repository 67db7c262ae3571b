//! Recognizes control messages that were received before.

/// Sequence numbers that the window remembers: the highest one and the 63 below it.
const WINDOW: u64 = 64;

/// The sequence numbers that a sender has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplayWindow {
    highest: u64,
    /// Bit n: `highest` − n was received.
    seen: u64,
}

impl ReplayWindow {
    /// A window that begins after this sequence number: no lower one is accepted, because it may be from before the
    /// sender's restart.
    pub(crate) fn after(sequence: u64) -> ReplayWindow {
        ReplayWindow { highest: sequence, seen: u64::MAX }
    }

    /// The highest sequence number so far.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Records a sequence number. Returns false if it was received before, or lies below the window.
    #[must_use]
    pub(crate) fn accept(&mut self, sequence: u64) -> bool {
        if let Some(ahead) = sequence.checked_sub(self.highest).filter(|ahead| *ahead > 0) {
            self.seen = if ahead < WINDOW { self.seen << ahead | 1 } else { 1 };
            self.highest = sequence;
            return true;
        }
        let behind = self.highest - sequence;
        if behind >= WINDOW || self.seen & 1 << behind != 0 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_accepted_once() {
        let mut window = ReplayWindow::after(100);
        for (sequence, is_new) in
            [(100, false), (101, true), (101, false), (103, true), (102, true), (102, false), (100, false)]
        {
            assert_eq!(window.accept(sequence), is_new, "{sequence}");
        }
        assert_eq!(window.highest(), 103);
    }

    #[test]
    fn messages_from_before_a_hello_are_replays() {
        let mut window = ReplayWindow::after(100);
        assert!((0..=100).all(|sequence| !window.accept(sequence)));
        assert!(window.accept(102));
        assert!(window.accept(101));
        assert!((37..=102).all(|sequence| !window.accept(sequence)));
    }

    #[test]
    fn a_window_remembers_64_numbers() {
        let mut window = ReplayWindow::after(1);
        assert!(window.accept(164));
        assert!(!window.accept(100), "64 behind is too old");
        assert!(window.accept(101));
        assert!(!window.accept(101));
    }

    #[test]
    fn a_jump_keeps_what_is_still_inside() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(1));
        assert!(window.accept(64));
        assert!(!window.accept(1), "63 behind, and received");
        assert!(window.accept(65));
        assert!(!window.accept(1), "64 behind");
        assert!(window.accept(2));
        assert!(window.accept(65 + 64));
        assert!(!window.accept(65));
        assert!(window.accept(66));
    }

    #[test]
    fn a_new_window_accepts_number_0() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(0));
        assert!(!window.accept(0));
        assert!(window.accept(u64::MAX));
        assert!(!window.accept(u64::MAX));
        assert!(window.accept(u64::MAX - 63));
        assert!(!window.accept(u64::MAX - 64));
    }

    #[test]
    fn a_window_equals_a_set_of_numbers() {
        // A linear congruential generator: small steps in both directions, sometimes a jump.
        let (mut window, mut seen, mut highest, mut state) =
            (ReplayWindow::default(), [false; 40_000], 0, 7_u64);
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let step = state >> 33;
            let sequence =
                (highest + step % 3 + if step % 50 == 0 { 90 } else { 0 }).saturating_sub(step / 64 % 80);
            if sequence >= 40_000 {
                break;
            }
            let expected = sequence > highest || highest - sequence < 64 && !seen[sequence as usize];
            assert_eq!(window.accept(sequence), expected, "{sequence}, highest {highest}");
            seen[sequence as usize] = true;
            highest = highest.max(sequence);
        }
        assert!(highest > 5_000);
    }
}
