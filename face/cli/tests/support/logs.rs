//! Standard errors that fail: for tests of what becomes of whoever logs.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::Scratch;

/// Words before a command that have its standard error go to this file.
pub fn to(log: Option<&str>) -> Vec<String> {
    let redirect = |path: &str| {
        let script = r#"log=$1; shift; exec "$@" 2>"$log""#;
        ["sh", "-c", script, "sh", path].map(str::to_owned).to_vec()
    };
    log.map(redirect).unwrap_or_default()
}

/// A pipe that nobody reads, and that is full. It stays so while the file is kept.
pub struct FullPipe {
    pub path: String,
    _ends: File,
}

impl FullPipe {
    pub fn new(scratch: &Scratch, name: &str) -> FullPipe {
        let (path, mut ends) = pipe(scratch, name, true);
        loop {
            match ends.write(b"nobody reads this\n") {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return FullPipe { path, _ends: ends },
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A pipe whose reader goes when this is dropped.
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

fn pipe(scratch: &Scratch, name: &str, also_writes: bool) -> (String, File) {
    let path = scratch.path(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let end = OpenOptions::new().read(true).write(also_writes).custom_flags(nonblocking).open(&path);
    (path, end.unwrap())
}
