//! How long a process that ends waits for locks that other threads hold.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use spillway_transport::Time;

use crate::sys;

/// The time for which locks are tried, all together.
const LOCKS_MAX: Duration = Duration::from_millis(50);

/// The time until which locks are tried.
pub(crate) struct Patience(Time);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(sys::now() + LOCKS_MAX)
    }

    /// Locks the mutex; `None` if another thread holds it for too long.
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
