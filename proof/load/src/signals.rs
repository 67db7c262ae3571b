//! Signals as commands: stop, move to the helper, move back.

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

/// Catches four signals of this process until it is dropped. Before the run begins, and once a stop was asked
/// for, SIGINT and SIGTERM end the process at once: there is nothing to wait for, or no patience to.
#[derive(Debug)]
pub struct Signals {
    wake: UnixStream,
    caught: [(i32, Arc<AtomicBool>); 4],
    at_once: Arc<AtomicBool>,
    registered: Vec<SigId>,
}

impl Signals {
    /// Catches SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 from now on.
    pub fn catch() -> Result<Signals, Error> {
        Signals::register().map_err(|e| Error::system("cannot catch signals", e))
    }

    fn register() -> io::Result<Signals> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let caught = [SIGINT, SIGTERM, SIGUSR1, SIGUSR2].map(|signal| (signal, Arc::default()));
        let at_once = Arc::new(AtomicBool::new(true));
        let mut signals = Signals { wake, caught, at_once, registered: Vec::new() };
        for (signal, flag) in &signals.caught {
            // Actions run in this order: the flag is up when the wake-up comes.
            if [SIGINT, SIGTERM].contains(signal) {
                let at_once = signals.at_once.clone();
                signals.registered.push(flag::register_conditional_shutdown(*signal, 128 + signal, at_once)?);
            }
            signals.registered.push(flag::register(*signal, flag.clone())?);
            signals.registered.push(low_level::pipe::register(*signal, woken.try_clone()?)?);
        }
        Ok(signals)
    }

    /// From now on a first SIGINT or SIGTERM is a command.
    pub fn begun(&self) {
        self.at_once.store(false, Ordering::Relaxed);
    }

    /// What was caught since the last call.
    pub fn take(&mut self) -> Vec<Command> {
        let mut bytes = [0u8; 64];
        while matches!(self.wake.read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let mut commands = Vec::new();
        for (signal, flag) in &self.caught {
            if flag.swap(false, Ordering::Relaxed) {
                let to = |target| Command::Move { target, pace: None, count: None };
                commands.push(match *signal {
                    SIGUSR1 => to(Target::Helper),
                    SIGUSR2 => to(Target::Direct),
                    _ => {
                        self.at_once.store(true, Ordering::Relaxed);
                        Command::Stop
                    }
                });
            }
        }
        commands
    }
}

impl AsFd for Signals {
    /// Readable when `take` has something.
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
