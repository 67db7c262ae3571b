//! Ends a thread while it pauses or waits for an answer.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ureq::Agent;

/// The owner's end of a pair: dropping this ends the thread that holds the matching [`Stop`].
#[derive(Debug)]
pub(crate) struct RunningThread {
    alive: Option<Sender<Infallible>>,
    agent: Option<Agent>,
}

#[derive(Debug)]
pub(crate) struct Stop {
    alive: Receiver<Infallible>,
}

/// Makes the two ends. Dropping [`RunningThread`] also makes the present request of `agent`, and all later
/// ones, fail.
pub(crate) fn stop_pair(agent: Option<Agent>) -> (RunningThread, Stop) {
    let (sender, alive) = channel();
    (RunningThread { alive: Some(sender), agent }, Stop { alive })
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        // Before the shutdown: a thread whose request fails must find that `must_end` is true.
        self.alive = None;
        if let Some(agent) = self.agent.take() {
            agent.shutdown();
        }
    }
}

impl Stop {
    /// Waits for this time, or until the thread is to end. Returns whether the thread is to end.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.alive.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    pub(crate) fn must_end(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}

/// Random time from three to five quarters of `time`, so that programs started together do not stay in step.
pub(crate) fn spread(time: Duration) -> Duration {
    let mut bytes = [0; 2];
    // If the kernel has no random bytes, the result is three quarters of the time.
    let _ = getrandom::fill(&mut bytes);
    let random = u32::from(u16::from_ne_bytes(bytes) % 512);
    time / 4 * 3 + time / 1024 * random
}

pub(crate) fn start_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("discovery".into()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_early_when_the_thread_is_to_end() {
        let (running, stop) = stop_pair(None);
        assert!(!stop.must_end() && !stop.wait(Duration::from_millis(1)));
        let waiter = std::thread::spawn(move || stop.wait(Duration::from_secs(3600)) && stop.must_end());
        drop(running);
        assert!(waiter.join().unwrap());
    }

    #[test]
    fn spread_stays_within_a_quarter() {
        let second = Duration::from_secs(1);
        assert!((0..100).all(|_| (second / 4 * 3..=second / 4 * 5).contains(&spread(second))));
    }
}
