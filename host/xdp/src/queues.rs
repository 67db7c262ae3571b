//! Several queues of one interface, served by one thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::device::{Device, poll_with};
use crate::socket::{Socket, Statistics};

/// The sockets of one thread, as one device. All of them receive; frames leave by the first one with room, because every
/// queue of an interface sends to the same network.
#[derive(Debug)]
pub struct Queues {
    sockets: Vec<Socket>,
    /// The socket that is asked first for a received frame, so that no queue has to wait for a busy one.
    first: usize,
    /// The socket that has lent a slot.
    lender: usize,
}

impl Queues {
    /// A device of these sockets; without any it has neither frames nor room.
    pub fn new(sockets: Vec<Socket>) -> Queues {
        Queues { sockets, first: 0, lender: 0 }
    }

    /// The sum of the kernel's counters of all sockets, without those that it does not tell.
    pub fn statistics(&self) -> Statistics {
        let each = self.sockets.iter().filter_map(|socket| socket.statistics().ok());
        each.fold(Statistics::default(), |sum, one| sum + one)
    }

    /// Waits until a packet of a connection that the stack has opened may have arrived, `timeout` has passed, or one of
    /// `wakes` is readable, but not for other packets. Returns whether one of `wakes` is readable.
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
