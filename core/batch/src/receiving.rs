//! Receiving half of a link's end: decrypts records and disassembles batches.

use alloc::boxed::Box;

use spillway_auth::Channel;
use spillway_transport::Time;
use spillway_wire::{Disassembler, Piece};

use crate::error::LinkError;
use crate::records::{Records, Scratch};

#[derive(Debug, Default)]
pub(crate) struct Receiving {
    disassembler: Disassembler,
    /// `None`: the link is not encrypted.
    records: Option<Box<Records>>,
    /// A fatal error, reported after the events that came before it.
    error: Option<LinkError>,
}

impl Receiving {
    pub(crate) fn enable_encryption(&mut self, channel: Channel) {
        self.records = Some(Records::new(channel));
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.records.is_some()
    }

    pub(crate) fn records(&mut self) -> Option<&mut Records> {
        self.records.as_deref_mut()
    }

    /// Stores a fatal error, which [`take_error`](Self::take_error) returns.
    pub(crate) fn fail(&mut self, error: LinkError) {
        self.error = Some(error);
    }

    /// Decrypts bytes received after the handshake; bytes of a link that is not encrypted are returned as they are.
    /// Returns no bytes if the link has failed (`is_failed`), or after an error in an earlier record.
    pub(crate) fn unseal<'a>(
        &mut self,
        now: Time,
        wire: &'a [u8],
        scratch: &'a mut Scratch,
        is_failed: bool,
    ) -> &'a [u8] {
        if is_failed || self.error.is_some() {
            return &[];
        }
        let Some(records) = &mut self.records else { return wire };
        let (opened, outcome) = records.unseal(now, wire, scratch);
        self.error = outcome.err();
        opened
    }

    /// Fails unless [`unseal`](Self::unseal) returned these bytes: a driver must not decompose encrypted bytes.
    pub(crate) fn check_opened(&self, input: &[u8]) -> Result<(), LinkError> {
        self.records.as_ref().map_or(Ok(()), |records| records.check_opened(input))
    }

    /// Counts bytes that the caller has decomposed, of those that [`unseal`](Self::unseal) returned.
    #[inline]
    pub(crate) fn consumed_opened(&mut self, bytes: usize) {
        if let Some(records) = &mut self.records {
            records.consumed_opened(bytes);
        }
    }

    #[inline]
    pub(crate) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, LinkError> {
        Ok(self.disassembler.next(input)?)
    }

    #[inline]
    pub(crate) fn is_between_frames(&self) -> bool {
        self.disassembler.is_between_frames()
    }

    /// Call when all received bytes are decomposed: returns the error that `unseal` or the handshake found.
    pub(crate) fn take_error(&mut self) -> Result<(), LinkError> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Bytes of memory that hold an incomplete record.
    pub(crate) fn held_bytes(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.held_bytes())
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. `None`: no record is incomplete.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.records.as_ref()?.poll_timeout()
    }

    /// Fails when the rest of a record did not arrive in time. While `may_read` is false the caller does not read the
    /// link, and the time limit is postponed.
    pub(crate) fn handle_timeout(&mut self, now: Time, may_read: bool) -> Result<(), LinkError> {
        self.records.as_mut().map_or(Ok(()), |records| records.handle_timeout(now, may_read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_link_without_encryption_returns_no_bytes() {
        let (mut receiving, mut scratch) = (Receiving::default(), Scratch::new());
        assert_eq!(receiving.unseal(Time::ZERO, b"frames", &mut scratch, false), b"frames");
        assert!(
            receiving.unseal(Time::ZERO, b"frames", &mut scratch, true).is_empty(),
            "a failed link should return no bytes"
        );
        receiving.fail(LinkError::WrongProof);
        assert!(
            receiving.unseal(Time::ZERO, b"frames", &mut scratch, false).is_empty(),
            "a failed link should return no bytes"
        );
        assert!(matches!(receiving.take_error(), Err(LinkError::WrongProof)), "the error should be returned");
    }
}
