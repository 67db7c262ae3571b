//! Replies to plain clients, kept until the client's TCP has acknowledged them to the helper. A plain client has no
//! session: replies that only its helper has received are lost if the helper fails. On the helper's request the server
//! keeps these replies, so that another helper could continue from the client's offset.

use alloc::collections::VecDeque;

/// An empty buffer with a larger capacity, in bytes, is freed.
const EMPTY_CAPACITY_MAX: usize = 16 * 1024;

/// Replies that were sent and not acknowledged. All offsets count bytes of replies since the connection began.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    bytes: VecDeque<u8>,
    acknowledged: u64,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverSent;

/// Kept replies of a plain connection, see [`ServerLink::unacknowledged`](crate::ServerLink::unacknowledged).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged<'a> {
    /// Offset up to which the client's TCP has acknowledged replies, at least the offset from which replies are kept.
    pub acknowledged: u64,
    /// The replies after `acknowledged`, in two pieces.
    pub bytes: (&'a [u8], &'a [u8]),
}

impl Kept {
    /// Keeps replies from offset `sent` on, at most `bytes_max` bytes.
    pub(crate) fn new(sent: u64, bytes_max: usize) -> Kept {
        Kept { bytes: VecDeque::new(), acknowledged: sent, bytes_max }
    }

    pub(crate) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.bytes.len())
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The client has all bytes up to `through`. Outdated acknowledgements are ignored.
    pub(crate) fn acknowledge(&mut self, through: u64) -> Result<(), NeverSent> {
        let newly_acknowledged = through.saturating_sub(self.acknowledged);
        if newly_acknowledged > self.bytes.len() as u64 {
            return Err(NeverSent);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of `bytes`")]
        self.bytes.drain(..newly_acknowledged as usize);
        self.acknowledged += newly_acknowledged;
        if self.bytes.is_empty() && self.bytes.capacity() > EMPTY_CAPACITY_MAX {
            self.bytes = VecDeque::new();
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> Unacknowledged<'_> {
        Unacknowledged { acknowledged: self.acknowledged, bytes: self.bytes.as_slices() }
    }
}
