//! Programs on the kernel's sockets: source, sink, echo and client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use spillway_tcp::recovery::Algorithm;

use super::pattern;
use super::roles::Stream;

pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Size of a request, and of its answer.
pub const MESSAGE_BYTES: usize = 64;

pub fn name_of(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Cubic => "cubic",
        Algorithm::NewReno => "reno",
    }
}

/// The congestion control of the kernels and our stack: CUBIC if this kernel has it, otherwise NewReno. Tries
/// to set it, because the namespace's default and allowed algorithms do not contain all that root may set.
pub fn algorithm() -> io::Result<Algorithm> {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_tcp_congestion(&socket, name_of(Algorithm::Cubic)) {
        Ok(()) => Ok(Algorithm::Cubic),
        Err(Errno::NOENT | Errno::PERM) => Ok(Algorithm::NewReno),
        Err(errno) => Err(errno.into()),
    }
}

/// Sets the options of a new connection: congestion control, no Nagle delay, timeouts.
pub fn prepare(stream: &TcpStream, algorithm: Algorithm) -> io::Result<()> {
    set_tcp_congestion(stream, name_of(algorithm))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

/// Sends the pattern for `length`, then FIN, and waits for the peer's FIN. Returns the number of sent bytes.
pub fn send(mut stream: &TcpStream, length: Duration) -> io::Result<u64> {
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < length {
        sent += stream.write(pattern::slice_from(sent))? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0])? {
        0 => Ok(sent),
        _ => Err(io::Error::other("received a byte on a connection that only sends")),
    }
}

/// Receives the pattern up to FIN, then sends FIN. Counts the bytes within `length` after the first one.
pub fn receive(mut stream: &TcpStream, length: Duration) -> io::Result<Stream> {
    let (mut received, mut until) = (Stream::default(), None);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            stream.shutdown(Shutdown::Write)?;
            return Ok(received);
        }
        let now = Instant::now();
        let until = *until.get_or_insert(now + length);
        received.count(count, until.saturating_duration_since(now), length);
        received.wrong += u64::from(!pattern::is_right(received.bytes, &buffer[..count]));
        received.bytes += count as u64;
    }
}

/// Sends requests for `length`, one at a time. Returns the latency of each answer in ns, and the number of wrong
/// answers.
pub fn request(mut stream: &TcpStream, length: Duration) -> io::Result<(Vec<u64>, u64)> {
    let (start, mut latencies_ns, mut wrong) = (Instant::now(), Vec::new(), 0);
    let mut answer = [0; MESSAGE_BYTES];
    while start.elapsed() < length {
        let message = &pattern::slice_from((latencies_ns.len() * MESSAGE_BYTES) as u64)[..MESSAGE_BYTES];
        let sent_at = Instant::now();
        stream.write_all(message)?;
        stream.read_exact(&mut answer)?;
        latencies_ns.push(sent_at.elapsed().as_nanos() as u64); // about 2 × TIMEOUT at most
        wrong += u64::from(answer != message);
    }
    stream.shutdown(Shutdown::Write)?;
    wrong += stream.read(&mut answer)? as u64;
    Ok((latencies_ns, wrong))
}

/// Sends received bytes back up to FIN. Returns their number.
pub fn echo(mut stream: &TcpStream) -> io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; 64 * 1024], 0);
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            stream.shutdown(Shutdown::Write)?;
            return Ok(bytes);
        }
        stream.write_all(&buffer[..count])?;
        bytes += count as u64;
    }
}
