//! Clients on kernel sockets: busy ones, and ones that do not read.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use spillway_lab::{Host, LabError};
use spillway_load::monotonic_ns;

use crate::error::Error;

/// A client that waits for longer than this has lost its connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// Length of a request of busy clients.
const REQUEST_BYTES: usize = 64;
/// Requests of a client whose times wait to be taken; those beyond it are not recorded.
const RECORDED_MAX: usize = 1 << 20;
/// Receive buffer of clients that do not read, in bytes: less than the kernel's minimum, so that it takes that.
const SMALL_BUFFER_BYTES: usize = 1;
/// Period of the pattern of bytes.
const PATTERN_PERIOD: usize = 251;
/// How often, and at which interval, a queue is filled up until it has its size.
const FILLS_MAX: usize = 100;
const FILL_INTERVAL: Duration = Duration::from_millis(50);

/// Beginning and end of a request, in ns on the monotonic clock.
pub(super) type Span = (u64, u64);

/// A client that sends a request, waits for the reply, compares it, and sends the next one at once.
pub(super) struct Busy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Result<Counts, String>, LabError>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    spans: Mutex<Vec<Span>>,
}

/// What a busy client has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub replies: u64,
    pub wrong: u64,
}

impl Busy {
    pub(super) fn start(host: &Host, service: SocketAddr, number: u64) -> Result<Busy, Error> {
        let stream = host.run_inside(|| connect(service, None))?.map_err(connecting)?;
        let address = stream.local_addr().map_err(connecting)?;
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let thread = host.thread(move || exchange(&stream, number, &of_thread))?;
        Ok(Busy { address, shared, thread })
    }

    /// The requests since the last call, in their order.
    pub(super) fn take_spans(&self) -> Vec<Span> {
        std::mem::take(&mut *self.shared.spans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the client. An error says how its connection ended before.
    pub(super) fn stop(self) -> Result<Counts, String> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(Ok(outcome)) => outcome.map_err(|why| format!("client {}: {why}", self.address)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("a client's thread has panicked".into()),
        }
    }
}

fn exchange(mut stream: &TcpStream, number: u64, shared: &Shared) -> Result<Counts, String> {
    let (mut counts, mut reply) = (Counts::default(), [0; REQUEST_BYTES]);
    while !shared.is_over.load(Ordering::Relaxed) {
        let request = request(number, counts.replies);
        let begun = monotonic_ns();
        stream.write_all(&request).map_err(|error| format!("a request was not sent: {error}"))?;
        stream.read_exact(&mut reply).map_err(|error| format!("no reply: {error}"))?;
        let span = (begun, monotonic_ns());
        counts.replies += 1;
        counts.wrong += u64::from(reply != request);
        let mut spans = shared.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() < RECORDED_MAX {
            spans.push(span);
        }
    }
    Ok(counts)
}

/// Requests of all clients differ.
fn request(client: u64, number: u64) -> [u8; REQUEST_BYTES] {
    let mut request = [0; REQUEST_BYTES];
    for (index, part) in request.chunks_exact_mut(16).enumerate() {
        let mixed = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index as u64);
        part[..8].copy_from_slice(&client.to_be_bytes());
        part[8..].copy_from_slice(&mixed.to_be_bytes());
    }
    request
}

/// A client with bytes in the server's send queue, which it does not read before the end.
pub(super) struct Unread {
    pub address: SocketAddr,
    stream: TcpStream,
    written: usize,
}

impl Unread {
    /// Opens `count` connections, and sends until the server has at least `queued` bytes to return on each for which the
    /// client's buffer has no room.
    pub(super) fn open_all(
        host: &Host,
        service: SocketAddr,
        (count, queued): (usize, usize),
    ) -> Result<Vec<Unread>, Error> {
        let open = || -> Result<Unread, Error> {
            let stream =
                host.run_inside(|| connect(service, Some(SMALL_BUFFER_BYTES)))?.map_err(connecting)?;
            let address = stream.local_addr().map_err(connecting)?;
            Ok(Unread { address, stream, written: 0 })
        };
        let mut all = (0..count).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..FILLS_MAX {
            let mut is_full = true;
            for unread in &mut all {
                is_full &= unread.fill(queued)?;
            }
            if is_full {
                return Ok(all);
            }
            // Until the echoes have arrived for which there is room.
            std::thread::sleep(FILL_INTERVAL);
        }
        Err(Error::process(format!("the queue of a connection does not reach {queued} bytes"), ""))
    }

    /// Sends what is missing. Returns whether nothing was.
    fn fill(&mut self, queued: usize) -> Result<bool, Error> {
        let missing = queued.saturating_sub(self.queued()?);
        let bytes: Vec<u8> = (self.written..self.written + missing).map(pattern).collect();
        self.stream.write_all(&bytes).map_err(connecting)?;
        self.written += missing;
        Ok(missing == 0)
    }

    /// Bytes that the client has sent and not received.
    pub(super) fn queued(&self) -> Result<usize, Error> {
        let received = rustix::io::ioctl_fionread(&self.stream).map_err(|errno| connecting(errno.into()))?;
        Ok(self.written.saturating_sub(usize::try_from(received).unwrap_or(usize::MAX)))
    }

    /// Reads everything that was sent. Returns how many bytes were wrong.
    pub(super) fn read_all(mut self) -> Result<u64, String> {
        let mut bytes = vec![0; self.written];
        self.stream
            .read_exact(&mut bytes)
            .map_err(|error| format!("client {}: {error} instead of its bytes", self.address))?;
        let is_wrong = |(index, byte): &(usize, &u8)| **byte != pattern(*index);
        Ok(bytes.iter().enumerate().filter(is_wrong).count() as u64)
    }
}

fn pattern(index: usize) -> u8 {
    (index % PATTERN_PERIOD) as u8 // below 251
}

fn connect(service: SocketAddr, receive_buffer: Option<usize>) -> io::Result<TcpStream> {
    let family = if service.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket: OwnedFd = rustix::net::socket(family, SocketType::STREAM, None)?;
    if let Some(bytes) = receive_buffer {
        rustix::net::sockopt::set_socket_recv_buffer_size(socket.as_fd(), bytes)?;
    }
    rustix::net::connect(&socket, &service)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn connecting(cause: io::Error) -> Error {
    Error::System { what: "a client of the service".into(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_clients_and_all_numbers_differ() {
        let mut all: Vec<_> =
            (0..3).flat_map(|client| (0..50).map(move |number| request(client, number))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 150);
    }
}
