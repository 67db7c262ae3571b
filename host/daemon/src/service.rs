//! The main thread of a daemon: handles signals and failed threads, drains the service, and resets the watchdog.

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use crate::{Manager, SignalEvent, Signals, ThreadWatch};

/// Interval between calls of [`Service::is_drained`] during a drain.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A daemon's work, as its main thread controls it.
pub trait Service {
    /// What clients do when the process ends after a failure. Completes the log line "ending, so that … and the service
    /// manager restarts the process".
    fn clients_on_failure(&self) -> &'static str;

    /// The status text that SIGUSR1 prints.
    fn status_line(&self) -> String;

    /// Starts to read the settings again (SIGHUP); the outcome is in the log. Must not wait for names or files: the
    /// main thread resets the watchdog.
    fn reload(&mut self);

    /// Begins to drain: no new clients.
    fn drain(&mut self);

    /// Whether the drain is over. Called at least every 50 ms after [`drain`](Self::drain).
    fn is_drained(&mut self) -> bool;

    /// Ends the service at once, and returns when its threads have ended. The process then exits.
    fn stop(&mut self);

    /// Whether every thread responds within `within`, or has responded since the last call. Called once in each interval
    /// of the watchdog, which is longer than `within`.
    fn is_alive(&mut self, within: Duration) -> bool;
}

enum Wake {
    Signal(SignalEvent),
    ThreadEnded,
}

/// The main thread of a daemon. Create it before any other thread: until then a signal has its default effect, and a
/// panic is not noticed.
pub struct MainThread {
    wake_sender: Sender<Wake>,
    wake_receiver: Receiver<Wake>,
    watch: ThreadWatch,
    _signals: Option<Signals>,
}

impl MainThread {
    /// Handles signals, and treats every panic of the process as a failure.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn new() -> io::Result<MainThread> {
        let mut main = MainThread::without_signals();
        let wake_sender = main.wake_sender.clone();
        main._signals = Some(Signals::watch(move |event| wake_sender.send(Wake::Signal(event)).is_ok())?);
        main.watch.watch_panics();
        Ok(main)
    }

    /// Handles neither signals nor panics: for tests, which share their process.
    pub fn without_signals() -> MainThread {
        let (wake_sender, wake_receiver) = channel();
        let thread_ended = wake_sender.clone();
        let watch = ThreadWatch::new(move || drop(thread_ended.send(Wake::ThreadEnded)));
        MainThread { wake_sender, wake_receiver, watch, _signals: None }
    }

    /// Delivers a signal event to [`run`](Self::run).
    pub fn signal(&self, event: SignalEvent) {
        // Cannot fail: this struct holds the receiver.
        let _ = self.wake_sender.send(Wake::Signal(event));
    }

    /// Starts and watches the service's threads.
    pub fn watch(&self) -> &ThreadWatch {
        &self.watch
    }

    /// Runs a service until it ends, and notifies the service manager. Call [`Manager::ready`] first.
    ///
    /// SIGTERM or SIGINT starts a drain, after which the process ends; another one ends the process at once (the same
    /// signal within 1 s does not count). SIGHUP reloads the settings. SIGUSR1 prints the status on standard error. A
    /// thread that fails ends the process with [`ExitCode::FAILURE`].
    pub fn run(self, service: &mut dyn Service, manager: &Manager) -> ExitCode {
        let interval = manager.watchdog_interval();
        let mut watchdog_at = interval.map(|interval| Instant::now() + interval);
        let mut is_draining = false;
        loop {
            match self.wait(watchdog_at, is_draining) {
                None => {}
                Some(Wake::ThreadEnded) => {
                    if let Some(failure) = self.watch.failure() {
                        let clients = service.clients_on_failure();
                        error!(
                            "{failure}; ending, so that {clients} and the service manager restarts the process"
                        );
                        manager.stopping(failure);
                        service.stop();
                        return ExitCode::FAILURE;
                    }
                }
                Some(Wake::Signal(SignalEvent::Status)) => crate::log_line(&service.status_line()),
                Some(Wake::Signal(SignalEvent::Reload)) => service.reload(),
                Some(Wake::Signal(SignalEvent::Terminate)) if is_draining => {
                    warn!("SIGTERM or SIGINT came a second time: ending at once");
                    service.stop();
                    return ExitCode::SUCCESS;
                }
                Some(Wake::Signal(SignalEvent::Terminate)) => {
                    manager.stopping("draining");
                    service.drain();
                    is_draining = true;
                }
            }
            if let Some((at, interval)) = watchdog_at.zip(interval)
                && at <= Instant::now()
            {
                let within = interval / 2;
                if service.is_alive(within) {
                    manager.alive();
                } else {
                    error!(
                        "the threads of this program have not all responded within {within:?}: the watchdog is not reset"
                    );
                }
                watchdog_at = Some(Instant::now() + interval);
            }
            if is_draining && service.is_drained() {
                info!("drained: ending");
                service.stop();
                // A thread may have failed during `stop`. Its clients have already left.
                return if self.watch.failure().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            }
        }
    }

    fn wait(&self, watchdog_at: Option<Instant>, is_draining: bool) -> Option<Wake> {
        let check_at = is_draining.then(|| Instant::now() + DRAIN_CHECK_INTERVAL);
        let Some(until) = [watchdog_at, check_at].into_iter().flatten().min() else {
            // Always `Some`: this struct holds a sender.
            return self.wake_receiver.recv().ok();
        };
        self.wake_receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts reloads and drains. A drain is over when `is_drained` has been called `drain_checks` times.
    struct FakeService {
        drain_checks: u32,
        reloads: u32,
        drains: u32,
    }

    impl FakeService {
        fn new(drain_checks: u32) -> FakeService {
            FakeService { drain_checks, reloads: 0, drains: 0 }
        }
    }

    impl Service for FakeService {
        fn clients_on_failure(&self) -> &'static str {
            "clients of the test stay"
        }

        fn stop(&mut self) {}

        fn status_line(&self) -> String {
            String::new()
        }

        fn reload(&mut self) {
            self.reloads += 1;
        }

        fn drain(&mut self) {
            self.drains += 1;
        }

        fn is_drained(&mut self) -> bool {
            self.drain_checks -= 1;
            self.drain_checks == 0
        }

        fn is_alive(&mut self, _: Duration) -> bool {
            true
        }
    }

    #[test]
    fn drain_ends_when_the_service_has_drained_or_at_a_second_signal() {
        let run = |events: &[SignalEvent], drain_checks| {
            let (main, mut service) = (MainThread::without_signals(), FakeService::new(drain_checks));
            events.iter().for_each(|event| main.signal(*event));
            let exit_code = main.run(&mut service, &Manager::default());
            (exit_code, service.reloads, service.drains)
        };
        let (reload, terminate) = (SignalEvent::Reload, SignalEvent::Terminate);
        assert_eq!(run(&[reload, reload, terminate], 3), (ExitCode::SUCCESS, 2, 1));
        assert_eq!(run(&[terminate, terminate], u32::MAX), (ExitCode::SUCCESS, 0, 1));
    }

    #[test]
    fn thread_failure_ends_the_process_also_during_a_drain() {
        for events in [&[][..], &[SignalEvent::Terminate]] {
            let main = MainThread::without_signals();
            events.iter().for_each(|event| main.signal(*event));
            let _failing = main.watch().spawn("broken", || Err("injected")).unwrap();
            assert_eq!(main.run(&mut FakeService::new(u32::MAX), &Manager::default()), ExitCode::FAILURE);
        }
    }
}
