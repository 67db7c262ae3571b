//! Runs a sidecar as a process: signals, watchdog, service manager.

use std::process::ExitCode;
use std::time::Duration;

use spillway_daemon::{MainThread, Manager, Service};
use tracing::{info, warn};

use crate::settings::{Settings, StartError};
use crate::sidecar::Sidecar;

/// Runs a sidecar until SIGTERM.
///
/// SIGTERM or SIGINT drains: no new connections, each open connection ends when it is idle, and the process ends at the
/// drain deadline at the latest. Another SIGTERM or SIGINT ends the process at once; the same signal within 1 s does
/// not count. SIGUSR1 writes a status line to stderr. A thread that fails ends the process. A service manager is
/// notified of start, drain and end.
///
/// # Errors
/// Those of [`Sidecar::start`].
pub fn run(settings: Settings) -> Result<ExitCode, StartError> {
    let main = MainThread::new().map_err(StartError::Host)?;
    let drain_deadline = settings.drain_deadline;
    let sidecar = Sidecar::start_watched(settings, main.watch().clone())?;
    let manager = Manager::from_environment();
    manager.ready(&sidecar.status().summary());
    Ok(main.run(&mut SidecarService::new(sidecar, drain_deadline), &manager))
}

struct SidecarService {
    sidecar: Sidecar,
    drain_deadline: Duration,
    is_draining: bool,
    /// Turns of each network thread at the last check of the watchdog.
    turns: Vec<Option<u64>>,
}

impl SidecarService {
    fn new(sidecar: Sidecar, drain_deadline: Duration) -> SidecarService {
        let turns = sidecar.turns();
        SidecarService { sidecar, drain_deadline, is_draining: false, turns }
    }
}

impl Service for SidecarService {
    fn clients_on_failure(&self) -> &'static str {
        "clients are reset"
    }

    fn status_line(&self) -> String {
        self.sidecar.status().to_string()
    }

    fn reload(&mut self) {
        warn!("a sidecar has no configuration file to reload: restart it to change its options");
    }

    fn drain(&mut self) {
        let deadline_ms = u64::try_from(self.drain_deadline.as_millis()).unwrap_or(u64::MAX);
        info!(deadline_ms, "draining: no new connections, deadline {:?}", self.drain_deadline);
        self.is_draining = true;
        self.sidecar.drain(self.drain_deadline);
    }

    fn is_drained(&mut self) -> bool {
        self.sidecar.running() == 0
    }

    fn stop(&mut self) {
        self.sidecar.end();
    }

    /// Whether every network thread has made turns since the last call, or has ended because it is drained.
    fn is_alive(&mut self, _: Duration) -> bool {
        let turns = self.sidecar.turns();
        let before = std::mem::replace(&mut self.turns, turns);
        all_made_turns(self.is_draining, &before, &self.turns)
    }
}

/// Whether each network thread has made turns between two times; `None` for a thread that has ended.
fn all_made_turns(is_draining: bool, before: &[Option<u64>], now: &[Option<u64>]) -> bool {
    before.iter().zip(now).all(|(before, now)| match now {
        Some(_) => before < now,
        None => is_draining,
    })
}

#[cfg(test)]
mod tests {
    use spillway_client::Key;
    use spillway_daemon::SignalEvent;

    use super::*;

    #[test]
    fn ended_thread_is_alive_only_while_draining() {
        let before = [Some(1), Some(5)];
        assert!(all_made_turns(false, &before, &[Some(2), Some(6)]));
        assert!(
            !all_made_turns(false, &before, &[Some(2), Some(5)]),
            "a thread without a turn should not be alive"
        );
        assert!(!all_made_turns(false, &before, &[Some(2), None]), "an ended thread should not be alive");
        assert!(all_made_turns(true, &before, &[Some(2), None]), "a drained thread should count as alive");
    }

    #[test]
    fn failure_of_a_thread_ends_the_process_also_while_it_drains() {
        for is_draining in [false, true] {
            let mut settings = Settings::new(spillway_ports::free_address(), Key::loopback_only());
            settings.listen = vec![crate::Listen::Tcp(([127, 0, 0, 1], 0).into())];
            let main = MainThread::without_signals();
            let sidecar = Sidecar::start_watched(settings, main.watch().clone()).unwrap();
            let _failing = main.watch().spawn("broken", || Err("injected")).unwrap();
            let mut running = SidecarService::new(sidecar, Duration::from_secs(600));
            if is_draining {
                main.signal(SignalEvent::Terminate);
            }
            assert_eq!(main.run(&mut running, &Manager::default()), ExitCode::FAILURE);
        }
    }
}
