//! The header of a message inside a batch (PostMan §4.1, Table 2), in network order:
//!
//! ```text
//!  0        1        2        3        4        5        6
//! +--------+--------+--------+--------+--------+--------+--------+
//! |M  kind |     length      |              sender               |
//! +--------+--------+--------+--------+--------+--------+--------+
//! ```
//!
//! `M`: the message continues in the next frame of this sender. `length` counts the bytes after the header.
//! The paper fills `sender` with a hash of the client's address. Here `sender` is an opaque id that the link's opener
//! assigns, because hashes collide and ports are reused.

use core::fmt;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 7;

/// The longest payload of one frame, bytes.
pub const PAYLOAD_BYTES_MAX: usize = u16::MAX as usize;

const MORE: u8 = 0x80;

/// The number of a virtual connection on one link, assigned by the link's opener. 0 denotes the whole link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

impl Id {
    /// The whole link: *drain* applies to all its connections.
    pub const LINK: Id = Id(0);
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The longest payload of a control frame, bytes.
pub const CONTROL_BYTES_MAX: usize = 256;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Data from a client.
    Request = 1,
    /// Data from the server.
    Reply = 2,
    /// Opens a virtual connection.
    Connect = 3,
    /// The server's application has accepted the connection.
    Accepted = 4,
    /// The connection is refused; its requests were not delivered.
    Refused = 5,
    /// Permits the receiver of this frame to send up to an offset.
    Credit = 6,
    /// Reports how far the sender of this frame has received.
    Acknowledge = 7,
    /// Continues a session on this carrier.
    Reconnect = 8,
    /// The server's answer to the first message of a session on a carrier.
    Resumed = 9,
    /// No more data follows in this direction.
    Finish = 10,
    /// Ends the virtual connection.
    Close = 11,
    /// Asks the peer to move one connection, or all connections of the link, elsewhere.
    Drain = 12,
}

impl Kind {
    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Connect,
            4 => Kind::Accepted,
            5 => Kind::Refused,
            6 => Kind::Credit,
            7 => Kind::Acknowledge,
            8 => Kind::Reconnect,
            9 => Kind::Resumed,
            10 => Kind::Finish,
            11 => Kind::Close,
            12 => Kind::Drain,
            _ => return None,
        })
    }

    /// Whether frames of this kind carry data rather than control messages.
    pub fn is_data(self) -> bool {
        matches!(self, Kind::Request | Kind::Reply)
    }
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// The message continues in the next frame of this sender.
    pub more: bool,
    /// Payload bytes after the header.
    pub length: u16,
    /// The virtual connection, or [`Id::LINK`].
    pub id: Id,
}

/// The kind in the first byte of a header is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind(pub u8);

impl Header {
    /// Parses a header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, UnknownKind> {
        let [first, l0, l1, s0, s1, s2, s3] = *bytes;
        let kind = Kind::from_code(first & !MORE).ok_or(UnknownKind(first))?;
        Ok(Header {
            kind,
            more: first & MORE != 0,
            length: u16::from_be_bytes([l0, l1]),
            id: Id(u32::from_be_bytes([s0, s1, s2, s3])),
        })
    }

    /// Emits the header.
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let first = self.kind as u8 | if self.more { MORE } else { 0 };
        let [l0, l1] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.id.0.to_be_bytes();
        [first, l0, l1, s0, s1, s2, s3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_survives_a_round_trip() {
        for code in 0..=255u8 {
            let bytes = [code, 0x12, 0x34, 0xde, 0xad, 0xbe, 0xef];
            match Header::parse(&bytes) {
                Ok(header) => {
                    assert_eq!(header.emit(), bytes);
                    assert_eq!(header.length, 0x1234);
                    assert_eq!(header.id, Id(0xdead_beef));
                }
                Err(UnknownKind(first)) => {
                    assert_eq!(first, code);
                    assert!(Kind::from_code(code & 0x7f).is_none(), "the code should be unknown");
                }
            }
        }
    }

    #[test]
    fn a_request_header_has_the_documented_bytes() {
        let header = Header { kind: Kind::Request, more: false, length: 5, id: Id(0x0102_0304) };
        assert_eq!(header.emit(), [1, 0, 5, 1, 2, 3, 4]);
    }
}
