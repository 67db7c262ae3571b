//! A process, and waiting for lines of its output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A long timeout, because programs run under valgrind while other tests run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A running program; it is killed when dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Option<JoinHandle<String>>,
    name: String,
    seen: Vec<String>,
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{name}: {error}; tools/setup installs it"));
        let (output, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The receiver may be dropped already. The rest is read anyway, so that the program's output does not block.
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let input = child.stdin.take();
        Process { child, input, lines, errors: Some(errors), name, seen: Vec::new() }
    }

    pub fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for the next line that matches, and skips others.
    pub fn line(&mut self, expected: &str, mut is_match: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if is_match(&line) {
                        return line;
                    }
                }
                Err(why) => self.fail(
                    &format!("a line should match {expected:?}: {why}"),
                    why == RecvTimeoutError::Disconnected,
                ),
            }
        }
    }

    pub fn line_with(&mut self, text: &str) -> String {
        self.line(text, |line| line.contains(text))
    }

    pub fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits until the program ends with status 0, and returns all its lines.
    pub fn succeed(mut self) -> Vec<String> {
        self.close_input();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => self.fail("the program should end within 120 s", false),
            }
        }
        let status = self.child.wait().unwrap();
        if !status.success() {
            self.fail(&status.to_string(), true);
        }
        std::mem::take(&mut self.seen)
    }

    fn fail(&mut self, problem: &str, has_ended: bool) -> ! {
        if !has_ended {
            let _ = self.child.kill();
        }
        let errors = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let last = &self.seen[self.seen.len().saturating_sub(20)..];
        panic!("{}: {problem}\nlast lines: {last:#?}\nerrors:\n{errors}", self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
