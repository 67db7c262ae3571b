//! Batches on their way from a link to its socket.

use std::io;
use std::os::fd::OwnedFd;

use spillway_batch::OpenerLink;
use spillway_transport::{Chunk, Time};

use crate::socket;

/// A batch of which the socket has not taken all.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Chunk);

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives the socket what it takes. `fill` puts what else there is on the link before each batch.
    pub(crate) fn push(
        &mut self,
        now: Time,
        link: &mut OpenerLink,
        socket: &OwnedFd,
        mut fill: impl FnMut(&mut OpenerLink),
    ) -> io::Result<()> {
        loop {
            if self.0.is_empty() {
                fill(link);
                let Some(batch) = link.flush(now) else { return Ok(()) };
                self.0 = batch;
            }
            match socket::send(socket, self.0.as_slice()) {
                Ok(sent) => self.0.advance(sent),
                Err(error) if socket::is_later(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if self.0.is_empty() {
                link.recycle(std::mem::take(&mut self.0));
            }
        }
    }
}
