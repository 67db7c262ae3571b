//! Batches that a link has composed and the stream has not accepted.

use std::io;

use spillway_batch::OpenerLink;
use spillway_transport::{Time, Unsent};

use crate::network::{Stream, would_block};

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

    /// Sends batches until the stream is full. Before each batch, `fill` adds further data to the link.
    pub(crate) fn push(
        &mut self,
        now: Time,
        link: &mut OpenerLink,
        stream: &impl Stream,
        mut fill: impl FnMut(&mut OpenerLink),
    ) -> io::Result<()> {
        let next = |sent_batch| {
            link.recycle(sent_batch);
            fill(link);
            link.flush(now)
        };
        self.0.send_all(next, |bytes| match stream.send(bytes) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if would_block(&error) => Ok(None),
            Err(error) => Err(error),
        })
    }
}
