//! The limit on file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to `needed`, at most to the hard limit. Returns the resulting limit if it is
/// less than `needed`.
pub fn raise_open_files(needed: u64) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= needed {
        return None;
    }
    let allowed = limit.maximum.unwrap_or(u64::MAX).min(needed);
    let raised = Rlimit { current: Some(allowed), maximum: limit.maximum };
    let resulting = if setrlimit(Resource::Nofile, raised).is_ok() { allowed } else { current };
    (resulting < needed).then_some(resulting)
}
