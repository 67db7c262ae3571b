//! A process that ends waits a limited time for locks that other threads hold.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spillway_transport::Time;

use crate::sys;

/// Time to wait for all locks together.
const LOCKS_MAX: Duration = Duration::from_millis(50);

/// The time until which [`lock`](LockDeadline::lock) waits for a lock.
pub(crate) struct LockDeadline(Time);

impl LockDeadline {
    pub(crate) fn new() -> LockDeadline {
        LockDeadline(sys::now() + LOCKS_MAX)
    }

    /// Locks the mutex; `None` if another thread still holds it at the deadline.
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
    fn lock_that_another_thread_holds_fails_at_the_deadline() {
        let (free, held) = (Mutex::new(7), Mutex::new(8));
        let _guard = held.lock().unwrap();
        let lock_deadline = LockDeadline::new();
        assert!(lock_deadline.lock(&held).is_none());
        assert_eq!(
            lock_deadline.lock(&free).as_deref(),
            Some(&7),
            "a free lock should be acquired even after the deadline"
        );
    }
}
