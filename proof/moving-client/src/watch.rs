//! How a connection's sockets get into the caller's epoll set.

use std::os::fd::BorrowedFd;

use rustix::event::epoll::EventFlags;

/// Which of a connection's sockets. During a move there are up to three: the direct one, and two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Slot {
    /// The direct connection.
    Direct = 0,
    /// A link.
    LinkA = 1,
    /// Another link.
    LinkB = 2,
}

impl Slot {
    pub(crate) const ALL: [Slot; 3] = [Slot::Direct, Slot::LinkA, Slot::LinkB];

    /// Index into the links.
    pub(crate) fn link(self) -> Option<usize> {
        match self {
            Slot::Direct => None,
            Slot::LinkA => Some(0),
            Slot::LinkB => Some(1),
        }
    }
}

const SLOT_BITS: u32 = 2;

/// What to put into the epoll set for a socket of the connection that the caller calls `token`.
pub(crate) fn join_token(token: u64, slot: Slot) -> u64 {
    token << SLOT_BITS | slot as u64
}

/// Takes the data of an epoll event apart: the caller's token for the connection, and which socket.
/// `None` for data that [`watch_in`](crate::Connection::watch_in) never writes: the lowest two bits are set, so
/// a caller can mark its own descriptors that way.
pub fn split_token(data: u64) -> Option<(u64, Slot)> {
    let slot = *Slot::ALL.get((data & ((1 << SLOT_BITS) - 1)) as usize)?;
    Some((data >> SLOT_BITS, slot))
}

/// A change that the caller's set of descriptors needs. A closed descriptor leaves an epoll set by itself.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    /// Which socket.
    pub slot: Slot,
    /// Its descriptor.
    pub descriptor: BorrowedFd<'a>,
    /// It is new: `poll_watch` has not told of it yet.
    pub add: bool,
    /// Wait until it can be read.
    pub readable: bool,
    /// Wait until it can be written.
    pub writable: bool,
}

/// What a socket is ready for. An error or a hang-up is both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Reading would not block.
    pub readable: bool,
    /// Writing would not block.
    pub writable: bool,
}

impl From<EventFlags> for Ready {
    fn from(flags: EventFlags) -> Ready {
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Ready {
            readable: broken || flags.contains(EventFlags::IN),
            writable: broken || flags.contains(EventFlags::OUT),
        }
    }
}

/// What a socket is to be watched for, and what the caller was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        for token in [0, 1, 77, u64::MAX >> SLOT_BITS] {
            for slot in Slot::ALL {
                assert_eq!(split_token(join_token(token, slot)), Some((token, slot)));
            }
        }
        assert_eq!(split_token(u64::MAX), None);
    }

    #[test]
    fn a_hang_up_is_readable_and_writable() {
        assert_eq!(Ready::from(EventFlags::HUP), Ready { readable: true, writable: true });
        assert_eq!(Ready::from(EventFlags::IN), Ready { readable: true, writable: false });
        assert_eq!(Ready::from(EventFlags::OUT), Ready { readable: false, writable: true });
    }
}
