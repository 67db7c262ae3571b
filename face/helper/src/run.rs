//! A helper that lives until it is told to go.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use spillway_daemon::{SignalEvent, Signals, ThreadWatch};
use tracing::{error, info, warn};

use crate::config::{HelperConfig, StartError};
use crate::helper::Helper;

/// How often a helper that is going away is asked whether it is drained.
const LOOK: Duration = Duration::from_millis(50);
/// How long servers may take to close drained links. Nothing depends on it but their logs.
const LINKS_CLOSE: Duration = Duration::from_secs(1);
/// How much later than its deadline a drain may be; the relay keeps the deadline itself.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// Where settings come from: at the start, and at each reload. Its errors tell the operator the next step.
pub type Source = Box<dyn FnMut() -> Result<HelperConfig, String> + Send>;

/// What wakes the main thread.
enum Wake {
    Signal(SignalEvent),
    /// A thread has ended.
    Ended,
}

/// Runs a helper until it is told to go, with the settings that `source` has now and at each reload.
///
/// SIGTERM or SIGINT: takes no more clients, lets those that are there finish until the drain deadline, then ends; a
/// second one, a second later or more, ends at once. A thread that fails ends the process. SIGHUP: reload. SIGUSR1: a status line on stderr. A service manager is told what goes on.
///
/// # Errors
/// As of [`Helper::start`].
pub fn run(config: HelperConfig, source: Source) -> Result<ExitCode, StartError> {
    // Before any thread is there, so that none misses a signal.
    let (wake, wakes) = channel();
    let ended = wake.clone();
    let tell = move |event| wake.send(Wake::Signal(event)).is_ok();
    let _signals = Signals::watch(tell).map_err(StartError::Host)?;
    let watch = ThreadWatch::new(move || drop(ended.send(Wake::Ended)));
    watch.watch_panics();
    let helper = Helper::start_as(config, Some(source), watch.clone())?;
    let control = Arc::clone(helper.control());
    control.manager().ready(&control.summary());
    Ok(Main { helper, watch, wakes, draining: None }.run())
}

struct Main {
    helper: Helper,
    watch: ThreadWatch,
    wakes: Receiver<Wake>,
    /// When the process ends at the latest.
    draining: Option<Instant>,
}

impl Main {
    fn run(mut self) -> ExitCode {
        let interval = self.helper.control().manager().watchdog_interval();
        let mut alive_at = interval.map(|interval| Instant::now() + interval);
        loop {
            if let Some(wake) = self.wait(alive_at)
                && let Some(code) = self.handle(wake)
            {
                self.helper.stop();
                return code;
            }
            if let Some((at, interval)) = alive_at.zip(interval)
                && at <= Instant::now()
            {
                self.say_alive(interval);
                alive_at = Some(Instant::now() + interval);
            }
            if self.is_over() {
                info!("drained: ending");
                self.helper.stop();
                // A thread that fails just now has no clients either.
                return if self.watch.failure().is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            }
        }
    }

    fn wait(&self, alive_at: Option<Instant>) -> Option<Wake> {
        let look = self.draining.map(|_| Instant::now() + LOOK);
        let Some(until) = [alive_at, look].into_iter().flatten().min() else {
            // The signal thread lives as long as this one.
            return self.wakes.recv().ok();
        };
        self.wakes.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Some when the process is to end at once.
    fn handle(&mut self, wake: Wake) -> Option<ExitCode> {
        match wake {
            Wake::Ended => {
                let failure = self.watch.failure()?;
                error!(
                    "{failure}; ending, so that clients go elsewhere and the service manager starts it again"
                );
                self.helper.control().manager().stopping(failure);
                return Some(ExitCode::FAILURE);
            }
            Wake::Signal(SignalEvent::Status) => spillway_daemon::say(&self.helper.status().to_string()),
            // The outcome is in the log.
            Wake::Signal(SignalEvent::Reload) => drop(self.helper.control().reload()),
            Wake::Signal(SignalEvent::Terminate) if self.draining.is_some() => {
                warn!("told a second time to go: ending at once");
                return Some(ExitCode::SUCCESS);
            }
            Wake::Signal(SignalEvent::Terminate) => self.drain(),
        }
        None
    }

    fn drain(&mut self) {
        let within = self.helper.control().running().settings().config.drain_deadline;
        let deadline_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        info!(deadline_ms, "told to go: no more clients; those that are there may finish");
        self.helper.control().manager().stopping("draining");
        self.helper.drain(within);
        self.draining = Some(Instant::now() + within + DRAIN_SLACK);
    }

    /// The watchdog is told as long as every network thread answers.
    fn say_alive(&self, interval: Duration) {
        let control = self.helper.control();
        if control.running().answers(interval / 2) {
            control.manager().alive();
        } else {
            error!("a network thread stands still: the service manager's watchdog is not told");
        }
    }

    fn is_over(&mut self) -> bool {
        let Some(deadline) = &mut self.draining else { return false };
        if self.helper.is_drained() {
            *deadline = (*deadline).min(Instant::now() + LINKS_CLOSE);
        }
        self.helper.is_disconnected() || Instant::now() >= *deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Service;
    use crate::health::health;

    #[test]
    fn a_thread_that_panics_ends_the_process_also_while_it_drains() {
        for is_draining in [false, true] {
            let (wake, wakes) = channel();
            let watch = ThreadWatch::new(move || drop(wake.send(Wake::Ended)));
            let service = Service::new("cache", spillway_ports::free_address());
            let service = Service { listen: vec![([127, 0, 0, 1], 0).into()], ..service };
            let config = HelperConfig { threads: 2, ..HelperConfig::new(vec![service]) };
            let helper = Helper::start_as(config, None, watch.clone()).unwrap();
            let mut main = Main { helper, watch, wakes, draining: None };
            if is_draining {
                main.draining = Some(Instant::now() + Duration::from_secs(600));
            }
            let control = Arc::clone(main.helper.control());
            assert!(control.running().remotes[1].run(|_, _, _| panic!("injected")).is_ok());
            while main.watch.failure().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(main.run(), ExitCode::FAILURE);
            let why = health(&control.running().status()).unwrap_err();
            assert!(why.contains("thread net-1 panicked: injected"), "{why}");
        }
    }
}
