//! The limit on file descriptors: each local connection needs its socket, its session's link and epoll set.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const EACH: u64 = 3;
/// Sessions change links, listeners, epoll sets, files.
const OTHERS: u64 = 128;

/// Raises the soft limit to what so many connections need, as far as the hard one allows. Some tells for how many
/// connections there are descriptors where that is not enough.
pub(crate) fn raise_limit(connections: u32) -> Option<u32> {
    let needed = u64::from(connections) * EACH + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= needed {
        return None;
    }
    let allowed = limit.maximum.unwrap_or(u64::MAX).min(needed);
    let raised = Rlimit { current: Some(allowed), maximum: limit.maximum };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { allowed } else { current };
    let connections = u32::try_from(now.saturating_sub(OTHERS) / EACH).unwrap_or(u32::MAX);
    (now < needed).then_some(connections.max(1))
}
