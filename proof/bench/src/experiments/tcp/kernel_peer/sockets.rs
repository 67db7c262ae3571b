//! What programs on the kernel's sockets do with their connections.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use spillway_tcp::recovery::Algorithm;

use super::pattern;
use super::roles::Stream;

/// So long a program waits for anything; nothing is as slow as that.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Of a message that is asked and answered.
pub const MESSAGE_BYTES: usize = 64;

/// As kernels call it.
pub fn name_of(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Cubic => "cubic",
        Algorithm::NewReno => "reno",
    }
}

/// What kernels and our stack can both use: CUBIC, where this kernel has it. Namespaces of a machine with another default
/// may not have it by default, but a socket of root's may.
pub fn algorithm() -> io::Result<Algorithm> {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_tcp_congestion(&socket, name_of(Algorithm::Cubic)) {
        Ok(()) => Ok(Algorithm::Cubic),
        Err(Errno::NOENT | Errno::PERM) => Ok(Algorithm::NewReno),
        Err(errno) => Err(errno.into()),
    }
}

/// What programs of ordinary sockets do first.
pub fn prepare(stream: &TcpStream, algorithm: Algorithm) -> io::Result<()> {
    set_tcp_congestion(stream, name_of(algorithm))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// Sends the pattern for so long, then the end, and waits for the other's end: how many bytes it were.
pub fn send(mut stream: &TcpStream, length: Duration) -> io::Result<u64> {
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < length {
        sent += stream.write(pattern::from(sent))? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0])? {
        0 => Ok(sent),
        _ => Err(io::Error::other("a byte that nobody was to send")),
    }
}

/// Takes the pattern to its end, counts what comes within so long after the first byte, and ends as well.
pub fn take(mut stream: &TcpStream, length: Duration) -> io::Result<Stream> {
    let (mut seen, mut until) = (Stream::default(), None);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let many = stream.read(&mut buffer)?;
        if many == 0 {
            stream.shutdown(Shutdown::Write)?;
            return Ok(seen);
        }
        let now = Instant::now();
        let until = *until.get_or_insert(now + length);
        seen.count(many, until.saturating_duration_since(now), length);
        seen.wrong += u64::from(!pattern::is_right(seen.bytes, &buffer[..many]));
        seen.bytes += many as u64;
    }
}

/// Asks over and over for so long, one message at a time: how long each answer took, in ns, and how many were wrong.
pub fn ask(mut stream: &TcpStream, length: Duration) -> io::Result<(Vec<u64>, u64)> {
    let (start, mut took, mut wrong) = (Instant::now(), Vec::new(), 0);
    let mut answer = [0; MESSAGE_BYTES];
    while start.elapsed() < length {
        let message = &pattern::from((took.len() * MESSAGE_BYTES) as u64)[..MESSAGE_BYTES];
        let asked = Instant::now();
        stream.write_all(message)?;
        stream.read_exact(&mut answer)?;
        took.push(asked.elapsed().as_nanos() as u64); // below PATIENCE
        wrong += u64::from(answer != message);
    }
    stream.shutdown(Shutdown::Write)?;
    wrong += stream.read(&mut answer)? as u64;
    Ok((took, wrong))
}

/// Sends back what comes, to its end.
pub fn echo(mut stream: &TcpStream) -> io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; 64 * 1024], 0);
    loop {
        let many = stream.read(&mut buffer)?;
        if many == 0 {
            stream.shutdown(Shutdown::Write)?;
            return Ok(bytes);
        }
        stream.write_all(&buffer[..many])?;
        bytes += many as u64;
    }
}
