//! The two kinds of carriers: a connection on a server's end of a link, and one on a link that the client opened.

use spillway_batch::{Control, Id, OpenerLink, ServerLink};
use spillway_wire::PAYLOAD_BYTES_MAX;

use crate::stream::Carrier;

/// A connection on a server's end of a link. After it has taken less than it was given, [`ServerLink::poll_room`]
/// returns its id when there is room again.
#[derive(Debug)]
pub struct OnServerLink<'a> {
    /// The link.
    pub link: &'a mut ServerLink,
    /// The connection.
    pub id: Id,
}

impl Carrier for OnServerLink<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.link.compose(self.id, bytes)
    }

    fn control(&mut self, control: Control) {
        self.link.say(self.id, control);
    }
}

/// A relayed connection on a link that the client opened. After it has taken less than it was given, try again when the
/// link's batches have left.
#[derive(Debug)]
pub struct OnOpenerLink<'a> {
    /// The link.
    pub link: &'a mut OpenerLink,
    /// The connection.
    pub id: Id,
    /// The most bytes that may wait on the link.
    pub pending_bytes_max: usize,
}

impl Carrier for OnOpenerLink<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.pending_bytes_max.saturating_sub(self.link.pending()));
        for frame in bytes[..taken].chunks(PAYLOAD_BYTES_MAX) {
            self.link.relay_data(self.id, frame, true);
        }
        taken
    }

    fn control(&mut self, control: Control) {
        self.link.relay_control(self.id, control);
    }
}
