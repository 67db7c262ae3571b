//! Requests from this machine: one line in, one document out, for each connection to a UNIX socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::socket_file::{SocketFile, connect};

/// What one asker may take of us.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of a request, its line end included.
    pub request_bytes: usize,
    /// For the request to come, and again for the answer to be taken.
    pub patience: Duration,
    /// Askers at one time; others are told to come again.
    pub askers: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { request_bytes: 4096, patience: Duration::from_secs(2), askers: 16 }
    }
}

/// More than any answer has.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// For its owner and group.
const MODE: u32 = 0o660;

/// What is said to one asker too many.
const BUSY: &str = "too many requests at one time; ask again";

/// The socket, for its owner and group (mode 0660). Its file is removed when this is dropped.
#[derive(Debug)]
pub struct AdminServer {
    file: SocketFile,
    closed: Arc<AtomicBool>,
}

impl AdminServer {
    /// Makes the socket. One that a killed program left is replaced; a file that is no socket, a symbolic link
    /// among them, is left alone.
    ///
    /// # Errors
    /// `AddrInUse` where another program answers, or where there is something that is no socket.
    pub fn bind(path: &Path) -> io::Result<AdminServer> {
        Ok(AdminServer { file: SocketFile::bind(path, MODE)?, closed: Arc::default() })
    }

    /// Answers requests on threads of their own, until the server is dropped. `answer` makes
    /// a document of a request's line; `refusal` makes one of a reason why there is none.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn serve(
        &self,
        bounds: Bounds,
        answer: impl Fn(&str) -> String + Send + Sync + 'static,
        refusal: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listener = self.file.listener.try_clone()?;
        let desk = Arc::new(Desk {
            bounds,
            answer: Box::new(answer),
            refusal: Box::new(refusal),
            askers: AtomicU32::new(0),
            closed: Arc::clone(&self.closed),
        });
        std::thread::Builder::new().name("admin".into()).spawn(move || desk.accept(&listener))?;
        Ok(())
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the thread that accepts; fails on no socket that we hold.
        let _ = rustix::net::shutdown(&self.file.listener, rustix::net::Shutdown::Both);
    }
}

type Answer = Box<dyn Fn(&str) -> String + Send + Sync>;

/// What threads that answer share.
struct Desk {
    bounds: Bounds,
    answer: Answer,
    refusal: Answer,
    askers: AtomicU32,
    closed: Arc<AtomicBool>,
}

impl Desk {
    fn accept(self: Arc<Desk>, listener: &UnixListener) {
        for stream in listener.incoming() {
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            let Ok(mut stream) = stream else {
                // Out of descriptors: not to spin.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let turn = Turn::of(&self);
            if self.askers.load(Ordering::Relaxed) > self.bounds.askers {
                // One that does not read misses its answer; nobody else is concerned.
                let _ = self.say(&mut stream, &(self.refusal)(BUSY));
                continue;
            }
            let serving = move || drop(turn.0.answer(&mut stream));
            // Without a thread the asker sees the end of its connection.
            let _ = std::thread::Builder::new().name("admin".into()).spawn(serving);
        }
    }

    fn answer(&self, stream: &mut UnixStream) -> io::Result<()> {
        let document = match self.request(stream)? {
            Ok(line) => (self.answer)(&line),
            Err(why) => (self.refusal)(why),
        };
        self.say(stream, &document)
    }

    /// A line, or what is wrong with it.
    fn request(&self, stream: &mut UnixStream) -> io::Result<Result<String, &'static str>> {
        let deadline = Instant::now() + self.bounds.patience;
        let mut line = Vec::new();
        let mut buffer = [0; 512];
        loop {
            // Whoever sends a byte at a time has no more time than others.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err("no request came in time"));
            }
            stream.set_read_timeout(Some(left))?;
            let count = match stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_late(&error) => return Ok(Err("no request came in time")),
                Err(error) => return Err(error),
            };
            let end = buffer[..count].iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&buffer[..end.unwrap_or(count)]);
            if line.len() >= self.bounds.request_bytes {
                return Ok(Err("the request is too long"));
            }
            if end.is_some() || count == 0 {
                return Ok(String::from_utf8(line).map_err(|_| "the request is not text"));
            }
        }
    }

    fn say(&self, stream: &mut UnixStream, document: &str) -> io::Result<()> {
        stream.set_write_timeout(Some(self.bounds.patience))?;
        stream.write_all(document.as_bytes())?;
        stream.shutdown(Shutdown::Write)
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Counts an asker as long as it lives.
struct Turn(Arc<Desk>);

impl Turn {
    fn of(desk: &Arc<Desk>) -> Turn {
        desk.askers.fetch_add(1, Ordering::Relaxed);
        Turn(Arc::clone(desk))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.askers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks a program that serves requests at `path`: one line, without its end. Waits for the answer for `patience`.
///
/// # Errors
/// Nobody answers there, or not in time.
pub fn ask(path: &Path, request: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(path)?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_read_timeout(Some(patience))?;
    match stream.write_all(format!("{request}\n").as_bytes()) {
        // It may have answered already: that it is busy.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut bytes = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes) {
        // Where it refused without reading all of the request, its end looks like a reset.
        Err(error) if bytes.is_empty() || error.kind() != io::ErrorKind::ConnectionReset => {
            return Err(error);
        }
        _ if bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
        _ => {}
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
