//! Runs a helper until SIGTERM.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use spillway_daemon::{MainThread, Service, keep_capabilities};
use tracing::{error, info};

use crate::config::{HelperConfig, StartError};
use crate::control::{Control, SettingsSource};
use crate::helper::Helper;

/// Time for servers to close drained links. The helper closes the remaining ones: their servers log that.
const LINKS_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time from the drain deadline, at which the relays reset their clients, to the end of the process.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// Runs a helper until SIGTERM; `source` reads the settings at each reload.
///
/// SIGTERM or SIGINT: drains until the drain deadline, then ends; a second signal, 1 s later, ends at once.
/// SIGHUP: reload. SIGUSR1: the status on standard error. A thread that fails ends the process. A service manager is
/// notified of start, reload, drain and end.
///
/// # Errors
/// See [`Helper::start`].
pub fn run(config: HelperConfig, source: SettingsSource) -> Result<ExitCode, StartError> {
    let main = MainThread::new().map_err(StartError::Host)?;
    let helper = Helper::start_as(config, Some(source), main.watch().clone())?;
    // Only the start of the engine xdp takes CAP_NET_RAW. The reload thread inherits the other capabilities.
    keep_capabilities(!CapabilitySet::NET_RAW).map_err(StartError::Host)?;
    let control = Arc::clone(helper.control());
    control.manager().ready(&control.summary());
    Ok(run_on(main, helper))
}

fn run_on(main: MainThread, helper: Helper) -> ExitCode {
    let control = Arc::clone(helper.control());
    let reloads = match Reloads::start(Arc::clone(&control)) {
        Ok(reloads) => reloads,
        Err(error) => {
            error!("cannot start the thread that reloads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut service = HelperService { helper, ends_at: None, reloads };
    main.run(&mut service, control.manager())
}

/// A thread that reloads, so that slow look-ups of names delay neither the watchdog nor a signal to end.
struct Reloads(SyncSender<()>);

impl Reloads {
    fn start(control: Arc<Control>) -> io::Result<Reloads> {
        let (request, requests) = sync_channel(1);
        let reload = move || {
            while requests.recv().is_ok() {
                // `reload` logs its outcome.
                let _ = control.reload();
            }
        };
        std::thread::Builder::new().name("reload".into()).spawn(reload)?;
        Ok(Reloads(request))
    }

    /// Requests a reload, unless a request waits already, which will read the settings after this call.
    fn request(&self) {
        let _ = self.0.try_send(());
    }
}

struct HelperService {
    helper: Helper,
    /// Time at which a drain ends at the latest.
    ends_at: Option<Instant>,
    reloads: Reloads,
}

impl Service for HelperService {
    fn clients_on_failure(&self) -> &'static str {
        "clients go elsewhere"
    }

    fn status_line(&self) -> String {
        self.helper.status().to_string()
    }

    fn reload(&mut self) {
        self.reloads.request();
    }

    fn drain(&mut self) {
        let within = self.helper.control().running().settings().config.drain_deadline;
        let deadline_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        info!(deadline_ms, "draining: no new clients, deadline {:?}", within);
        self.helper.drain(within);
        self.ends_at = Some(Instant::now() + within + DRAIN_SLACK);
    }

    fn is_drained(&mut self) -> bool {
        let Some(ends_at) = &mut self.ends_at else { return false };
        if self.helper.is_drained() {
            *ends_at = (*ends_at).min(Instant::now() + LINKS_CLOSE_TIMEOUT);
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
    fn panic_of_a_network_thread_ends_the_process_also_during_a_drain() {
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
