//! Fields of the control messages that a switch sends, read from their bytes.

use std::net::SocketAddr;

use super::{MAGIC, MESSAGE_BYTES, address_of};
use crate::mac::Mac;

const KIND_AT: usize = 9;
/// The last byte of the sender, whose other bytes are 0 in messages of a switch.
const SENDER_AT: usize = 15;
const GENERATION_AT: usize = 24;
const CLIENT_AT: usize = 36;
const SERVICE_AT: usize = 54;
const OWNER_AT: usize = 72;
const MAC_AT: usize = 90;
const STATUS_AT: usize = 104;
const STATE_AT: usize = 105;

/// The bytes of a control message. Its tag is not verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageView<'a>(&'a [u8; MESSAGE_BYTES]);

impl<'a> MessageView<'a> {
    /// The control message in a frame, after any headers.
    pub(crate) fn find_in(frame: &'a [u8]) -> Option<MessageView<'a>> {
        let start = frame.windows(MAGIC.len()).position(|bytes| bytes == MAGIC)?;
        frame.get(start..)?.first_chunk().map(MessageView)
    }

    pub(crate) fn kind(self) -> u8 {
        self.0[KIND_AT]
    }

    pub(crate) fn sender(self) -> u8 {
        self.0[SENDER_AT]
    }

    pub(crate) fn generation(self) -> u64 {
        u64::from_be_bytes(self.array(GENERATION_AT))
    }

    pub(crate) fn client(self) -> SocketAddr {
        self.endpoint(CLIENT_AT)
    }

    pub(crate) fn service(self) -> SocketAddr {
        self.endpoint(SERVICE_AT)
    }

    /// Address and port of the owner, or of another site.
    pub(crate) fn owner(self) -> SocketAddr {
        self.endpoint(OWNER_AT)
    }

    /// MAC of the owner, or of another site.
    pub(crate) fn mac(self) -> Mac {
        Mac(self.array(MAC_AT))
    }

    pub(crate) fn status(self) -> u8 {
        self.0[STATUS_AT]
    }

    pub(crate) fn state(self) -> u8 {
        self.0[STATE_AT]
    }

    fn endpoint(self, at: usize) -> SocketAddr {
        SocketAddr::new(address_of(self.array(at)), u16::from_be_bytes(self.array(at + 16)))
    }

    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        std::array::from_fn(|offset| self.0[at + offset])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    #[test]
    fn fields_are_those_of_the_message() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut message = Message::new(4, 3, [9; 16], 0x11, 0x22);
        (message.generation, message.status, message.state) = (0x3344, 2, 1);
        (message.client, message.service) = (Some(at("1.2.3.4:258")), Some(at("[2001:db8::5]:515")));
        (message.owner, message.mac) = (Some(at("9.8.7.6:772")), Mac([1, 2, 3, 4, 5, 6]));
        let frame = [&[0x55; 42][..], &message.bytes()].concat();
        let view = MessageView::find_in(&frame).unwrap();
        assert_eq!((view.kind(), view.sender(), view.generation()), (4, 3, 0x3344));
        assert_eq!((Some(view.client()), Some(view.service())), (message.client, message.service));
        assert_eq!((Some(view.owner()), view.mac()), (message.owner, message.mac));
        assert_eq!((view.status(), view.state()), (2, 1));
        assert!(MessageView::find_in(&frame[..169]).is_none(), "a message that is cut off");
    }
}
