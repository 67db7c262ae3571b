//! A helper that lives until SIGTERM.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spillway_daemon::{MainThread, Service};
use tracing::info;

use crate::config::{HelperConfig, StartError};
use crate::control::Source;
use crate::helper::Helper;

/// How long servers may take to close drained links. Nothing depends on it but their logs.
const LINKS_CLOSE: Duration = Duration::from_secs(1);
/// How much later than its deadline a drain may be; the relay keeps the deadline itself.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// Runs a helper until SIGTERM, with the settings that `source` has now and at each reload.
///
/// SIGTERM or SIGINT: takes no more clients, lets those that are there finish until the drain deadline, then ends; a
/// second one, a second later or more, ends at once. A thread that fails ends the process. SIGHUP: reload. SIGUSR1: a
/// status line on stderr. A service manager is told what goes on.
///
/// # Errors
/// As of [`Helper::start`].
pub fn run(config: HelperConfig, source: Source) -> Result<ExitCode, StartError> {
    let main = MainThread::new().map_err(StartError::Host)?;
    let helper = Helper::start_as(config, Some(source), main.watch().clone())?;
    let control = Arc::clone(helper.control());
    control.manager().ready(&control.summary());
    Ok(run_on(main, helper))
}

fn run_on(main: MainThread, helper: Helper) -> ExitCode {
    let control = Arc::clone(helper.control());
    let mut running = Running { helper, ends_at: None };
    main.run(&mut running, control.manager())
}

struct Running {
    helper: Helper,
    /// When a drained helper ends at the latest.
    ends_at: Option<Instant>,
}

impl Service for Running {
    fn clients_on_failure(&self) -> &'static str {
        "clients go elsewhere"
    }

    fn status_line(&self) -> String {
        self.helper.status().to_string()
    }

    fn reload(&mut self) {
        // The outcome is in the log.
        let _ = self.helper.control().reload();
    }

    fn drain(&mut self) {
        let within = self.helper.control().running().settings().config.drain_deadline;
        let deadline_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        info!(deadline_ms, "draining: no new clients, deadline {:?}", within);
        self.helper.drain(within);
        self.ends_at = Some(Instant::now() + within + DRAIN_SLACK);
    }

    fn is_over(&mut self) -> bool {
        let Some(ends_at) = &mut self.ends_at else { return false };
        if self.helper.is_drained() {
            *ends_at = (*ends_at).min(Instant::now() + LINKS_CLOSE);
        }
        self.helper.is_disconnected() || Instant::now() >= *ends_at
    }

    fn stop(&mut self) {
        self.helper.end();
    }

    fn is_alive(&mut self, within: Duration) -> bool {
        self.helper.control().running().answers(within)
    }
}

#[cfg(test)]
mod tests {
    use spillway_daemon::SignalEvent;

    use super::*;
    use crate::config;
    use crate::health::health;

    #[test]
    fn a_thread_that_panics_ends_the_process_also_while_it_drains() {
        for is_draining in [false, true] {
            let service = config::Service::new("cache", spillway_ports::free_address());
            let service = config::Service { listen: vec![([127, 0, 0, 1], 0).into()], ..service };
            let config = HelperConfig { threads: 2, ..HelperConfig::new(vec![service]) };
            let main = MainThread::without_signals();
            let watch = main.watch().clone();
            let helper = Helper::start_as(config, None, watch.clone()).unwrap();
            let control = Arc::clone(helper.control());
            if is_draining {
                main.signal(SignalEvent::Terminate);
            }
            assert!(control.running().remotes[1].run(|_, _, _| panic!("injected")).is_ok());
            while watch.failure().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(run_on(main, helper), ExitCode::FAILURE);
            let why = health(&control.running().status()).unwrap_err();
            assert!(why.contains("thread net-1 panicked: injected"), "{why}");
        }
    }
}
