//! Pauses of a thread, and how it is told to end: also in the midst of a request.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use ureq::Agent;

/// Dropping this ends the thread that has the [`Stop`].
#[derive(Debug)]
pub(crate) struct Running {
    alive: Option<Sender<Infallible>>,
    /// Makes the thread's requests.
    agent: Option<Agent>,
}

/// Tells a thread when to end.
#[derive(Debug)]
pub(crate) struct Stop {
    alive: Receiver<Infallible>,
}

/// Both ends. `agent` makes the thread's requests, if it makes any: the one that is under way fails when the thread is to
/// end, and later ones at once.
pub(crate) fn running(agent: Option<Agent>) -> (Running, Stop) {
    let (sender, alive) = channel();
    (Running { alive: Some(sender), agent }, Stop { alive })
}

impl Drop for Running {
    fn drop(&mut self) {
        // First, so that the thread knows why its request fails.
        self.alive = None;
        if let Some(agent) = self.agent.take() {
            agent.shutdown();
        }
    }
}

impl Stop {
    /// Waits for this time; true as soon as the thread is to end.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        self.alive.recv_timeout(time) == Err(RecvTimeoutError::Disconnected)
    }

    /// Whether the thread is to end.
    pub(crate) fn is_told(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}

/// Three to five quarters of it, so that programs that were started together do not ask together.
pub(crate) fn spread(time: Duration) -> Duration {
    let mut bytes = [0; 2];
    // Without randomness it is just not spread.
    let _ = getrandom::fill(&mut bytes);
    let part = u32::from(u16::from_ne_bytes(bytes) % 512);
    time / 4 * 3 + time / 1024 * part
}

/// Starts a thread that watches.
pub(crate) fn start_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("discovery".into()).spawn(run).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_when_its_thread_is_told_to_end() {
        let (running, stop) = running(None);
        assert!(!stop.is_told() && !stop.wait(Duration::from_millis(1)));
        let waiter = std::thread::spawn(move || stop.wait(Duration::from_secs(3600)) && stop.is_told());
        drop(running);
        assert!(waiter.join().unwrap());
    }

    #[test]
    fn pauses_are_spread_by_a_quarter() {
        let second = Duration::from_secs(1);
        assert!((0..100).all(|_| (second / 4 * 3..=second / 4 * 5).contains(&spread(second))));
    }
}
