//! A blocking client, for programs without an event loop.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::LinkTarget;
use crate::connection::Connection;
use crate::error::MoveError;
use crate::event::{Carrier, Event};
use crate::settings::{Route, Settings};
use crate::watch::{Ready, Slot};

/// A [`Connection`] with blocking calls, which reads and writes like a `TcpStream`.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Connects to a server directly.
    pub fn connect(server: SocketAddr, settings: Settings) -> Result<Client, MoveError> {
        Client::wait_until_open(Connection::connect(Instant::now(), server, settings)?)
    }

    /// Connects through a link. Returns when the server's application has accepted the connection.
    pub fn connect_through_link(
        target: &LinkTarget,
        server: Option<SocketAddr>,
        settings: Settings,
    ) -> Result<Client, MoveError> {
        Client::wait_until_open(Connection::connect_through_link(Instant::now(), target, server, settings)?)
    }

    fn wait_until_open(connection: Connection) -> Result<Client, MoveError> {
        let mut client = Client { connection };
        client.await_move()?;
        Ok(client)
    }

    /// Moves the connection. Read all expected replies first.
    pub fn move_to(&mut self, route: Route<'_>) -> Result<(), MoveError> {
        self.connection.begin_move(Instant::now(), route)?;
        self.await_move()
    }

    fn await_move(&mut self) -> Result<(), MoveError> {
        loop {
            while let Some(event) = self.connection.poll_event() {
                match event {
                    Event::Moved(_) => return Ok(()),
                    Event::MoveFailed { why, .. } => return Err(why),
                    _ => {}
                }
            }
            self.wait()?;
        }
    }

    /// The carrier in use.
    pub fn carrier(&self) -> Option<Carrier> {
        self.connection.carrier()
    }

    /// This end's address on the carrier in use.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.connection.local_address()
    }

    /// Ends the outgoing stream. Replies can still be read.
    pub fn finish(&mut self) -> io::Result<()> {
        self.connection.finish()
    }

    /// Waits until a socket is ready or a timeout is due, and handles both.
    fn wait(&mut self) -> io::Result<()> {
        let timeout = self.connection.poll_timeout().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        let mut ready = [None; Slot::ALL.len()];
        {
            let watched = self.connection.sockets().map(|watch| {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, watch.readable);
                flags.set(PollFlags::OUT, watch.writable);
                (watch.slot, PollFd::new(watch.stream, flags))
            });
            let (slots, mut descriptors): (Vec<Slot>, Vec<PollFd<'_>>) = watched.unzip();
            match poll(&mut descriptors, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for ((slot, descriptor), ready) in slots.into_iter().zip(&descriptors).zip(&mut ready) {
                *ready = Some((slot, descriptor.revents()));
            }
        }
        let now = Instant::now();
        for (slot, flags) in ready.into_iter().flatten().filter(|(_, flags)| !flags.is_empty()) {
            // The result, whether to receive, is not needed: `read` always tries to receive.
            self.connection.handle_ready(now, slot, to_ready(flags));
        }
        self.connection.handle_timeout(now);
        Ok(())
    }
}

fn to_ready(flags: PollFlags) -> Ready {
    let has_failed = flags.intersects(PollFlags::ERR | PollFlags::HUP);
    Ready {
        readable: has_failed || flags.contains(PollFlags::IN),
        writable: has_failed || flags.contains(PollFlags::OUT),
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.receive(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                outcome => return outcome,
            }
        }
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.connection.send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait()?;
                    self.connection.absorb();
                }
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
