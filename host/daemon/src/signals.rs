//! Signals as events for a thread that waits for other things, too.

use std::io;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals as Pending};

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
    /// returns false.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn watch(mut tell: impl FnMut(SignalEvent) -> bool + Send + 'static) -> io::Result<Signals> {
        let mut pending = Pending::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        let handle = pending.handle();
        let waiting = move || {
            for signal in pending.forever() {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

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
