//! Printing of commands' results.

use std::fmt::Display;
use std::io::{self, BufWriter, Write, stdout};
use std::process::ExitCode;

/// Prints lines on stdout. A reader that closes the pipe, such as `head`, is not a failure.
pub(crate) fn print(lines: impl IntoIterator<Item: Display>) -> ExitCode {
    print_and_end(lines, ExitCode::SUCCESS)
}

/// Like [`print`], but returns `ended` unless printing fails.
pub(crate) fn print_and_end(lines: impl IntoIterator<Item: Display>, ended: ExitCode) -> ExitCode {
    let mut out = BufWriter::new(stdout().lock());
    let printed = lines.into_iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("spillway: cannot print: {error}");
            ExitCode::FAILURE
        }
        _ => ended,
    }
}

/// Prints the errors on stderr; returns the successful results, and the exit code: a failure if there was an error.
pub(crate) fn split_outcomes<T>(all: impl IntoIterator<Item = Result<T, String>>) -> (Vec<T>, ExitCode) {
    let (mut fine, mut ended) = (Vec::new(), ExitCode::SUCCESS);
    for one in all {
        match one {
            Ok(one) => fine.push(one),
            Err(error) => {
                eprintln!("spillway: {error}");
                ended = ExitCode::FAILURE;
            }
        }
    }
    (fine, ended)
}
