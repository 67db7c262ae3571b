//! Pseudo-terminals on which commands run, or to which they write their logs.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A pseudo-terminal. The test reads what the command writes to it, and writes what the user types.
pub struct Terminal {
    pub master: File,
    /// The path of the command's end.
    pub path: String,
}

impl Terminal {
    pub fn new() -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        Terminal { master: File::from(master), path }
    }

    /// Standard input, output and error of a command on this terminal.
    pub fn streams(&self) -> [OwnedFd; 3] {
        let flags = OFlags::NOCTTY.bits().cast_signed();
        let end = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path).unwrap();
        [(); 3].map(|()| OwnedFd::from(end.try_clone().unwrap()))
    }

    /// Waits for output, and returns at most this number of bytes. `None`: all processes have closed the terminal.
    pub fn read(&mut self, bytes_max: usize) -> Option<String> {
        let mut bytes = vec![0; bytes_max];
        match self.master.read(&mut bytes) {
            Ok(length @ 1..) => Some(super::text(&bytes[..length])),
            _ => None,
        }
    }

    /// All output until the terminal is closed.
    pub fn rest(&mut self) -> String {
        std::iter::from_fn(|| self.read(4096)).collect()
    }
}
