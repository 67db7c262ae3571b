//! A process that locks a page for tests, as a server does.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) struct Holder(Child);

impl Holder {
    pub(crate) fn of(path: &Path) -> Holder {
        const HOLD: &str = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); \
            print('held', flush=True); sys.stdin.read()";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", HOLD]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("run python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Holder(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
