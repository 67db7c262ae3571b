//! When the process ends in order, helped connections are closed at once, as the kernel closes direct ones.
//!
//! If a link was only cut, the clients of its sessions would wait for the server to come back. Each link sends the
//! application's last bytes first, then the end of each connection, as far as its socket accepts them without waiting.
//! Other threads may still hold locks, and so may the calling thread if the application ends inside a signal handler.
//! So locks are tried for a short time only, a link whose lock is held ends with the process, and the heap is not used
//! any more.

use crate::lock_deadline::LockDeadline;
use crate::{allocator, fork, links, port};

/// Ends the link port and all links. Called once, by the thread that ends the process.
pub(crate) fn end() {
    if fork::is_owner_process() {
        allocator::set_ending();
        port::report_unserved();
        let lock_deadline = LockDeadline::new();
        port::end();
        links::end_all(&lock_deadline);
    }
}
