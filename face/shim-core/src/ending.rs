//! The process ends in order: helped clients hear of it at once, as direct ones do of the kernel.
//!
//! Without this, a session whose link ends waits for its server to come back. What the application has sent is
//! delivered first, then the end of each connection, as far as the links' sockets take it. Nothing here waits for a
//! peer. Other threads may still run and hold locks, and an application that ends inside a signal handler may hold one
//! itself, so a lock is tried for a short time only: what is behind it ends with the process. For the same reason the heap
//! is not used from here on.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spillway_transport::Time;

use crate::{allocator, fork, links, port, sys};

/// How long locks are tried for, all together.
const LOCKS_MAX: Duration = Duration::from_millis(50);

/// Ends the link port and all links. Called once, by the thread that ends the process.
pub(crate) fn end() {
    if fork::is_owner_process() {
        allocator::end();
        let patience = Patience::new();
        port::end();
        links::end_all(&patience);
    }
}

/// Until when locks are tried for.
pub(crate) struct Patience(Time);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(sys::now() + LOCKS_MAX)
    }

    /// The lock, unless it is held for too long.
    pub(crate) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        loop {
            match mutex.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(PoisonError::into_inner(poisoned)),
                Err(TryLockError::WouldBlock) if sys::now() >= self.0 => return None,
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_given_up() {
        let (free, held) = (Mutex::new(7), Mutex::new(8));
        let _guard = held.lock().unwrap();
        let patience = Patience::new();
        assert!(patience.lock(&held).is_none());
        assert_eq!(patience.lock(&free).as_deref(), Some(&7), "others are still taken");
    }
}
