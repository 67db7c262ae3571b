//! Signals that act as commands: stop, move to helpers, move back.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::{flag, low_level};

use crate::control::Command;
use crate::error::Error;
use crate::report::Target;

/// Catches SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 until dropped. Before the run starts, and after a first stop, SIGINT
/// and SIGTERM end the process at once.
#[derive(Debug)]
pub struct Signals {
    wake: UnixStream,
    caught: [(i32, Arc<AtomicBool>); 4],
    ends_process: Arc<AtomicBool>,
    registered: Vec<SigId>,
}

impl Signals {
    pub fn catch() -> Result<Signals, Error> {
        Signals::register().map_err(|e| Error::system("cannot catch signals", e))
    }

    fn register() -> io::Result<Signals> {
        let (wake, wake_writer) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let caught = [SIGINT, SIGTERM, SIGUSR1, SIGUSR2].map(|signal| (signal, Arc::default()));
        let ends_process = Arc::new(AtomicBool::new(true));
        let mut signals = Signals { wake, caught, ends_process, registered: Vec::new() };
        for (signal, flag) in &signals.caught {
            // Handlers run in the order of registration, so the flag is set before the wake-up is sent.
            if [SIGINT, SIGTERM].contains(signal) {
                let ends_process = signals.ends_process.clone();
                signals.registered.push(flag::register_conditional_shutdown(
                    *signal,
                    128 + signal,
                    ends_process,
                )?);
            }
            signals.registered.push(flag::register(*signal, flag.clone())?);
            signals.registered.push(low_level::pipe::register(*signal, wake_writer.try_clone()?)?);
        }
        Ok(signals)
    }

    /// Call it when the run starts: the next SIGINT or SIGTERM is then a `stop` command.
    pub fn run_started(&self) {
        self.ends_process.store(false, Ordering::Relaxed);
    }

    /// The commands of signals caught since the last call.
    pub fn take(&mut self) -> Vec<Command> {
        let mut bytes = [0u8; 64];
        while matches!(self.wake.read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let mut commands = Vec::new();
        for (signal, flag) in &self.caught {
            if flag.swap(false, Ordering::Relaxed) {
                let move_to = |target| Command::Move { target, pace: None, count: None };
                commands.push(match *signal {
                    SIGUSR1 => move_to(Target::Helper),
                    SIGUSR2 => move_to(Target::Direct),
                    _ => {
                        self.ends_process.store(true, Ordering::Relaxed);
                        Command::Stop
                    }
                });
            }
        }
        commands
    }
}

impl AsFd for Signals {
    /// The descriptor is readable when `take` has commands to return.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            low_level::unregister(id);
        }
    }
}
