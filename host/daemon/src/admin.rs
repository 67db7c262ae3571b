//! The admin socket, a UNIX socket: each connection carries one request line and one document as its answer.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{error, warn};

use crate::peer::Peer;
use crate::privileges::drop_net_raw;
use crate::socket_file::{SocketFile, connect};

/// Limits on the connections to an admin socket.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum length of a request in bytes, with its line end.
    pub request_bytes: usize,
    /// Time limit for reading the request, and again for writing the answer.
    pub timeout: Duration,
    /// Maximum number of connections at one time; further ones are refused. Peers that may only read use at most half
    /// of them, so that an operator can always connect.
    pub connections_max: u32,
    /// Time between checks that the socket's file exists. It is created again if it was removed, as by a cleaner of
    /// temporary files: no client could connect to the daemon any more.
    pub file_check_interval: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            request_bytes: 4096,
            timeout: Duration::from_secs(2),
            connections_max: 16,
            file_check_interval: Duration::from_secs(2),
        }
    }
}

/// Maximum length of an answer in bytes; [`send_request`] reads no further.
pub const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The socket's permissions without an `admin_group`: every peer that can connect may operate.
const MODE: u32 = 0o660;
/// Permissions with an `admin_group`: every user can connect and read.
const MODE_FOR_READERS: u32 = 0o666;

const BUSY: &str = "too many requests at one time; try again";
const TOO_LATE: &str = "no complete request came in time";

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Read the daemon's state.
    Read,
    /// Read and change the daemon's state.
    Operate,
}

/// The peer of a connection whose request is being answered.
#[derive(Debug)]
pub struct Requester<'a> {
    stream: &'a UnixStream,
    rights: Rights,
}

impl Requester<'_> {
    /// What the peer may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Whether the peer still waits for the answer. A client closes its connection when it is cancelled and when its
    /// timeout ends: a daemon that was stopped meanwhile must not carry out the request later. A peer that has only
    /// ended its writing side is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let mut wait = [PollFd::new(self.stream, PollFlags::IN)];
        // Without a result the peer counts as connected: an error here is not the peer's.
        let _ = poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !wait[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// The admin socket. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct AdminServer {
    file: Arc<Mutex<SocketFile>>,
    operator_group: Option<u32>,
    is_closed: Arc<AtomicBool>,
}

impl AdminServer {
    /// Creates the socket and its file, with the errors of [`SocketFile::bind`]. Without `operator_group`, its owner
    /// and group may connect (mode 0660) and operate. With the number of a group, every user may connect (mode 0666)
    /// and read; members of the group, the daemon's user and root operate.
    pub fn bind(path: &Path, operator_group: Option<u32>) -> io::Result<AdminServer> {
        let mode = if operator_group.is_some() { MODE_FOR_READERS } else { MODE };
        let file = Arc::new(Mutex::new(SocketFile::bind(path, mode)?));
        Ok(AdminServer { file, operator_group, is_closed: Arc::default() })
    }

    /// Answers requests on separate threads until the server is dropped. `answer` forms the document for a request
    /// line of a peer, `refusal` the document for the reason of a refusal.
    ///
    /// # Errors
    /// The host has no descriptors or threads left.
    pub fn serve(
        &self,
        bounds: Bounds,
        answer: impl Fn(&str, &Requester<'_>) -> String + Send + Sync + 'static,
        refusal: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listener = lock(&self.file).listener.try_clone()?;
        let handler = Arc::new(Handler {
            bounds,
            operator_group: self.operator_group,
            answer: Box::new(answer),
            refusal: Box::new(refusal),
            reader_connections: AtomicU32::new(0),
            operator_connections: AtomicU32::new(0),
            is_closed: Arc::clone(&self.is_closed),
        });
        let file = Arc::clone(&self.file);
        let accept = move || {
            // A request may reload the configuration, for which its thread keeps the other capabilities.
            drop_net_raw();
            handler.accept(listener, &file);
        };
        std::thread::Builder::new().name("admin".into()).spawn(accept)?;
        Ok(())
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        // Under the lock, so that the accepting thread creates no file after this.
        let file = lock(&self.file);
        self.is_closed.store(true, Ordering::Release);
        file.remove();
        // Wakes the accepting thread. Cannot fail: the descriptor is an open socket.
        let _ = rustix::net::shutdown(&file.listener, rustix::net::Shutdown::Both);
    }
}

type Answer = Box<dyn Fn(&str, &Requester<'_>) -> String + Send + Sync>;
type Refusal = Box<dyn Fn(&str) -> String + Send + Sync>;

/// State shared by the accepting and the answering threads.
struct Handler {
    bounds: Bounds,
    operator_group: Option<u32>,
    answer: Answer,
    refusal: Refusal,
    /// Connections of peers with [`Rights::Read`].
    reader_connections: AtomicU32,
    /// Connections of peers with [`Rights::Operate`].
    operator_connections: AtomicU32,
    is_closed: Arc<AtomicBool>,
}

impl Handler {
    fn accept(self: Arc<Handler>, mut listener: UnixListener, file: &Mutex<SocketFile>) {
        let mut watch =
            FileWatch { next: Instant::now(), interval: self.bounds.file_check_interval, has_failed: false };
        loop {
            if !is_readable(&listener, watch.next) {
                if let Some(restored) = watch.check(file, &self.is_closed) {
                    listener = restored;
                }
                continue;
            }
            let stream = listener.accept();
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            let Ok((mut stream, _)) = stream else {
                // The process has no descriptors left: a retry at once would only use CPU.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let rights = self.rights(&stream);
            let connection = ConnectionGuard::new(&self, rights);
            if self.is_full(rights) {
                // An error means that the peer does not read: only its own refusal is lost.
                let _ = self.send(&mut stream, &(self.refusal)(BUSY));
                continue;
            }
            let serve = move || drop(connection.handler.answer(&mut stream, rights));
            // If the thread cannot be started, dropping the stream closes the connection.
            let _ = std::thread::Builder::new().name("admin".into()).spawn(serve);
        }
    }

    fn is_full(&self, rights: Rights) -> bool {
        let [readers, operators] =
            [Rights::Read, Rights::Operate].map(|rights| self.connections(rights).load(Ordering::Relaxed));
        match rights {
            Rights::Read => readers > self.bounds.connections_max / 2,
            Rights::Operate => readers + operators > self.bounds.connections_max,
        }
    }

    fn connections(&self, rights: Rights) -> &AtomicU32 {
        match rights {
            Rights::Read => &self.reader_connections,
            Rights::Operate => &self.operator_connections,
        }
    }

    fn answer(&self, stream: &mut UnixStream, rights: Rights) -> io::Result<()> {
        let document = match self.read_request(stream)? {
            Ok(line) => (self.answer)(&line, &Requester { stream: &*stream, rights }),
            Err(why) => (self.refusal)(why),
        };
        self.send(stream, &document)
    }

    /// The rights of the process that connected. A process whose groups the kernel does not report may only read.
    fn rights(&self, stream: &UnixStream) -> Rights {
        let Some(operator_group) = self.operator_group else { return Rights::Operate };
        match Peer::of(stream) {
            Ok(peer) if peer.may_operate(operator_group) => Rights::Operate,
            _ => Rights::Read,
        }
    }

    /// Reads the request line. The inner error is the reason to refuse the request.
    fn read_request(&self, stream: &mut UnixStream) -> io::Result<Result<String, &'static str>> {
        let deadline = Instant::now() + self.bounds.timeout;
        let mut line = Vec::new();
        let mut buffer = [0; 512];
        loop {
            // One deadline for the whole request: a peer that sends single bytes does not extend it.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(TOO_LATE));
            }
            stream.set_read_timeout(Some(left))?;
            let count = match stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_timeout(&error) => return Ok(Err(TOO_LATE)),
                Err(error) => return Err(error),
            };
            let end = buffer[..count].iter().position(|byte| *byte == b'\n');
            line.extend_from_slice(&buffer[..end.unwrap_or(count)]);
            if line.len() >= self.bounds.request_bytes {
                return Ok(Err("the request is too long"));
            }
            if end.is_some() || count == 0 {
                return Ok(String::from_utf8(line).map_err(|_| "the request is not UTF-8 text"));
            }
        }
    }

    fn send(&self, stream: &mut UnixStream, document: &str) -> io::Result<()> {
        let deadline = Instant::now() + self.bounds.timeout;
        let mut rest = document.as_bytes();
        while !rest.is_empty() {
            // One deadline for the whole answer: a peer that reads single bytes does not extend it.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_write_timeout(Some(left))?;
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        stream.shutdown(Shutdown::Write)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Waits until a listener has a connection, or is shut down. Returns false if the deadline has passed before.
fn is_readable(listener: &UnixListener, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut wait = [PollFd::new(listener, PollFlags::IN)];
    // Fails only for a timeout that is out of range: then `accept` waits.
    let left = Timespec::try_from(left).ok();
    match poll(&mut wait, left.as_ref()) {
        Ok(ready) => ready > 0,
        Err(error) => error != rustix::io::Errno::INTR,
    }
}

fn lock(file: &Mutex<SocketFile>) -> MutexGuard<'_, SocketFile> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that the socket's file exists.
struct FileWatch {
    /// Time of the next check.
    next: Instant,
    interval: Duration,
    /// Whether the last check could not create the file again: logged once.
    has_failed: bool,
}

impl FileWatch {
    /// Creates the file again if it was removed; returns the new listener.
    fn check(&mut self, file: &Mutex<SocketFile>, is_closed: &AtomicBool) -> Option<UnixListener> {
        self.next = Instant::now() + self.interval;
        let mut file = lock(file);
        if is_closed.load(Ordering::Acquire) || !file.is_removed() {
            return None;
        }
        let path = file.path().to_owned();
        match file.restore().and_then(|()| file.listener.try_clone()) {
            Ok(listener) => {
                warn!(path = %path.display(), "the admin socket's file was removed, and is created again");
                self.has_failed = false;
                Some(listener)
            }
            Err(error) => {
                if !self.has_failed {
                    error!(
                        path = %path.display(), %error,
                        "the admin socket's file was removed and cannot be created again: restart the daemon"
                    );
                }
                self.has_failed = true;
                None
            }
        }
    }
}

/// Counts a connection in [`Handler::connections`] until it is dropped.
struct ConnectionGuard {
    handler: Arc<Handler>,
    rights: Rights,
}

impl ConnectionGuard {
    fn new(handler: &Arc<Handler>, rights: Rights) -> ConnectionGuard {
        handler.connections(rights).fetch_add(1, Ordering::Relaxed);
        ConnectionGuard { handler: Arc::clone(handler), rights }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.handler.connections(self.rights).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a request, one line without its end, to the program at the socket `path`, and returns the answer. `timeout`
/// bounds each write and each read.
///
/// # Errors
/// Connecting, writing or reading failed or timed out; `InvalidData` if the answer is not UTF-8.
pub fn send_request(path: &Path, request: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = connect(path)?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_read_timeout(Some(timeout))?;
    match stream.write_all(format!("{request}\n").as_bytes()) {
        // A busy server refuses and closes without reading the request; the refusal can still be read.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut bytes = Vec::new();
    match stream.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut bytes) {
        // A server that closes without reading all of the request causes a reset after its answer.
        Err(error) if bytes.is_empty() || error.kind() != io::ErrorKind::ConnectionReset => {
            return Err(error);
        }
        _ if bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
        _ if bytes.len() as u64 > ANSWER_BYTES_MAX => {
            return Err(io::Error::other(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes")));
        }
        _ => {}
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
