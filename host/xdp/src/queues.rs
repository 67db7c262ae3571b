//! Several queues of one interface, served by one thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::device::{Device, poll_with};
use crate::socket::{Socket, Statistics};

/// The sockets of one thread, as one device. All sockets receive. Frames leave through the first socket with
/// room, because all queues of an interface send to the same network.
#[derive(Debug)]
pub struct Queues {
    sockets: Vec<Socket>,
    /// Where the search for a received frame starts: sockets take turns, so a busy queue delays no other.
    first: usize,
    lender: usize,
}

impl Queues {
    /// A device of these sockets. Without sockets it receives no frames and has no room.
    pub fn new(sockets: Vec<Socket>) -> Queues {
        Queues { sockets, first: 0, lender: 0 }
    }

    /// The sum of the kernel's counters of all sockets. A socket whose counters cannot be read is left out.
    pub fn statistics(&self) -> Statistics {
        let each = self.sockets.iter().filter_map(|socket| socket.statistics().ok());
        each.fold(Statistics::default(), |sum, one| sum + one)
    }

    /// Whether the kernel has not taken all sent frames yet.
    pub fn has_unsent(&self) -> bool {
        self.sockets.iter().any(Socket::has_unsent)
    }

    /// As [`Device::wait`], but of all packets only those of connections that the stack has opened end it.
    ///
    /// # Errors
    /// The system has failed.
    pub fn wait_for_opened(&self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let own: Vec<_> = self.sockets.iter().filter_map(Socket::opened_fd).collect();
        Ok(poll_with(&own, timeout, wakes)?.is_woken)
    }
}

impl Device for Queues {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let count = self.sockets.len();
        let ready = (0..count).map(|nth| (self.first + nth) % count).find(|at| self.sockets[*at].has_frame());
        let Some(at) = ready else {
            self.sockets.iter_mut().for_each(Socket::end_receive);
            return Ok(None);
        };
        self.first = (at + 1) % count;
        self.sockets[at].receive()
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        for at in 0..self.sockets.len() {
            if self.sockets[at].has_room()? {
                self.lender = at;
                return self.sockets[at].transmit();
            }
        }
        Ok(None)
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        match self.sockets.get_mut(self.lender) {
            Some(socket) => socket.commit(length),
            None => Ok(false),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sockets.iter_mut().try_for_each(Socket::flush)
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let mut shortest = timeout;
        for socket in &mut self.sockets {
            shortest = Some(socket.begin_wait(shortest)?);
        }
        let own: Vec<_> = self.sockets.iter().flat_map(Socket::receive_fds).collect();
        let polled = poll_with(&own, shortest, wakes)?;
        self.sockets.iter_mut().try_for_each(|socket| socket.end_wait(polled.events))?;
        Ok(polled.is_woken)
    }
}
