//! A helper that lives until it is told to go.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{error, info, warn};

use crate::config::{HelperConfig, StartError};
use crate::helper::Helper;

/// How often a helper that is going away is asked whether it is drained.
const LOOK: Duration = Duration::from_millis(50);
/// How long servers may take to close drained links. Nothing depends on it but their logs.
const LINKS_CLOSE: Duration = Duration::from_secs(1);
/// How much later than its deadline a drain may be; the relay keeps the deadline itself.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// Runs a helper until it is told to go. SIGTERM or SIGINT: takes no more clients, lets those that are there finish
/// until the drain deadline, then ends; a second one ends at once. SIGUSR1: a status line on stderr.
///
/// # Errors
/// As of [`Helper::start`].
pub fn run(config: HelperConfig) -> Result<ExitCode, StartError> {
    // Before any thread is there, so that none misses a signal.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(StartError::Host)?;
    let drain_deadline = config.drain_deadline;
    // A thread that ends wakes us as a signal does.
    let handle = signals.handle();
    let helper = Helper::start_watched(config, Arc::new(move || handle.close()))?;
    let mut draining: Option<Instant> = None;
    loop {
        let came: Vec<i32> = if draining.is_some() {
            std::thread::sleep(LOOK);
            signals.pending().collect()
        } else {
            signals.wait().collect()
        };
        for signal in came {
            match signal {
                SIGUSR1 => eprintln!("{}", helper.status()),
                _ if draining.is_some() => {
                    warn!("told a second time to go: ending at once");
                    helper.stop();
                    return Ok(ExitCode::SUCCESS);
                }
                _ => {
                    info!(
                        "told to go: no more clients; those that are there may finish for {drain_deadline:?}"
                    );
                    helper.drain(drain_deadline);
                    draining = Some(Instant::now() + drain_deadline + DRAIN_SLACK);
                }
            }
        }
        if !helper.is_whole() {
            error!("a network thread has ended: ending, so that clients go elsewhere");
            helper.stop();
            return Ok(ExitCode::FAILURE);
        }
        if let Some(deadline) = &mut draining {
            if helper.is_drained() {
                *deadline = (*deadline).min(Instant::now() + LINKS_CLOSE);
            }
            if helper.is_disconnected() || Instant::now() >= *deadline {
                info!("drained: ending");
                helper.stop();
                return Ok(ExitCode::SUCCESS);
            }
        }
        if draining.is_none() && signals.is_closed() {
            // The thread that ends is about to be gone.
            std::thread::sleep(LOOK);
        }
    }
}
