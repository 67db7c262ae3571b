//! Registration of a connection's sockets in the caller's epoll set.

use rustix::event::epoll::EventFlags;

/// One of a connection's sockets: the direct one and, during a move, up to two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Slot {
    /// The direct connection.
    Direct = 0,
    /// The first link.
    LinkA = 1,
    /// The second link.
    LinkB = 2,
}

impl Slot {
    pub(crate) const ALL: [Slot; 3] = [Slot::Direct, Slot::LinkA, Slot::LinkB];

    pub(crate) fn link(self) -> Option<usize> {
        match self {
            Slot::Direct => None,
            Slot::LinkA => Some(0),
            Slot::LinkB => Some(1),
        }
    }
}

const SLOT_BITS: u32 = 2;

/// Epoll data of a socket: the caller's `token` for the connection, of 62 bits, and the socket's slot.
pub fn join_token(token: u64, slot: Slot) -> u64 {
    token << SLOT_BITS | slot as u64
}

/// Splits the data of an epoll event into the caller's token for the connection and the socket. `None` if the lowest
/// two bits are set: [`watch_in`](crate::Connection::watch_in) never writes such data, so callers can use these bits
/// for their own descriptors.
pub fn split_token(data: u64) -> Option<(u64, Slot)> {
    let slot = *Slot::ALL.get((data & ((1 << SLOT_BITS) - 1)) as usize)?;
    Some((data >> SLOT_BITS, slot))
}

/// A change for the caller's epoll set. The kernel removes closed descriptors from the set.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a, S> {
    /// The stream's slot.
    pub slot: Slot,
    /// The stream.
    pub stream: &'a S,
    /// Whether to add the stream; otherwise modify its registration.
    pub add: bool,
    /// Whether to watch for readability.
    pub readable: bool,
    /// Whether to watch for writability.
    pub writable: bool,
}

/// A socket's readiness. After an error or a hang-up the socket counts as readable and writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Reading would not block.
    pub readable: bool,
    /// Writing would not block.
    pub writable: bool,
}

impl From<EventFlags> for Ready {
    fn from(flags: EventFlags) -> Ready {
        let has_failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Ready {
            readable: has_failed || flags.contains(EventFlags::IN),
            writable: has_failed || flags.contains(EventFlags::OUT),
        }
    }
}

/// The readiness for which a socket is watched or must be watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_tokens_are_split_into_the_same_parts() {
        for token in [0, 1, 77, u64::MAX >> SLOT_BITS] {
            for slot in Slot::ALL {
                assert_eq!(split_token(join_token(token, slot)), Some((token, slot)));
            }
        }
        assert_eq!(split_token(u64::MAX), None);
    }

    #[test]
    fn hang_up_counts_as_readable_and_writable() {
        assert_eq!(Ready::from(EventFlags::HUP), Ready { readable: true, writable: true });
        assert_eq!(Ready::from(EventFlags::IN), Ready { readable: true, writable: false });
        assert_eq!(Ready::from(EventFlags::OUT), Ready { readable: false, writable: true });
    }
}
