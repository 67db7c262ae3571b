//! The log of commands that run for long.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// One line for each decision, on stderr. `SPILLWAY_LOG` sets the level: `debug`, `info` (default), `warn`.
pub(crate) fn to_stderr() {
    let filter = EnvFilter::try_from_env("SPILLWAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Fails only where a log has been set up already, which is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
