//! memcached's binary protocol: headers of 24 bytes, each followed by a body. A reply repeats its request's opcode, so
//! replies can be matched even when quiet requests are not answered.

use spillway_transport::Time;

use crate::outstanding::{Kind, Outstanding};
use crate::stop_reason::StopReason;

pub(super) const REQUEST_MAGIC: u8 = 0x80;
const REPLY_MAGIC: u8 = 0x81;
const HEADER_BYTES: usize = 24;

const STAT: u8 = 0x10;

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
    ) -> Result<(), StopReason> {
        while let Some(header) = self.requests.next(REQUEST_MAGIC, &mut bytes)? {
            outstanding.push(now, request_kind(header.opcode)?)?;
        }
        Ok(())
    }

    pub fn replies(
        &mut self,
        mut bytes: &[u8],
        outstanding: &mut Outstanding,
        mut answered: impl FnMut(Option<Time>),
    ) -> Result<(), StopReason> {
        while let Some(header) = self.replies.next(REPLY_MAGIC, &mut bytes)? {
            // Replies are in order, so the server did not answer the quiet requests before this reply's request.
            let first = loop {
                match outstanding.first() {
                    Some(first) if first.reply_format == header.opcode => break first,
                    Some(first) if first.is_quiet => outstanding.drop_first_group(),
                    _ => return Err(StopReason::UnsolicitedReply),
                }
            };
            // Statistics consist of several packets; the last one has an empty key or an error.
            let is_last = header.opcode != STAT || header.key_bytes == 0 || header.status != 0;
            if !first.is_quiet && is_last {
                answered(outstanding.take_answered());
            }
        }
        Ok(())
    }

    pub fn is_between_messages(&self) -> bool {
        self.requests.is_between_messages() && self.replies.is_between_messages()
    }
}

fn request_kind(opcode: u8) -> Result<Kind, StopReason> {
    Ok(match opcode {
        // get, set, add, replace, delete, increment, decrement, no-op, version, getk, append, prepend, touch, gat, gatk
        0x00..=0x06 | 0x0a..=0x0c | 0x0e..=0x0f | 0x1c | 0x1d | 0x23 => Kind::prompt(opcode),
        // quit, flush, stat, verbosity; authentication
        0x07 | 0x08 | STAT | 0x1b | 0x20..=0x22 => Kind::unmeasured(opcode),
        // quiet forms of the above
        0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24 => Kind::quiet(opcode),
        _ => return Err(StopReason::UnknownCommand),
    })
}

#[derive(Clone, Copy, Debug)]
struct Header {
    opcode: u8,
    key_bytes: u16,
    /// Status of a reply; a request has other data in this field.
    status: u16,
}

/// Finds the packets of one direction.
#[derive(Clone, Debug, Default)]
struct Packets {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    body_left: u32,
}

impl Packets {
    /// Consumes input up to the end of a packet. `None`: the packet is incomplete.
    fn next(&mut self, magic: u8, input: &mut &[u8]) -> Result<Option<Header>, StopReason> {
        if self.header_filled < HEADER_BYTES {
            let taken = input.len().min(HEADER_BYTES - self.header_filled);
            let (header_bytes, rest) = input.split_at(taken);
            self.header[self.header_filled..self.header_filled + taken].copy_from_slice(header_bytes);
            (self.header_filled, *input) = (self.header_filled + taken, rest);
            if self.header_filled > 0 && self.header[0] != magic {
                return Err(StopReason::Syntax);
            }
            if self.header_filled < HEADER_BYTES {
                return Ok(None);
            }
            let [.., l0, l1, l2, l3, _, _, _, _, _, _, _, _, _, _, _, _] = self.header;
            self.body_left = u32::from_be_bytes([l0, l1, l2, l3]);
        }
        let taken = input.len().min(usize::try_from(self.body_left).unwrap_or(usize::MAX));
        *input = &input[taken..];
        self.body_left -= u32::try_from(taken).unwrap_or(self.body_left);
        if self.body_left > 0 {
            return Ok(None);
        }
        self.header_filled = 0;
        let [_, opcode, key_high, key_low, _, _, status_high, status_low, ..] = self.header;
        Ok(Some(Header {
            opcode,
            key_bytes: u16::from_be_bytes([key_high, key_low]),
            status: u16::from_be_bytes([status_high, status_low]),
        }))
    }

    fn is_between_messages(&self) -> bool {
        self.header_filled == 0
    }
}
