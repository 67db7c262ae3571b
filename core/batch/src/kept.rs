//! Replies of plain clients, kept until the client's own TCP has acknowledged them to the helper.
//!
//! A plain client has no session: what its helper had and the client had not is lost with the helper. Where a helper
//! asks for it, the server keeps those bytes, so that another helper could go on from what the client has.

use alloc::collections::VecDeque;

/// A buffer that has become empty gives its memory back above this size.
const QUIET_BYTES: usize = 16 * 1024;

/// Bytes that were composed and not acknowledged. All offsets count bytes of replies since the connection began.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    bytes: VecDeque<u8>,
    acknowledged: u64,
    bytes_max: usize,
}

/// An acknowledgement of what was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeverSent;

/// What a server keeps of a plain connection, see [`ServerLink::unacknowledged`](crate::ServerLink::unacknowledged).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged<'a> {
    /// The client's TCP has acknowledged all replies up to this offset; or keeping them began here.
    pub acknowledged: u64,
    /// What follows, in two pieces.
    pub bytes: (&'a [u8], &'a [u8]),
}

impl Kept {
    /// What is composed after `sent` bytes is kept.
    pub(crate) fn new(sent: u64, bytes_max: usize) -> Kept {
        Kept { bytes: VecDeque::new(), acknowledged: sent, bytes_max }
    }

    /// How many bytes more may be composed.
    pub(crate) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.bytes.len())
    }

    /// These were composed.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The client has all bytes up to `through`. What is older than the last acknowledgement changes nothing.
    pub(crate) fn acknowledge(&mut self, through: u64) -> Result<(), NeverSent> {
        let news = through.saturating_sub(self.acknowledged);
        if news > self.bytes.len() as u64 {
            return Err(NeverSent);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of `bytes`")]
        self.bytes.drain(..news as usize);
        self.acknowledged += news;
        if self.bytes.is_empty() && self.bytes.capacity() > QUIET_BYTES {
            self.bytes = VecDeque::new();
        }
        Ok(())
    }

    pub(crate) fn all(&self) -> Unacknowledged<'_> {
        Unacknowledged { acknowledged: self.acknowledged, bytes: self.bytes.as_slices() }
    }
}
