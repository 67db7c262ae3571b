//! Memory that all moves of a server share.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The limit on bytes, and the number of bytes in use. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Budget {
        Budget { used: Arc::new(AtomicUsize::new(0)), bytes_max }
    }

    /// An empty share of the budget.
    pub(crate) fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0 }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The bytes that one move uses. Dropping the share gives them back to the budget.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// Takes `by` more bytes from the budget. Returns false, and takes nothing, if the budget has fewer bytes left.
    pub(crate) fn grow(&mut self, by: usize) -> bool {
        let used = self.budget.used();
        let fits = by <= self.budget.bytes_max.saturating_sub(used);
        if fits {
            self.budget.used.store(used + by, Ordering::Relaxed);
            self.bytes += by;
        }
        fits
    }

    /// Gives all bytes back.
    pub(crate) fn clear(&mut self) {
        let used = self.budget.used();
        debug_assert!(used >= self.bytes, "a share is a part of what is used");
        self.budget.used.store(used.saturating_sub(self.bytes), Ordering::Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_together_and_give_back_what_they_used() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (budget.share(), budget.share());
        assert!(a.grow(60) && !b.grow(41) && b.grow(40) && !b.grow(1));
        a.clear();
        assert!(b.grow(60));
        drop(b);
        assert_eq!(budget.used(), 0);
    }
}
