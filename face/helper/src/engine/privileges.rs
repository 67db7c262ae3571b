//! Privileges of network threads.

use std::io;

use rustix::thread::CapabilitySet;
use spillway_daemon::keep_capabilities;

/// Capabilities that the engine `xdp` needs after its sockets are open: CAP_NET_ADMIN, so that the kernel
/// confirms neighbours and defers interrupts; CAP_BPF, without which some kernels refuse changes of maps.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF);

/// Drops all other capabilities of the calling thread.
///
/// # Errors
/// The system has failed.
pub fn drop_unneeded() -> io::Result<()> {
    keep_capabilities(NEEDED)
}
