//! Capabilities of threads. The kernel keeps them for each thread, and a new thread inherits those of its creator.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Drops all capabilities of the calling thread, for a thread that opens nothing after its start.
///
/// # Errors
/// The system refuses, for example because a seccomp filter forbids `capset`.
pub fn drop_capabilities() -> io::Result<()> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops CAP_NET_RAW of the calling thread, for a thread that opens no further socket for packets of other
/// programs.
///
/// # Errors
/// As [`drop_capabilities`].
pub fn drop_net_raw() -> io::Result<()> {
    keep_capabilities(!CapabilitySet::NET_RAW)
}

/// Drops all capabilities of the calling thread except these.
///
/// # Errors
/// As [`drop_capabilities`].
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let present = capabilities(None)?.permitted;
    let kept = present & kept;
    // If there is nothing to drop, `capset` is not called: the service files of programs without capabilities
    // forbid it.
    if kept == present {
        return Ok(());
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_drops_capabilities() {
        let before = capabilities(None).unwrap().permitted;
        let after = |drop: fn() -> io::Result<()>| {
            std::thread::spawn(move || {
                drop().unwrap();
                capabilities(None).unwrap()
            })
            .join()
            .unwrap()
        };
        assert!(after(drop_capabilities).permitted.is_empty());
        let without_raw = after(drop_net_raw);
        assert_eq!(without_raw.permitted, before - CapabilitySet::NET_RAW);
        assert_eq!(without_raw.effective, without_raw.permitted);
        assert_eq!(capabilities(None).unwrap().permitted, before);
    }
}
