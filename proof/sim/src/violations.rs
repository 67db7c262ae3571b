//! The violations of a run.

use std::fmt;

use serde::Serialize;

/// Later violations are mostly consequences of the first few.
const KEPT_MAX: usize = 20;

/// A violation of a world's check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation<C> {
    /// The violated check.
    pub check: C,
    /// Description of the observation that violates the check.
    pub what: String,
}

impl<C: fmt::Debug> fmt::Display for Violation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}

#[derive(Debug)]
pub(crate) struct Violations<T>(Vec<T>);

impl<T> Default for Violations<T> {
    fn default() -> Violations<T> {
        Violations(Vec::new())
    }
}

impl<T> Violations<T> {
    /// Adds a violation; drops it if the list is full.
    pub fn push(&mut self, violation: T) {
        if self.0.len() < KEPT_MAX {
            self.0.push(violation);
        }
    }

    /// The violations in the order of detection.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_violations_up_to_the_bound_are_kept() {
        let mut violations = Violations::default();
        (0..100).for_each(|n| violations.push(n));
        assert_eq!(violations.as_slice(), (0..KEPT_MAX).collect::<Vec<_>>());
    }
}
