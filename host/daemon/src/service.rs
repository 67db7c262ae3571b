//! The main thread of a daemon: waits for signals and for threads that end, drains, and keeps the watchdog quiet.

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};

use crate::{Manager, SignalEvent, Signals, ThreadWatch};

/// How often a service that is going away is asked whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// What a daemon does, as its main thread sees it.
pub trait Service {
    /// What clients do when the process ends on a failure, for the log: "clients go elsewhere".
    fn clients_on_failure(&self) -> &'static str;

    /// A line for people who send SIGUSR1.
    fn status_line(&self) -> String;

    /// SIGHUP: reads its settings again. The outcome is in the log.
    fn reload(&mut self);

    /// Takes no more clients, and lets those that are there finish.
    fn drain(&mut self);

    /// Whether a service that was told to [`drain`](Self::drain) has nothing left to wait for.
    fn is_over(&mut self) -> bool;

    /// Ends at once, and waits for its threads: whether one has failed until then is looked at after this.
    fn stop(&mut self);

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
    wake: Sender<Wake>,
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
        let mut main = MainThread::without_signals();
        let wake = main.wake.clone();
        main._signals = Some(Signals::watch(move |event| wake.send(Wake::Signal(event)).is_ok())?);
        main.watch.watch_panics();
        Ok(main)
    }

    /// Listens to no signals: for a process that has other main threads, as tests have.
    pub fn without_signals() -> MainThread {
        let (wake, wakes) = channel();
        let ended = wake.clone();
        let watch = ThreadWatch::new(move || drop(ended.send(Wake::Ended)));
        MainThread { wake, wakes, watch, _signals: None }
    }

    /// As if a signal had come.
    pub fn signal(&self, event: SignalEvent) {
        // Does not fail: the other end is in this struct.
        let _ = self.wake.send(Wake::Signal(event));
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
                        let clients = service.clients_on_failure();
                        error!(
                            "{failure}; ending, so that {clients} and the service manager starts it again"
                        );
                        manager.stopping(failure);
                        service.stop();
                        return ExitCode::FAILURE;
                    }
                }
                Some(Wake::Signal(SignalEvent::Status)) => crate::say(&service.status_line()),
                Some(Wake::Signal(SignalEvent::Reload)) => service.reload(),
                Some(Wake::Signal(SignalEvent::Terminate)) if is_draining => {
                    warn!("told a second time to go: ending at once");
                    service.stop();
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
                service.stop();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what it is told, and is drained when it has been looked at so often.
    struct Fake {
        looks: u32,
        reloads: u32,
        drains: u32,
    }

    impl Fake {
        fn new(looks: u32) -> Fake {
            Fake { looks, reloads: 0, drains: 0 }
        }
    }

    impl Service for Fake {
        fn clients_on_failure(&self) -> &'static str {
            "the test sees it"
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

        fn is_over(&mut self) -> bool {
            self.looks -= 1;
            self.looks == 0
        }

        fn is_alive(&mut self, _: Duration) -> bool {
            true
        }
    }

    #[test]
    fn a_drain_is_waited_for_and_a_second_signal_ends_it() {
        let run = |events: &[SignalEvent], looks| {
            let (main, mut fake) = (MainThread::without_signals(), Fake::new(looks));
            events.iter().for_each(|event| main.signal(*event));
            let code = main.run(&mut fake, &Manager::default());
            (code, fake.reloads, fake.drains)
        };
        let (reload, terminate) = (SignalEvent::Reload, SignalEvent::Terminate);
        assert_eq!(run(&[reload, reload, terminate], 3), (ExitCode::SUCCESS, 2, 1));
        assert_eq!(run(&[terminate, terminate], u32::MAX), (ExitCode::SUCCESS, 0, 1));
    }

    #[test]
    fn a_failure_ends_the_process_also_while_it_drains() {
        for events in [&[][..], &[SignalEvent::Terminate]] {
            let main = MainThread::without_signals();
            events.iter().for_each(|event| main.signal(*event));
            let _failing = main.watch().spawn("broken", || Err("injected")).unwrap();
            assert_eq!(main.run(&mut Fake::new(u32::MAX), &Manager::default()), ExitCode::FAILURE);
        }
    }
}
