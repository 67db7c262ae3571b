//! The log of commands that run for long: one line for each decision, on stderr.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How decisions are logged, by whatever command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Form of log lines, on stderr
    #[arg(long, global = true, value_enum, default_value_t = Form::Text, value_name = "FORM", help_heading = "Log")]
    log: Form,

    /// Log details, too. SPILLWAY_LOG sets the level otherwise: debug, info (default), warn
    #[arg(short, long, global = true, help_heading = "Log")]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people: message and facts
    Text,
    /// For programs: an object a line, with every fact as a field
    Json,
}

impl Args {
    /// Sets the log up, once for the process.
    pub(crate) fn start(&self) {
        let filter = match EnvFilter::try_from_env("SPILLWAY_LOG") {
            _ if self.verbose => EnvFilter::new("debug"),
            Ok(filter) => filter,
            Err(_) => EnvFilter::new("info"),
        };
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
        // Fails only where a log has been set up already, which is as good.
        let _ = match self.log {
            Form::Text => log.with_ansi(stderr().is_terminal()).try_init(),
            Form::Json => {
                log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
            }
        };
    }
}
