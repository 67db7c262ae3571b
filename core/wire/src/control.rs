//! Control messages. Each fits in one frame of at most [`CONTROL_BYTES_MAX`](crate::CONTROL_BYTES_MAX) payload bytes.

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use crate::address;
use crate::cursor::Cursor;
use crate::error::ControlError;
use crate::frame::{Header, Id, Kind};
use crate::session::{Acknowledge, Opening, Reconnect, Resumed};

/// The version of a *connect* without a session.
const PLAIN: u8 = 1;
/// The version of a *connect* that begins a session.
const WITH_SESSION: u8 = 2;

/// Opens a virtual connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The client's address, as the server's application will see it.
    pub client: SocketAddr,
    /// The requested server; `None` for the server of the link.
    pub server: Option<SocketAddr>,
    /// Initial credit for replies, in bytes.
    pub credit: u64,
    /// The session that begins on this connection, if any.
    pub session: Option<Opening>,
}

/// Why a virtual connection was refused. Its requests were not delivered to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefuseReason {
    /// A limit of connections, file descriptors or memory is reached.
    Full = 1,
    /// The client address is not allowed on this link.
    Forbidden = 2,
    /// The server cannot be reached, does not listen, or is draining.
    Unavailable = 3,
    /// The requested server is not served here.
    UnknownServer = 4,
    /// The server does not know the session: the server was restarted, or the session has expired.
    Gone = 5,
    /// The session has moved to a newer carrier.
    Stale = 6,
    /// The positions that the two ends of the session claim contradict each other.
    Mismatch = 7,
}

/// Why a virtual connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CloseReason {
    /// The application closed the connection; bytes sent before are delivered.
    Normal = 1,
    /// The connection was reset; bytes in flight are lost.
    Reset = 2,
    /// The peer sent more than its credit allowed.
    OverCredit = 3,
    /// The peer violated the protocol of this connection in another way.
    Protocol = 4,
    /// The session has moved to another carrier.
    Moved = 5,
    /// The sender has lost the connection's client. The session waits for the client's next carrier.
    Lost = 6,
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Opens a virtual connection. Requests may follow at once, within the initial credit of the link's preamble.
    Connect(Connect),
    /// The server's application has accepted the connection.
    Accepted,
    /// The connection is refused.
    Refused(RefuseReason),
    /// Permits the receiver of this message to send up to this absolute stream offset.
    Credit(u64),
    /// Reports how far the sender of this message has received.
    Acknowledge(Acknowledge),
    /// Continues a session on this carrier.
    Reconnect(Reconnect),
    /// The server's answer to the first message of a session on a carrier.
    Resumed(Resumed),
    /// No bytes follow this absolute stream offset.
    Finish(u64),
    /// Ends the virtual connection.
    Close(CloseReason),
    /// Asks the peer to move this connection, or all connections of the link for [`Id::LINK`], elsewhere.
    Drain {
        /// Time until the deadline, in milliseconds; 0 means at once.
        deadline_ms: u32,
    },
}

impl RefuseReason {
    fn parse(code: u8) -> Result<RefuseReason, ControlError> {
        Ok(match code {
            1 => RefuseReason::Full,
            2 => RefuseReason::Forbidden,
            3 => RefuseReason::Unavailable,
            4 => RefuseReason::UnknownServer,
            5 => RefuseReason::Gone,
            6 => RefuseReason::Stale,
            7 => RefuseReason::Mismatch,
            other => return Err(ControlError::Reason(other)),
        })
    }
}

impl fmt::Display for RefuseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefuseReason::Full => "the server has no room for another connection",
            RefuseReason::Forbidden => "the client address is not allowed on this link",
            RefuseReason::Unavailable => "the server does not accept connections",
            RefuseReason::UnknownServer => "the requested server is not served here",
            RefuseReason::Gone => {
                "the server does not know the session: it was restarted, or the session expired"
            }
            RefuseReason::Stale => "the session has moved to a newer carrier",
            RefuseReason::Mismatch => "the positions of the session's two ends contradict each other",
        })
    }
}

impl CloseReason {
    fn parse(code: u8) -> Result<CloseReason, ControlError> {
        Ok(match code {
            1 => CloseReason::Normal,
            2 => CloseReason::Reset,
            3 => CloseReason::OverCredit,
            4 => CloseReason::Protocol,
            5 => CloseReason::Moved,
            6 => CloseReason::Lost,
            other => return Err(ControlError::Reason(other)),
        })
    }
}

impl Control {
    /// The kind of frame that carries this message.
    pub fn kind(&self) -> Kind {
        match self {
            Control::Connect(_) => Kind::Connect,
            Control::Accepted => Kind::Accepted,
            Control::Refused(_) => Kind::Refused,
            Control::Credit(_) => Kind::Credit,
            Control::Acknowledge(_) => Kind::Acknowledge,
            Control::Reconnect(_) => Kind::Reconnect,
            Control::Resumed(_) => Kind::Resumed,
            Control::Finish(_) => Kind::Finish,
            Control::Close(_) => Kind::Close,
            Control::Drain { .. } => Kind::Drain,
        }
    }

    /// Whether the message is allowed only on links that carry sessions.
    pub fn is_of_sessions(&self) -> bool {
        match self {
            Control::Connect(connect) => connect.session.is_some(),
            Control::Acknowledge(_) | Control::Reconnect(_) | Control::Resumed(_) => true,
            Control::Refused(reason) => {
                matches!(reason, RefuseReason::Gone | RefuseReason::Stale | RefuseReason::Mismatch)
            }
            Control::Close(reason) => matches!(reason, CloseReason::Moved | CloseReason::Lost),
            _ => false,
        }
    }

    /// Appends the whole frame, header included.
    pub fn emit(&self, id: Id, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&Header { kind: self.kind(), more: false, length: 0, id }.emit());
        let payload = out.len();
        match self {
            Control::Connect(connect) => {
                out.push(if connect.session.is_some() { WITH_SESSION } else { PLAIN });
                out.extend_from_slice(&connect.credit.to_be_bytes());
                address::emit(Some(connect.client), out);
                address::emit(connect.server, out);
                if let Some(opening) = &connect.session {
                    opening.emit(out);
                }
            }
            Control::Accepted => {}
            Control::Refused(reason) => out.push(*reason as u8),
            Control::Acknowledge(acknowledge) => acknowledge.emit(out),
            Control::Reconnect(reconnect) => reconnect.emit(out),
            Control::Resumed(resumed) => resumed.emit(out),
            Control::Credit(offset) | Control::Finish(offset) => out.extend_from_slice(&offset.to_be_bytes()),
            Control::Close(reason) => out.push(*reason as u8),
            Control::Drain { deadline_ms } => out.extend_from_slice(&deadline_ms.to_be_bytes()),
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 1 + 8 + 19 + 19 + 93 bytes")]
        let length = (out.len() - payload) as u16;
        out[start + 1..start + 3].copy_from_slice(&length.to_be_bytes());
    }

    /// Parses the payload of a control frame.
    pub fn parse(kind: Kind, payload: &[u8]) -> Result<Control, ControlError> {
        let mut cursor = Cursor::new(payload);
        let control = Control::parse_fields(kind, &mut cursor).map_err(|error| match error {
            ControlError::Truncated(_) => ControlError::Truncated(kind),
            other => other,
        })?;
        if cursor.is_empty() { Ok(control) } else { Err(ControlError::Trailing(kind)) }
    }

    fn parse_fields(kind: Kind, cursor: &mut Cursor<'_>) -> Result<Control, ControlError> {
        Ok(match kind {
            Kind::Connect => {
                let version = cursor.u8()?;
                if ![PLAIN, WITH_SESSION].contains(&version) {
                    return Err(ControlError::Version(version));
                }
                let credit = cursor.u64()?;
                let client = address::parse(cursor)?.ok_or(ControlError::NoClient)?;
                let server = address::parse(cursor)?;
                let session = (version == WITH_SESSION).then(|| Opening::parse(cursor)).transpose()?;
                Control::Connect(Connect { client, server, credit, session })
            }
            Kind::Accepted => Control::Accepted,
            Kind::Refused => Control::Refused(RefuseReason::parse(cursor.u8()?)?),
            Kind::Credit => Control::Credit(cursor.u64()?),
            Kind::Finish => Control::Finish(cursor.u64()?),
            Kind::Close => Control::Close(CloseReason::parse(cursor.u8()?)?),
            Kind::Drain => Control::Drain { deadline_ms: cursor.u32()? },
            Kind::Acknowledge => Control::Acknowledge(Acknowledge::parse(cursor)?),
            Kind::Reconnect => Control::Reconnect(Reconnect::parse(cursor)?),
            Kind::Resumed => Control::Resumed(Resumed::parse(cursor)?),
            Kind::Request | Kind::Reply => return Err(ControlError::Data(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{CONTROL_BYTES_MAX, HEADER_BYTES};
    use crate::preamble::KeyId;
    use crate::session::{Position, SessionId};

    fn examples() -> Vec<Control> {
        let position = Position { sent: 9, received: 1 << 40, credit: u64::MAX, finish_received: true };
        let opening = Opening {
            session: SessionId([1; 16]),
            key: KeyId([2; 8]),
            epoch: 3,
            life: 5,
            position,
            proof: [4; 32],
        };
        let v4 = "10.1.2.3:4567".parse().unwrap();
        let v6 = "[2001:db8::1]:11211".parse().unwrap();
        Vec::from([
            Control::Connect(Connect { client: v4, server: None, credit: 65536, session: None }),
            Control::Connect(Connect { client: v6, server: Some(v4), credit: u64::MAX, session: None }),
            Control::Connect(Connect { client: v6, server: Some(v6), credit: 7, session: Some(opening) }),
            Control::Reconnect(Reconnect { client: v6, server: Some(v6), opening }),
            Control::Reconnect(Reconnect { client: v4, server: None, opening }),
            Control::Resumed(Resumed { epoch: 7, life: 8, position: opening.position, proof: [6; 32] }),
            Control::Acknowledge(Acknowledge {
                received: 1 << 33,
                finish_received: true,
                requests_answer: false,
            }),
            Control::Acknowledge(Acknowledge { received: 0, finish_received: false, requests_answer: true }),
            Control::Accepted,
            Control::Refused(RefuseReason::Full),
            Control::Refused(RefuseReason::Unavailable),
            Control::Credit(1 << 40),
            Control::Finish(0),
            Control::Close(CloseReason::Normal),
            Control::Close(CloseReason::OverCredit),
            Control::Drain { deadline_ms: 30_000 },
        ])
    }

    fn emitted(control: Control) -> Vec<u8> {
        let mut out = Vec::new();
        control.emit(Id(9), &mut out);
        out
    }

    #[test]
    fn every_control_message_survives_a_round_trip() {
        for control in examples() {
            let bytes = emitted(control);
            assert_eq!(Control::parse(control.kind(), &bytes[HEADER_BYTES..]), Ok(control));
            assert!(
                bytes.len() <= HEADER_BYTES + CONTROL_BYTES_MAX,
                "a control frame should be within its maximum"
            );
        }
    }

    #[test]
    fn truncated_or_padded_messages_are_rejected() {
        for control in examples() {
            let mut bytes = emitted(control).split_off(HEADER_BYTES);
            for cut in 0..bytes.len() {
                let error = Control::parse(control.kind(), &bytes[..cut]).unwrap_err();
                assert_eq!(error, ControlError::Truncated(control.kind()));
            }
            bytes.push(0);
            assert_eq!(Control::parse(control.kind(), &bytes), Err(ControlError::Trailing(control.kind())));
        }
    }

    #[test]
    fn invalid_fields_are_rejected_with_their_values() {
        assert_eq!(Control::parse(Kind::Refused, &[77]), Err(ControlError::Reason(77)));
        assert_eq!(Control::parse(Kind::Close, &[0]), Err(ControlError::Reason(0)));
        assert_eq!(Control::parse(Kind::Connect, &[9]), Err(ControlError::Version(9)));
        assert_eq!(Control::parse(Kind::Reply, &[]), Err(ControlError::Data(Kind::Reply)));
        assert_eq!(
            Control::parse(Kind::Acknowledge, &[0, 0, 0, 0, 0, 0, 0, 9, 4]),
            Err(ControlError::Flags(4))
        );
        let mut connect = emitted(examples()[0]).split_off(HEADER_BYTES);
        connect[9] = 5;
        assert_eq!(Control::parse(Kind::Connect, &connect), Err(ControlError::AddressFamily(5)));
        connect[9] = 0;
        assert!(
            Control::parse(Kind::Connect, &connect[..10]).is_err(),
            "a truncated connect should be rejected"
        );
    }
}
