//! A program whose standard error takes nothing: a pipe that is full because its reader is stuck, or one whose reader is gone.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

/// What is wrong with the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Full, and its reader reads nothing.
    Full,
    /// Without a reader.
    Broken,
}

/// Runs a command with such a standard error, in the place of this process. Returns only when it cannot.
pub(super) fn run(words: &[String], fault: Fault) -> Result<(), String> {
    let words = words.strip_prefix(&["--".to_owned()]).unwrap_or(words);
    let (program, arguments) = words.split_first().ok_or("which command?")?;
    let failed = |e: rustix::io::Errno| format!("cannot make a pipe: {e}");
    let (reader, writer) = pipe_with(PipeFlags::empty()).map_err(failed)?;
    if fault == Fault::Full {
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).map_err(failed)?;
        let mut pipe = std::fs::File::from(writer.try_clone().map_err(|e| e.to_string())?);
        let mut size = 4096;
        while size > 0 {
            // Down to the last byte, or a short line would still fit.
            if pipe.write(&vec![b'.'; size]).is_err() {
                size /= 2;
            }
        }
        // The program must block where it does not take care.
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).map_err(failed)?;
        // The reading end stays open in the program, which does not know of it.
        std::mem::forget(reader);
    } else {
        drop(reader);
    }
    let error = Command::new(program).args(arguments).stderr(writer).exec();
    Err(format!("cannot run {program}: {error}"))
}
