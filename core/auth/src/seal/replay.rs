//! Which numbers of a sender's datagrams were used.

/// Datagrams that are further behind the highest one are taken for repetitions. A state of 1 MB in parts, all of them in
/// flight and delivered in any order, has fewer datagrams.
pub(super) const WINDOW: u64 = 1024;
const WORDS: usize = 16;

/// The highest number, and which of the numbers below it were used (RFC 6479).
#[derive(Debug, Default)]
pub(super) struct ReplayWindow {
    /// One more than the highest number used; 0 before the first.
    end: u64,
    /// Bit `number % WINDOW` stands for a number from `end - WINDOW` on.
    used: [u64; WORDS],
}

impl ReplayWindow {
    /// Whether the number was not used, as far as the window can tell.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let (word, bit) = place(number);
        self.end - number <= WINDOW && self.used[word] & bit == 0
    }

    /// Marks a [new](Self::is_new) number as used.
    pub(super) fn mark(&mut self, number: u64) {
        if number >= self.end {
            if number - self.end >= WINDOW {
                self.used = [0; WORDS];
            } else {
                for skipped in self.end..number {
                    let (word, bit) = place(skipped);
                    self.used[word] &= !bit;
                }
            }
            self.end = number + 1; // numbers end far below 2^64
        }
        let (word, bit) = place(number);
        self.used[word] |= bit;
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_counts_once_within_the_window() {
        let mut window = ReplayWindow::default();
        assert!(window.is_new(0));
        window.mark(0);
        assert!(!window.is_new(0));
        window.mark(WINDOW);
        assert!(window.is_new(1), "the oldest number that the window can tell");
        assert!(!window.is_new(0), "older numbers count as used");
        window.mark(5 * WINDOW + 3);
        assert!(window.is_new(4 * WINDOW + 4) && !window.is_new(4 * WINDOW + 3));
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_set(steps in prop::collection::vec((0_u64..1500, any::<bool>()), 1..400)) {
            let (mut window, mut used, mut highest) = (ReplayWindow::default(), BTreeSet::new(), 0_u64);
            for (step, is_ahead) in steps {
                let number = if is_ahead { highest + step } else { highest.saturating_sub(step) };
                let is_new = !used.contains(&number) && (number > highest || highest - number < WINDOW);
                prop_assert_eq!(window.is_new(number), is_new, "{} of {}", number, highest);
                if is_new {
                    window.mark(number);
                    used.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }
}
