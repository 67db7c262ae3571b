//! Lines on standard output.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Prints a line on standard output, as `println!`, which panics instead if the line cannot be written.
macro_rules! print_line {
    ($($argument:tt)*) => {
        $crate::output::print(format_args!($($argument)*))
    };
}

/// Prints a line. If that fails, as on a full disk, the process ends with an error: what it has to say would be lost. A reader
/// that closes the pipe early (`| head`) is not a failure: the exit status is still that of the run.
pub(crate) fn print(line: Arguments<'_>) {
    match writeln!(stdout().lock(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("spillway-lab: cannot print: {error}");
            exit(1);
        }
        _ => {}
    }
}
