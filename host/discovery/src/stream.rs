//! A TCP connection whose every wait has a deadline and ends when told.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::stop::{Stop, timespec};

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Told to end.
    Stopped,
    /// The server refuses, under one of gRPC's status codes.
    Refused { code: u32, message: String },
    /// For operators.
    Because(String),
}

impl Failed {
    pub(crate) fn because(what: impl Into<String>) -> Failed {
        Failed::Because(what.into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Stopped => f.write_str("told to end"),
            Failed::Refused { message, .. } => f.write_str(message),
            Failed::Because(what) => f.write_str(what),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Because(error.to_string())
    }
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Failed {
        io::Error::from(error).into()
    }
}

/// A connection, in non-blocking mode.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    socket: TcpStream,
    stop: &'a Stop,
}

impl<'a> Stream<'a> {
    /// Connects to `HOST:PORT`, by whichever of its addresses answers.
    pub(crate) fn connect(endpoint: &str, stop: &'a Stop, deadline: Instant) -> Result<Stream<'a>, Failed> {
        let addresses: Vec<SocketAddr> = endpoint.to_socket_addrs()?.collect();
        Stream::connect_to_one(&addresses, stop, deadline)
    }

    /// Each gets an equal share of the time that is left: one that is silent must leave some to the others.
    fn connect_to_one(
        addresses: &[SocketAddr],
        stop: &'a Stop,
        deadline: Instant,
    ) -> Result<Stream<'a>, Failed> {
        let mut failed = Failed::because("the name has no address");
        for (address, to_try) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now).div_f64(to_try as f64);
            match Stream::connect_to(*address, stop, now + share) {
                Ok(stream) => return Ok(stream),
                Err(Failed::Stopped) => return Err(Failed::Stopped),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn connect_to(address: SocketAddr, stop: &'a Stop, deadline: Instant) -> Result<Stream<'a>, Failed> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let begun = connect(&socket, &address);
        let stream = Stream { socket: socket.into(), stop };
        match begun {
            Ok(()) => return Ok(stream),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        if !stream.wait(PollFlags::OUT, deadline)? {
            return Err(Failed::because("does not take the connection in time"));
        }
        sockopt::socket_error(&stream.socket)?.map_err(Failed::from)?;
        Ok(stream)
    }

    pub(crate) fn write_all(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), Failed> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::OUT, deadline)? {
                        return Err(Failed::because("does not read in time"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// `None`: nothing until the deadline. `Some(0)`: the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8], deadline: Instant) -> Result<Option<usize>, Failed> {
        loop {
            match self.socket.read(buffer) {
                Ok(read) => return Ok(Some(read)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::IN, deadline)? {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// False when the deadline has passed.
    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<bool, Failed> {
        loop {
            let mut waited = [PollFd::new(&self.socket, flags), PollFd::new(self.stop, PollFlags::IN)];
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut waited, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) if !waited[1].revents().is_empty() => return Err(Failed::Stopped),
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn waits_end_at_deadlines_and_when_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let stop = Stop::new().unwrap();
        let never = Instant::now() + Duration::from_secs(3600);
        let mut stream = Stream::connect(&endpoint, &stop, never).unwrap();
        let now = Instant::now();
        assert_eq!(stream.read(&mut [0; 8], now), Ok(None));
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| stream.read(&mut [0; 8], never));
            stop.tell();
            assert_eq!(reading.join().unwrap(), Err(Failed::Stopped));
        });
        // A peer that does not read: what its socket and ours hold is bounded.
        let fresh = Stop::new().unwrap();
        let mut stream = Stream::connect(&endpoint, &fresh, never).unwrap();
        let error = stream.write_all(&vec![0; 64 << 20], Instant::now()).unwrap_err();
        assert!(error.to_string().contains("does not read in time"), "{error}");
    }

    #[test]
    fn an_address_that_is_silent_leaves_time_for_the_next_one() {
        // A full backlog: the kernel says nothing to whoever comes then.
        let silent =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        rustix::net::bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let silent_at = SocketAddr::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
        let stop = Stop::new().unwrap();
        let soon = || Instant::now() + Duration::from_millis(100);
        let filled: Vec<_> =
            (0..8).map_while(|_| Stream::connect_to(silent_at, &stop, soon()).ok()).collect();
        assert!(filled.len() < 8, "it is silent now");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let answers_at = listener.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(1);
        let stream = Stream::connect_to_one(&[silent_at, answers_at], &stop, deadline).unwrap();
        assert_eq!(stream.socket.peer_addr().unwrap(), answers_at);
        let error = Stream::connect_to_one(&[silent_at, silent_at], &stop, soon()).unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }

    #[test]
    fn nobody_there_is_told() {
        let stop = Stop::new().unwrap();
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = Stream::connect(&endpoint, &stop, Instant::now() + Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
}
