//! Blocking sessions, for programs without an event loop.

use std::io::{self, Read, Write};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spillway_session::{LinkTarget, SessionEnd};

use super::{Session, SessionEvent, SessionSettings, as_error};

/// A [`Session`] with blocking calls. Reads and writes as a `TcpStream` does.
///
/// The carrier is served only while a call waits. After a long computation of the program, the session may
/// therefore move to another carrier; nothing else changes.
#[derive(Debug)]
pub struct BlockingSession {
    session: Session,
}

impl BlockingSession {
    /// Opens a session and waits until the server has answered, see [`Session::open`].
    pub fn open(routes: Vec<LinkTarget>, settings: SessionSettings) -> io::Result<BlockingSession> {
        let session = Session::open(Instant::now(), routes, settings)?;
        let mut blocking = BlockingSession { session };
        while blocking.session.carrier().is_none() {
            if let Some(end) = blocking.session.driver.end() {
                return Err(as_error(end));
            }
            blocking.wait()?;
        }
        Ok(blocking)
    }

    /// The non-blocking session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Moves to the link port with this index in the list of routes; replies wait until the session is attached there. A
    /// move to the present link port opens a new carrier, too.
    pub fn move_to(&mut self, route: usize) -> io::Result<()> {
        self.session.move_to(Instant::now(), route)
    }

    /// Ends the outgoing stream; replies still arrive.
    pub fn finish(&mut self) {
        self.session.finish(Instant::now());
    }

    /// Closes the session, and waits until the server has received everything and has closed, too. An error if the server
    /// may not have received everything: see [`Session::receive`].
    pub fn close(mut self) -> io::Result<()> {
        self.session.close(Instant::now());
        while !self.session.is_over() {
            self.wait()?;
        }
        match self.session.driver.end() {
            None | Some(SessionEnd::InOrder) => Ok(()),
            Some(end) => Err(as_error(end)),
        }
    }

    /// The next event. Call it until `None`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.session.poll_event()
    }

    fn wait(&mut self) -> io::Result<()> {
        let timeout = self.session.poll_timeout().map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut [PollFd::new(&self.session, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        self.session.handle_ready(now);
        self.session.handle_timeout(now);
        Ok(())
    }
}

impl Read for BlockingSession {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.receive(Instant::now(), buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                outcome => return outcome,
            }
        }
    }
}

impl Write for BlockingSession {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.session.send(Instant::now(), bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
