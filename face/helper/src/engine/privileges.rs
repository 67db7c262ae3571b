//! Privileges of network threads.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What the engine `xdp` still needs once its sockets are open: the kernel confirms neighbours only for CAP_NET_ADMIN, and
/// some kernels change maps only for CAP_BPF.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF);

/// Drops all capabilities of the calling thread that its engine does not need any more. Other threads keep theirs: they read
/// no packets.
///
/// # Errors
/// The system has failed.
pub fn drop_unneeded() -> io::Result<()> {
    let present = capabilities(None)?;
    let kept = present.permitted & NEEDED;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}
