//! Privileges of network threads.

use std::io;

use rustix::thread::CapabilitySet;
use spillway_daemon::keep_capabilities;

/// What the engine `xdp` still needs once its sockets are open: the kernel confirms neighbours only for CAP_NET_ADMIN, and
/// some kernels change maps only for CAP_BPF.
const NEEDED: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::BPF);

/// Drops all capabilities of the calling thread that its engine does not need any more.
///
/// # Errors
/// The system has failed.
pub fn drop_unneeded() -> io::Result<()> {
    keep_capabilities(NEEDED)
}
