//! Signals as events.

use std::io;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals as Pending};

use crate::privileges::drop_capabilities;

/// A SIGTERM or SIGINT repeated within this time counts once: coreutils' `timeout` signals its child, then the group.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A request by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// SIGTERM or SIGINT: drain, then end.
    Terminate,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: print the status.
    Status,
}

/// Registered signals. A separate thread waits for them; it ends when this is dropped.
#[derive(Debug)]
pub struct Signals {
    handle: Handle,
}

impl Signals {
    /// Registers the signals, and calls `handle_event` for each one received, until it returns false; for
    /// SIGTERM and SIGINT at most once a second each.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn watch(mut handle_event: impl FnMut(SignalEvent) -> bool + Send + 'static) -> io::Result<Signals> {
        let mut pending = Pending::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        let handle = pending.handle();
        let waiting = move || {
            drop_capabilities();
            let mut recent = RecentTerminations::default();
            for signal in pending.forever() {
                if recent.is_repeated(signal, Instant::now()) {
                    continue;
                }
                let event = match signal {
                    SIGHUP => SignalEvent::Reload,
                    SIGUSR1 => SignalEvent::Status,
                    _ => SignalEvent::Terminate,
                };
                if !handle_event(event) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(waiting)?;
        Ok(Signals { handle })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Terminating signals of the last [`REPEAT_INTERVAL`].
#[derive(Debug, Default)]
struct RecentTerminations {
    signals: Vec<(i32, Instant)>,
}

impl RecentTerminations {
    /// Whether to ignore this signal as a repetition. Otherwise remembers the signal.
    fn is_repeated(&mut self, signal: i32, now: Instant) -> bool {
        if ![SIGTERM, SIGINT].contains(&signal) {
            return false;
        }
        self.signals.retain(|(_, at)| now.saturating_duration_since(*at) < REPEAT_INTERVAL);
        let is_repeated = self.signals.iter().any(|(recent, _)| *recent == signal);
        if !is_repeated {
            self.signals.push((signal, now));
        }
        is_repeated
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn a_signal_to_the_process_and_to_its_group_counts_once() {
        let (mut recent, start) = (RecentTerminations::default(), Instant::now());
        let mut is_repeated =
            |signal, millis| recent.is_repeated(signal, start + Duration::from_millis(millis));
        assert!(!is_repeated(SIGTERM, 0) && is_repeated(SIGTERM, 0) && is_repeated(SIGTERM, 999));
        assert!(!is_repeated(SIGINT, 999), "each signal should have its own interval");
        assert!(!is_repeated(SIGTERM, 1000), "a signal after the interval should count");
        assert!(!is_repeated(SIGHUP, 1000) && !is_repeated(SIGHUP, 1000));
    }

    #[test]
    fn each_signal_is_delivered_as_its_event() {
        let (send, events) = channel();
        let signals = Signals::watch(move |event| send.send(event).is_ok()).unwrap();
        for (signal, event) in [
            (Signal::HUP, SignalEvent::Reload),
            (Signal::USR1, SignalEvent::Status),
            (Signal::TERM, SignalEvent::Terminate),
            (Signal::INT, SignalEvent::Terminate),
        ] {
            kill_process(getpid(), signal).unwrap();
            assert_eq!(events.recv_timeout(Duration::from_secs(30)), Ok(event));
        }
        drop(signals);
        assert!(
            events.recv_timeout(Duration::from_secs(30)).is_err(),
            "the thread should end and drop its sender"
        );
    }
}
