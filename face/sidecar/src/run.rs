//! A sidecar that lives until it is told to go.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use spillway_daemon::{Manager, SignalEvent, Signals, ThreadWatch};
use tracing::{error, info, warn};

use crate::settings::{Settings, StartError};
use crate::sidecar::Sidecar;

enum Wake {
    Signal(SignalEvent),
    /// A thread has ended.
    Ended,
}

/// Runs a sidecar until it is told to go.
///
/// SIGTERM or SIGINT: takes no more connections, lets those that are there become idle until the drain deadline, then
/// ends; a second one, a second later or more, ends at once. A thread that fails ends the process. SIGUSR1: a status line on stderr. A service manager is told what goes on.
///
/// # Errors
/// As of [`Sidecar::start`].
pub fn run(settings: Settings) -> Result<ExitCode, StartError> {
    // Before any thread is there, so that none misses a signal.
    let (wake, wakes) = channel();
    let ended = wake.clone();
    let _signals =
        Signals::watch(move |event| wake.send(Wake::Signal(event)).is_ok()).map_err(StartError::Host)?;
    let drain_deadline = settings.drain_deadline;
    let watch = ThreadWatch::new(move || drop(ended.send(Wake::Ended)));
    watch.watch_panics();
    let sidecar = Sidecar::start_as(settings, watch)?;
    let manager = Manager::from_environment();
    manager.ready(&sidecar.status().summary());
    Ok(Main { sidecar, manager, wakes, drain_deadline, is_draining: false }.run())
}

struct Main {
    sidecar: Sidecar,
    manager: Manager,
    wakes: Receiver<Wake>,
    drain_deadline: Duration,
    is_draining: bool,
}

impl Main {
    fn run(mut self) -> ExitCode {
        let interval = self.manager.watchdog_interval();
        let mut alive = interval.map(|interval| (Instant::now() + interval, self.sidecar.turns()));
        loop {
            if let Some(wake) = self.wait(alive.as_ref().map(|(at, _)| *at))
                && let Some(code) = self.handle(wake)
            {
                return code;
            }
            if let (Some((at, before)), Some(interval)) = (&mut alive, interval)
                && *at <= Instant::now()
            {
                let turns = self.sidecar.turns();
                self.say_alive(before, &turns);
                (*at, *before) = (Instant::now() + interval, turns);
            }
        }
    }

    fn wait(&self, alive_at: Option<Instant>) -> Option<Wake> {
        match alive_at {
            // The signal thread lives as long as this one.
            None => self.wakes.recv().ok(),
            Some(at) => self.wakes.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
        }
    }

    /// Some when the process is to end.
    fn handle(&mut self, wake: Wake) -> Option<ExitCode> {
        match wake {
            Wake::Ended => {
                if let Some(failure) = self.sidecar.failure() {
                    error!(
                        "{failure}; ending, so that clients notice and the service manager starts it again"
                    );
                    self.manager.stopping(failure);
                    return Some(ExitCode::FAILURE);
                }
                // Threads end in order when they are drained.
                if self.sidecar.running() == 0 {
                    info!("drained: ending");
                    return Some(ExitCode::SUCCESS);
                }
            }
            Wake::Signal(SignalEvent::Status) => spillway_daemon::say(&self.sidecar.status().to_string()),
            Wake::Signal(SignalEvent::Reload) => warn!("a sidecar has nothing to read again: restart it"),
            Wake::Signal(SignalEvent::Terminate) if self.is_draining => {
                warn!("told a second time to go: ending at once");
                return Some(ExitCode::SUCCESS);
            }
            Wake::Signal(SignalEvent::Terminate) => {
                let deadline_ms = u64::try_from(self.drain_deadline.as_millis()).unwrap_or(u64::MAX);
                info!(deadline_ms, "told to go: no more connections; those that are there may become idle");
                self.manager.stopping("draining");
                self.is_draining = true;
                self.sidecar.drain(self.drain_deadline);
            }
        }
        None
    }

    /// The watchdog is told as long as every network thread makes turns, or has ended because it is drained.
    fn say_alive(&self, before: &[Option<u64>], now: &[Option<u64>]) {
        if make_turns(self.is_draining, before, now) {
            self.manager.alive();
        } else {
            error!("a network thread stands still: the service manager's watchdog is not told");
        }
    }
}

/// Turns of each network thread then and now; none of one that has ended.
fn make_turns(is_draining: bool, before: &[Option<u64>], now: &[Option<u64>]) -> bool {
    before.iter().zip(now).all(|(before, now)| match now {
        Some(_) => before < now,
        None => is_draining,
    })
}

#[cfg(test)]
mod tests {
    use spillway_client::Key;

    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_not_alive_unless_it_is_drained() {
        let before = [Some(1), Some(5)];
        assert!(make_turns(false, &before, &[Some(2), Some(6)]));
        assert!(!make_turns(false, &before, &[Some(2), Some(5)]), "it stands still");
        assert!(!make_turns(false, &before, &[Some(2), None]), "it has failed");
        assert!(make_turns(true, &before, &[Some(2), None]), "it is drained");
    }

    #[test]
    fn a_failure_ends_the_process_also_while_it_drains() {
        for is_draining in [false, true] {
            let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
            settings.listen = vec![crate::Listen::Tcp(([127, 0, 0, 1], 0).into())];
            let (wake, wakes) = channel();
            let watch = ThreadWatch::new(move || drop(wake.send(Wake::Ended)));
            let sidecar = Sidecar::start_as(settings, watch.clone()).unwrap();
            let _failing = watch.spawn("broken", || Err("injected")).unwrap();
            let drain_deadline = Duration::from_secs(600);
            let main = Main { sidecar, manager: Manager::default(), wakes, drain_deadline, is_draining };
            assert_eq!(main.run(), ExitCode::FAILURE);
        }
    }
}
