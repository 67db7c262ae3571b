//! Two kinds of carriers: a virtual connection at a server's end of a link, or one on a link that the client opened.

use spillway_batch::{Control, Id, OpenerLink, ServerLink};
use spillway_wire::PAYLOAD_BYTES_MAX;

use crate::stream::Carrier;

/// A connection on a server's end of a link. After a call of `data` that took fewer bytes than it was given,
/// [`ServerLink::poll_room`] returns its id when there is room again.
#[derive(Debug)]
pub struct ServerLinkCarrier<'a> {
    /// The link.
    pub link: &'a mut ServerLink,
    /// The connection.
    pub id: Id,
}

impl Carrier for ServerLinkCarrier<'_> {
    fn data(&mut self, bytes: &[u8]) -> usize {
        self.link.compose(self.id, bytes)
    }

    fn control(&mut self, control: Control) {
        self.link.send_control(self.id, control);
    }
}

/// A relayed connection on a link that the client opened. After a call of `data` that took fewer bytes than it was
/// given, try again when the link's batches are sent.
#[derive(Debug)]
pub struct OpenerLinkCarrier<'a> {
    /// The link.
    pub link: &'a mut OpenerLink,
    /// The connection.
    pub id: Id,
    /// Maximum bytes that wait on the link.
    pub pending_bytes_max: usize,
}

impl Carrier for OpenerLinkCarrier<'_> {
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
