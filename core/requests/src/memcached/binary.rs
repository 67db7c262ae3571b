//! The binary protocol: headers of 24 bytes, each followed by a body whose length it tells. A reply repeats its request's
//! opcode, so that it is never in doubt which one it belongs to.

use spillway_transport::Time;

use crate::gave_up::GaveUp;
use crate::outstanding::{Kind, Outstanding};

/// The first byte of a request of the binary protocol.
pub(super) const BINARY_REQUEST: u8 = 0x80;

const REPLY: u8 = 0x81;
const HEADER_BYTES: usize = 24;

const STAT: u8 = 0x10;

/// Both directions of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Binary {
    requests: Packets,
    replies: Packets,
}

impl Binary {
    pub fn requests(
        &mut self,
        now: Time,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
    ) -> Result<(), GaveUp> {
        while let Some(header) = self.requests.next(BINARY_REQUEST, &mut bytes)? {
            outstanding.push(now, kind(header.opcode)?)?;
        }
        Ok(())
    }

    pub fn replies(
        &mut self,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
        mut answered: impl FnMut(Option<Time>),
    ) -> Result<(), GaveUp> {
        while let Some(header) = self.replies.next(REPLY, &mut bytes)? {
            // Quiet requests before the one that is answered have had their chance.
            let first = loop {
                match outstanding.first() {
                    Some(first) if first.shape == header.opcode => break first,
                    Some(first) if first.is_quiet => outstanding.forget_first(),
                    _ => return Err(GaveUp::Unasked),
                }
            };
            // Statistics are many packets, up to an empty one or an error.
            let is_last = header.opcode != STAT || header.key == 0 || header.status != 0;
            if !first.is_quiet && is_last {
                answered(outstanding.answered());
            }
        }
        Ok(())
    }

    pub fn is_between(&self) -> bool {
        self.requests.is_between() && self.replies.is_between()
    }
}

/// What a request with this opcode is.
fn kind(opcode: u8) -> Result<Kind, GaveUp> {
    Ok(match opcode {
        // get, set, add, replace, delete, increment, decrement, no-op, version, getk, append, prepend, touch, gat, gatk
        0x00..=0x06 | 0x0a..=0x0c | 0x0e..=0x0f | 0x1c | 0x1d | 0x23 => Kind::prompt(opcode),
        // quit, flush, stat, verbosity; authentication
        0x07 | 0x08 | STAT | 0x1b | 0x20..=0x22 => Kind::unmeasured(opcode),
        // The quiet forms of all of these.
        0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24 => Kind::quiet(opcode),
        _ => return Err(GaveUp::UnknownCommand),
    })
}

#[derive(Clone, Copy, Debug)]
struct Header {
    opcode: u8,
    /// Bytes of its key.
    key: u16,
    /// Of a reply.
    status: u16,
}

/// One direction.
#[derive(Clone, Debug, Default)]
struct Packets {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    filled: usize,
    /// Bytes of the body that are still to come.
    body: u32,
}

impl Packets {
    /// Takes from the input up to the end of a packet. `None`: there is more to come.
    fn next(&mut self, magic: u8, input: &mut &[u8]) -> Result<Option<Header>, GaveUp> {
        if self.filled < HEADER_BYTES {
            let taken = input.len().min(HEADER_BYTES - self.filled);
            let (of_header, rest) = input.split_at(taken);
            self.header[self.filled..self.filled + taken].copy_from_slice(of_header);
            (self.filled, *input) = (self.filled + taken, rest);
            if self.filled > 0 && self.header[0] != magic {
                return Err(GaveUp::Syntax);
            }
            if self.filled < HEADER_BYTES {
                return Ok(None);
            }
            let [.., l0, l1, l2, l3, _, _, _, _, _, _, _, _, _, _, _, _] = self.header;
            self.body = u32::from_be_bytes([l0, l1, l2, l3]);
        }
        let taken = input.len().min(usize::try_from(self.body).unwrap_or(usize::MAX));
        *input = &input[taken..];
        self.body -= u32::try_from(taken).unwrap_or(self.body); // at most `body`
        if self.body > 0 {
            return Ok(None);
        }
        self.filled = 0;
        let [_, opcode, key_high, key_low, _, _, status_high, status_low, ..] = self.header;
        Ok(Some(Header {
            opcode,
            key: u16::from_be_bytes([key_high, key_low]),
            status: u16::from_be_bytes([status_high, status_low]),
        }))
    }

    fn is_between(&self) -> bool {
        self.filled == 0
    }
}
