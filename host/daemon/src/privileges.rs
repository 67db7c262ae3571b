//! Capabilities of threads. The kernel keeps them for each thread, and a new thread inherits those of its creator.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::threads::panic_message;

/// Drops all capabilities of the calling thread, for a thread that opens nothing after its start. If the system refuses, such as
/// by a seccomp filter without `capset`, the thread keeps capabilities that it does not use.
pub fn drop_capabilities() {
    let _ = keep_capabilities(CapabilitySet::empty());
}

/// Drops CAP_NET_RAW of the calling thread: it opens no socket that receives the packets of other programs any more. As
/// [`drop_capabilities`] if the system refuses.
pub fn drop_net_raw() {
    let _ = keep_capabilities(!CapabilitySet::NET_RAW);
}

/// Drops all capabilities of the calling thread except these.
///
/// # Errors
/// The system refuses.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let present = capabilities(None)?.permitted;
    let kept = present & kept;
    // Without anything to drop, no call: the service files of programs without capabilities do not allow it.
    if kept == present {
        return Ok(());
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Calls `start` on a short-lived thread that has called `drop` first: the threads that `start` starts inherit fewer
/// capabilities than the calling thread has.
///
/// # Errors
/// `start` has failed or panicked.
pub fn start_with_fewer<T: Send>(drop: fn(), start: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let start = || {
        drop();
        start()
    };
    let result = std::thread::scope(|scope| scope.spawn(start).join());
    result.unwrap_or_else(|panic| Err(io::Error::other(panic_message(&*panic).to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_drops_capabilities() {
        let before = capabilities(None).unwrap().permitted;
        let after = |drop| start_with_fewer(drop, || Ok(capabilities(None)?)).unwrap();
        assert!(after(drop_capabilities).permitted.is_empty());
        let without_raw = after(drop_net_raw);
        assert_eq!(without_raw.permitted, before - CapabilitySet::NET_RAW);
        assert_eq!(without_raw.effective, without_raw.permitted);
        assert_eq!(capabilities(None).unwrap().permitted, before);
    }
}
