//! What was wrong in a run.

/// After the first few, what follows is mostly their consequence.
const KEPT_MAX: usize = 20;

/// Everything that must not have been, up to a bound.
#[derive(Debug)]
pub(crate) struct Violations<T>(Vec<T>);

impl<T> Default for Violations<T> {
    fn default() -> Violations<T> {
        Violations(Vec::new())
    }
}

impl<T> Violations<T> {
    /// Notes one, if there is room.
    pub fn push(&mut self, what: T) {
        if self.0.len() < KEPT_MAX {
            self.0.push(what);
        }
    }

    /// In the order in which they were seen.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_are_kept_and_no_more_than_the_bound() {
        let mut violations = Violations::default();
        (0..100).for_each(|n| violations.push(n));
        assert_eq!(violations.as_slice(), (0..KEPT_MAX).collect::<Vec<_>>());
    }
}
