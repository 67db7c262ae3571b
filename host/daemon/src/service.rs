//! The main thread of a daemon: waits for signals and for threads that end, drains, and keeps the watchdog quiet.

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use crate::{Manager, SignalEvent, Signals, ThreadWatch};

/// How often a service that is going away is asked whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// What a daemon does, as its main thread sees it.
pub trait Service {
    /// A line for people who send SIGUSR1.
    fn status_line(&self) -> String;

    /// SIGHUP: reads its settings again. The outcome is in the log.
    fn reload(&mut self);

    /// Takes no more clients, and lets those that are there finish.
    fn drain(&mut self);

    /// Whether a service that was told to [`drain`](Self::drain) has nothing left to wait for.
    fn is_over(&mut self) -> bool;

    /// Whether every thread has done something within this time. Asked once in each interval of the watchdog.
    fn is_alive(&mut self, within: Duration) -> bool;
}

/// What wakes the main thread.
enum Wake {
    Signal(SignalEvent),
    /// A thread has ended.
    Ended,
}

/// The main thread's ears: made before any other thread, so that none misses a signal.
pub struct MainThread {
    wakes: Receiver<Wake>,
    watch: ThreadWatch,
    /// Nothing where nobody sends signals.
    _signals: Option<Signals>,
}

impl MainThread {
    /// Listens to signals, and has every panic watched.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn new() -> io::Result<MainThread> {
        let (wake, wakes) = channel();
        let ended = wake.clone();
        let signals = Signals::watch(move |event| wake.send(Wake::Signal(event)).is_ok())?;
        let watch = ThreadWatch::new(move || drop(ended.send(Wake::Ended)));
        watch.watch_panics();
        Ok(MainThread { wakes, watch, _signals: Some(signals) })
    }

    /// Listens to no signals: for a process that has other main threads, as tests have.
    pub fn without_signals() -> MainThread {
        let (wake, wakes) = channel();
        let watch = ThreadWatch::new(move || drop(wake.send(Wake::Ended)));
        MainThread { wakes, watch, _signals: None }
    }

    /// Whom the service's threads are to be started with.
    pub fn watch(&self) -> &ThreadWatch {
        &self.watch
    }

    /// Runs a service until it is told to go. The caller has told the manager that it is ready.
    ///
    /// SIGTERM or SIGINT: drains, then ends; a second one ends at once. A thread that fails ends the process. SIGHUP:
    /// reload. SIGUSR1: a status line on standard error. The service manager is told what goes on.
    pub fn run(self, service: &mut dyn Service, manager: &Manager) -> ExitCode {
        let interval = manager.watchdog_interval();
        let mut alive_at = interval.map(|interval| Instant::now() + interval);
        let mut is_draining = false;
        loop {
            match self.wait(alive_at, is_draining) {
                None => {}
                Some(Wake::Ended) => {
                    if let Some(failure) = self.watch.failure() {
                        error!(
                            "{failure}; ending, so that clients go elsewhere and the service manager starts it again"
                        );
                        manager.stopping(failure);
                        return ExitCode::FAILURE;
                    }
                }
                Some(Wake::Signal(SignalEvent::Status)) => crate::say(&service.status_line()),
                Some(Wake::Signal(SignalEvent::Reload)) => service.reload(),
                Some(Wake::Signal(SignalEvent::Terminate)) if is_draining => {
                    warn!("told a second time to go: ending at once");
                    return ExitCode::SUCCESS;
                }
                Some(Wake::Signal(SignalEvent::Terminate)) => {
                    manager.stopping("draining");
                    service.drain();
                    is_draining = true;
                }
            }
            if let Some((at, interval)) = alive_at.zip(interval)
                && at <= Instant::now()
            {
                if service.is_alive(interval / 2) {
                    manager.alive();
                } else {
                    error!("a network thread stands still: the service manager's watchdog is not told");
                }
                alive_at = Some(Instant::now() + interval);
            }
            if is_draining && service.is_over() {
                info!("drained: ending");
                // A thread that fails just now has no clients either.
                return if self.watch.failure().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            }
        }
    }

    fn wait(&self, alive_at: Option<Instant>, is_draining: bool) -> Option<Wake> {
        let look = is_draining.then(|| Instant::now() + LOOK);
        let Some(until) = [alive_at, look].into_iter().flatten().min() else {
            // The signal thread lives as long as this one.
            return self.wakes.recv().ok();
        };
        self.wakes.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}
