//! Logging options, and the log on standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write, stderr};
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum;
use spillway_daemon::Log;
use tracing::{Subscriber, error, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Format of log lines on standard error
    #[arg(long, global = true, value_enum, default_value_t = Form::Text, value_name = "FORM", help_heading = "Log")]
    log: Form,

    /// Log details. Otherwise SPILLWAY_LOG sets the level: debug, info (default) or warn
    #[arg(short, long, global = true, help_heading = "Log")]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A message and its facts
    Text,
    /// One object on each line, with each fact as a field
    Json,
}

impl Args {
    /// Sets up the log of a short command: each thread writes its own lines.
    pub(crate) fn start(&self) {
        self.install(stderr);
    }

    /// Sets up the log of a daemon: a separate thread writes all lines, so that a full pipe stops no other thread.
    /// Panics are log lines for the same reason: a panic message that blocks would keep its thread from ending.
    ///
    /// # Errors
    /// The host has no threads left.
    pub(crate) fn start_daemon(&self) -> io::Result<()> {
        let args = self.clone();
        let log = Log::to_standard_error(move |dropped| args.dropped_line(dropped))?;
        self.install(move || log);
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
            let place = panic.location().map(ToString::to_string);
            let message = spillway_daemon::panic_message(panic.payload());
            let trace = Backtrace::capture();
            let trace = (trace.status() == BacktraceStatus::Captured).then(|| trace.to_string());
            error!(%thread, place, trace, "panicked: {message}");
        }));
        Ok(())
    }

    fn install(&self, writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) {
        // Fails only if a log is already set up.
        let _ = tracing::subscriber::set_global_default(self.subscriber(writer));
    }

    fn subscriber(
        &self,
        writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
    ) -> Box<dyn Subscriber + Send + Sync> {
        let filter = match EnvFilter::try_from_env("SPILLWAY_LOG") {
            _ if self.verbose => EnvFilter::new("debug"),
            Ok(filter) => filter,
            Err(_) => EnvFilter::new("info"),
        };
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(writer)
            .with_target(false)
            // The library would report a failed write on standard error, and panic if that fails, too.
            .log_internal_errors(false);
        match self.log {
            Form::Text => Box::new(log.with_ansi(is_coloured()).finish()),
            Form::Json => Box::new(
                log.json().flatten_event(true).with_current_span(false).with_span_list(false).finish(),
            ),
        }
    }

    /// The log line about dropped lines, formatted like all others.
    fn dropped_line(&self, dropped: u64) -> Vec<u8> {
        let line = CapturedLine::default();
        let writer = line.clone();
        let subscriber = self.subscriber(move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            warn!(dropped, "{dropped} log lines dropped: standard error could not be written, or too slowly");
        });
        let bytes = line.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.clone()
    }
}

/// Colours only on terminals that support them, and unless `NO_COLOR` is set (<https://no-color.org>).
fn is_coloured() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    stderr().is_terminal()
        && !is_set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[derive(Clone, Default)]
struct CapturedLine(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_are_logged_in_the_format_of_the_log() {
        let line = |log| {
            let line = Args { log, verbose: true }.dropped_line(7);
            String::from_utf8(line).expect("UTF-8")
        };
        let text = line(Form::Text);
        assert!(text.contains("WARN 7 log lines dropped") && text.ends_with('\n'), "{text:?}");
        let json: serde_json::Value = serde_json::from_str(&line(Form::Json)).expect("JSON object");
        assert_eq!((&json["level"], &json["dropped"]), (&"WARN".into(), &7.into()), "{json}");
    }
}
