//! Telling a thread to end, whatever it waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Once told, it stays told.
#[derive(Debug)]
pub(crate) struct Stop {
    told: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Stop> {
        Ok(Stop { told: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    pub(crate) fn tell(&self) {
        wake(&self.told);
    }

    /// Waits for this time, or until told: then true.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let mut waited = [PollFd::new(&self.told, PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            match poll(&mut waited, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                // The kernel is short of memory: nothing to wait with, so nothing is waited for.
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

/// Makes an eventfd readable.
pub(crate) fn wake(event: &OwnedFd) {
    // It fails only where it is readable since 2^64 - 2 times.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_is_told_and_it_stays_told() {
        let stop = std::sync::Arc::new(Stop::new().unwrap());
        assert!(!stop.wait(Duration::ZERO) && !stop.wait(Duration::from_millis(1)));
        let waiting = std::sync::Arc::clone(&stop);
        let waiter = std::thread::spawn(move || waiting.wait(Duration::from_secs(3600)));
        stop.tell();
        assert!(waiter.join().unwrap() && stop.wait(Duration::ZERO));
    }
}
