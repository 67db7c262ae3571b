//! The limit on file descriptors: every client needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beyond clients: links, listeners, epoll sets, files.
const OTHERS: u64 = 256;

/// Raises the soft limit to what is needed, as far as the hard one allows. Some tells how many are allowed where
/// that is not enough.
pub fn raise_limit(connections: u32) -> Option<u64> {
    let needed = u64::from(connections) + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= needed {
        return None;
    }
    let allowed = limit.maximum.unwrap_or(u64::MAX).min(needed);
    let raised = Rlimit { current: Some(allowed), maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { allowed } else { current };
    (now < needed).then_some(now)
}
