//! Signals as events for a thread that waits for other things, too.

use std::io;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals as Pending};

/// The same signal within this time is the same wish: programs such as coreutils' `timeout` signal their child, and then
/// the process group that it is in.
const SAME_WISH: Duration = Duration::from_secs(1);

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// SIGTERM or SIGINT: end, after those who are served have finished.
    Terminate,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: say what goes on.
    Status,
}

/// Registered signals. They are waited for by a thread of their own, which ends when this is dropped.
#[derive(Debug)]
pub struct Signals {
    handle: Handle,
}

impl Signals {
    /// Registers the signals before any of them can be missed, and calls `tell` for each that comes, until it
    /// returns false. SIGTERM and SIGINT are told once in a second each.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn watch(mut tell: impl FnMut(SignalEvent) -> bool + Send + 'static) -> io::Result<Signals> {
        let mut pending = Pending::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        let handle = pending.handle();
        let waiting = move || {
            let mut ends = Ends::default();
            for signal in pending.forever() {
                if ends.is_repeated(signal, Instant::now()) {
                    continue;
                }
                let event = match signal {
                    SIGHUP => SignalEvent::Reload,
                    SIGUSR1 => SignalEvent::Status,
                    _ => SignalEvent::Terminate,
                };
                if !tell(event) {
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

/// Signals that end the process, and when each was told last.
#[derive(Debug, Default)]
struct Ends {
    told: Vec<(i32, Instant)>,
}

impl Ends {
    /// Whether this is the same wish as the signal told before.
    fn is_repeated(&mut self, signal: i32, now: Instant) -> bool {
        if ![SIGTERM, SIGINT].contains(&signal) {
            return false;
        }
        self.told.retain(|(_, at)| now.saturating_duration_since(*at) < SAME_WISH);
        let is_repeated = self.told.iter().any(|(one, _)| *one == signal);
        if !is_repeated {
            self.told.push((signal, now));
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
    fn a_signal_to_the_process_and_to_its_group_is_one_wish() {
        let (mut ends, start) = (Ends::default(), Instant::now());
        let mut is_repeated =
            |signal, millis| ends.is_repeated(signal, start + Duration::from_millis(millis));
        assert!(!is_repeated(SIGTERM, 0) && is_repeated(SIGTERM, 0) && is_repeated(SIGTERM, 999));
        assert!(!is_repeated(SIGINT, 999), "another signal is another wish");
        assert!(!is_repeated(SIGTERM, 1000), "whoever insists is obeyed");
        assert!(!is_repeated(SIGHUP, 1000) && !is_repeated(SIGHUP, 1000));
    }

    #[test]
    fn each_signal_is_told() {
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
        assert!(events.recv_timeout(Duration::from_secs(30)).is_err(), "the thread has ended");
    }
}
