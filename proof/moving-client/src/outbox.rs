//! Batches that a link has composed and the socket has not accepted.

use std::io;
use std::os::fd::OwnedFd;

use spillway_batch::OpenerLink;
use spillway_transport::{Time, Unsent};

use crate::socket;

/// The unsent rest of a batch.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Unsent);

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sends batches until the socket is full. Before each batch, `fill` adds further data to the link.
    pub(crate) fn push(
        &mut self,
        now: Time,
        link: &mut OpenerLink,
        socket: &OwnedFd,
        mut fill: impl FnMut(&mut OpenerLink),
    ) -> io::Result<()> {
        let next = |sent_batch| {
            link.recycle(sent_batch);
            fill(link);
            link.flush(now)
        };
        self.0.send_all(next, |bytes| match socket::send(socket, bytes) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if socket::would_block(&error) => Ok(None),
            Err(error) => Err(error),
        })
    }
}
