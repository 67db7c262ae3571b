//! Deprecated option names, which are accepted for one more version with a warning.

pub(crate) fn renamed(old: &str, new: &str) {
    spillway_daemon::say(&format!(
        "spillway: warning: {old} is an old spelling, and is removed in the next version: give {new}"
    ));
}
