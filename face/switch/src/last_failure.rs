//! The last failure of something that is tried again and again, so that the log has the same reason once.

/// Why the last attempt has failed, if it has.
#[derive(Debug, Default)]
pub(crate) struct LastFailure(Option<String>);

impl LastFailure {
    /// The outcome of an attempt. Returns whether it has failed, and not for the reason of the attempt before.
    pub(crate) fn is_new(&mut self, why: Option<&str>) -> bool {
        let is_new = why.is_some() && self.0.as_deref() != why;
        if is_new || why.is_none() {
            self.0 = why.map(str::to_owned);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_new_once() {
        let mut last = LastFailure::default();
        assert_eq!(
            [Some("a"), Some("a"), Some("b"), None, None].map(|why| last.is_new(why)),
            [true, false, true, false, false]
        );
        assert!(last.is_new(Some("b")), "after a success");
    }
}
