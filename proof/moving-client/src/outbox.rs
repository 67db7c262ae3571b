//! Batches on their way from a link to its socket.

use std::io;
use std::os::fd::OwnedFd;

use spillway_batch::OpenerLink;
use spillway_transport::{Time, Unsent};

use crate::socket;

/// A batch of which the socket has not taken all.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Unsent);

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
        let next = |spent| {
            link.recycle(spent);
            fill(link);
            link.flush(now)
        };
        self.0.send_all(next, |bytes| match socket::send(socket, bytes) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if socket::is_later(&error) => Ok(None),
            Err(error) => Err(error),
        })
    }
}
