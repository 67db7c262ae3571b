//! The rates of a helper in the last two minutes, for its status page.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_daemon::drop_capabilities;

use crate::rates::Rates;
use crate::running::Running;
use crate::status::HelperStatus;

/// Time between two samples.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
/// Number of samples that are kept: those of two minutes.
pub(crate) const SAMPLES_MAX: usize = 60;

#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    last: Option<HelperStatus>,
    rates: VecDeque<Rates>,
}

impl History {
    /// Adds the rates between this status and the one recorded before.
    pub(crate) fn record(&self, status: HelperStatus) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = samples.last.as_ref().and_then(|last| Rates::between(last, &status));
        if let Some(rates) = rates {
            if samples.rates.len() == SAMPLES_MAX {
                samples.rates.pop_front();
            }
            samples.rates.push_back(rates);
        }
        samples.last = Some(status);
    }

    /// The rates of each interval, the oldest first.
    pub(crate) fn rates(&self) -> Vec<Rates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rates.iter().cloned().collect()
    }
}

/// Records a helper's status at each interval, in a thread that ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// # Errors
    /// The host cannot start another thread.
    pub(crate) fn start(running: Arc<Running>, history: Arc<History>) -> io::Result<Sampler> {
        let (stop, stopped) = channel::<()>();
        let sample = move || {
            drop_capabilities();
            history.record(running.status());
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                history.record(running.status());
            }
        };
        let thread = std::thread::Builder::new().name("history".into()).spawn(sample)?;
        Ok(Sampler { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Joining fails if the thread panicked; the history then has no later samples.
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime_ms: u64) -> HelperStatus {
        HelperStatus { pid: 7, uptime_ms, ..HelperStatus::default() }
    }

    #[test]
    fn history_keeps_the_samples_of_two_minutes() {
        let history = History::default();
        history.record(status(0));
        assert!(history.rates().is_empty());
        for sample in 1..=SAMPLES_MAX as u64 + 5 {
            history.record(status(sample * 1001));
        }
        let rates = history.rates();
        assert_eq!(rates.len(), SAMPLES_MAX);
        assert!(
            rates.iter().all(|rates| (rates.seconds - 1.001).abs() < 1e-9),
            "each rate should cover its own interval"
        );
    }

    #[test]
    fn status_of_the_same_time_or_another_process_adds_no_rates() {
        let history = History::default();
        history.record(status(5_000));
        history.record(status(5_000));
        history.record(HelperStatus { pid: 8, ..status(9_000) });
        assert!(history.rates().is_empty());
    }
}
