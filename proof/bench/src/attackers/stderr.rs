//! Runs a program whose standard error is a full pipe, or a pipe without a reader.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Full,
    /// The reading end is closed.
    Broken,
}

/// Replaces this process by `command`, with a faulty standard error. Returns only if the start failed.
pub(super) fn run(command: &[String], fault: Fault) -> Result<(), String> {
    let command = command.strip_prefix(&["--".to_owned()]).unwrap_or(command);
    let (program, arguments) = command.split_first().ok_or("give a command to run")?;
    let failed = |e: rustix::io::Errno| format!("cannot make a pipe: {e}");
    let (reader, writer) = pipe_with(PipeFlags::empty()).map_err(failed)?;
    if fault == Fault::Full {
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).map_err(failed)?;
        let mut pipe = std::fs::File::from(writer.try_clone().map_err(|e| e.to_string())?);
        let mut size = 4096;
        while size > 0 {
            // Fill the pipe to the last byte: a short line must not fit either.
            if pipe.write(&vec![b'.'; size]).is_err() {
                size /= 2;
            }
        }
        // Blocking again: a program that writes without polling first must hang, not get EAGAIN.
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).map_err(failed)?;
        // The reading end stays open across exec, so that the pipe is full and not broken.
        std::mem::forget(reader);
    } else {
        drop(reader);
    }
    let error = Command::new(program).args(arguments).stderr(writer).exec();
    Err(format!("cannot run {program}: {error}"))
}
