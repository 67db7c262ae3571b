//! Files for a process's standard error stream to which writing fails or blocks: full and closed pipes, terminals.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::Scratch;
use super::terminal::Terminal;

/// Returns the arguments to put before a command, so that its standard error goes to the file `log`.
pub fn redirect_stderr(log: Option<&str>) -> Vec<String> {
    let redirect = |path: &str| {
        let script = r#"log=$1; shift; exec "$@" 2>"$log""#;
        ["sh", "-c", script, "sh", path].map(str::to_owned).to_vec()
    };
    log.map(redirect).unwrap_or_default()
}

/// A full pipe from which no process ever reads.
pub struct FullPipe {
    pub path: String,
    /// Both ends of the pipe.
    _ends: File,
}

impl FullPipe {
    pub fn new(scratch: &Scratch, name: &str) -> FullPipe {
        let (path, mut ends) = pipe(scratch, name, true);
        loop {
            match ends.write(b"this is never read\n") {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return FullPipe { path, _ends: ends },
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A pipe whose reading end is closed when the value is dropped.
pub struct Reader {
    pub path: String,
    _end: File,
}

impl Reader {
    pub fn new(scratch: &Scratch, name: &str) -> Reader {
        let (path, end) = pipe(scratch, name, false);
        Reader { path, _end: end }
    }
}

/// Creates a named pipe. Returns its path and its reading end, which with `also_writes` is the writing end as well.
fn pipe(scratch: &Scratch, name: &str, also_writes: bool) -> (String, File) {
    let path = scratch.path(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let end = OpenOptions::new().read(true).write(also_writes).custom_flags(nonblocking).open(&path);
    (path, end.unwrap())
}

/// A terminal that takes the log of a process, and from which only the test reads.
pub struct LogTerminal {
    terminal: Terminal,
    /// The end to which processes write.
    slave: File,
}

impl LogTerminal {
    pub fn new() -> LogTerminal {
        let terminal = Terminal::new();
        // Servers that change their user must be able to open the terminal.
        fs::set_permissions(&terminal.path, Permissions::from_mode(0o666)).unwrap();
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let slave = OpenOptions::new().write(true).custom_flags(flags).open(&terminal.path).unwrap();
        LogTerminal { terminal, slave }
    }

    pub fn path(&self) -> &str {
        &self.terminal.path
    }

    /// Reads at most this number of bytes; blocks until there is one.
    pub fn read(&mut self, bytes_max: usize) -> String {
        self.terminal.read(bytes_max).expect("the test has the terminal open")
    }

    pub fn fill(&mut self) {
        while self.has_room() {
            match self.slave.write(&[b'x'; 100]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn has_room(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.slave, PollFlags::OUT)], Some(&now)).unwrap() > 0
    }
}
