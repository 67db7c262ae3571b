//! A request that moves with its connection.

use super::error::StateError;
use super::fields::{Reader, Writer};
use crate::switch::ServerId;

/// A request whose connection was handed off: the importing server serves it, or gets it back (Prism §4.1, §5.4). The bytes of
/// the request are in the receiving queue and in the attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedRequest {
    /// The server that has read the request from the client, and learns how it ended.
    pub origin: ServerId,
    /// The request's number at its origin: no two requests of one run have the same.
    pub number: u64,
    /// How often the request may still be handed off: 0 at the last server.
    pub hops_left: u8,
    /// What the importing server is to do.
    pub purpose: Purpose,
}

/// Why a request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The importing server is to serve the request.
    Serve = 1,
    /// The connection returns to the origin, and the request was served.
    Served = 2,
    /// The connection returns to the origin, and the request was not executed.
    NotServed = 3,
}

impl HandedRequest {
    pub(super) fn write(&self, out: &mut Writer) {
        out.u64(self.number);
        out.u8(self.origin.0);
        out.u8(self.hops_left);
        out.u8(self.purpose as u8);
        out.u8(0);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<HandedRequest, StateError> {
        let request = HandedRequest {
            number: from.u64()?,
            origin: match from.u8()? {
                0 => return Err(StateError::Field("origin of the request")),
                id => ServerId(id),
            },
            hops_left: from.u8()?,
            purpose: match from.u8()? {
                1 => Purpose::Serve,
                2 => Purpose::Served,
                3 => Purpose::NotServed,
                _ => return Err(StateError::Field("purpose of the request")),
            },
        };
        if from.u8()? != 0 {
            return Err(StateError::Field("reserved byte of the request"));
        }
        Ok(request)
    }
}
