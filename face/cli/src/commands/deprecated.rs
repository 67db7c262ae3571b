//! Spellings of older versions that are accepted for one more version. Each gives a warning with the spelling to use.

/// Warns about an option's old spelling.
pub(crate) fn renamed(old: &str, new: &str) {
    spillway_daemon::say(&format!(
        "spillway: warning: {old} is an old spelling, and is removed in the next version: give {new}"
    ));
}
