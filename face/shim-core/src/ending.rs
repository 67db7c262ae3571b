//! The process ends in order: helped clients are told at once, as the kernel tells direct ones.
//!
//! Without this, a session whose link ends waits for its server to come back. What the application has sent is
//! delivered first, then the end of each connection, as far as the links' sockets take it. Nothing here waits for a
//! peer. Other threads may still run and hold locks, and an application that ends inside a signal handler may hold
//! one itself, so a lock is tried for a short time only; a link behind a held lock ends with the process. For the
//! same reason the heap is not used from here on.

use crate::patience::Patience;
use crate::{allocator, fork, links, port};

/// Ends the link port and all links. Called once, by the thread that ends the process.
pub(crate) fn end() {
    if fork::is_owner_process() {
        allocator::end();
        port::report_unserved();
        let patience = Patience::new();
        port::end();
        links::end_all(&patience);
    }
}
