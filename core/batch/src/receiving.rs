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
    pub(crate) fn encrypt(&mut self, channel: Channel) {
        self.records = Some(Records::new(channel));
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.records.is_some()
    }

    pub(crate) fn records(&mut self) -> Option<&mut Records> {
        self.records.as_deref_mut()
    }

    /// Stores a fatal error for [`end`](Self::end).
    pub(crate) fn fail(&mut self, error: LinkError) {
        self.error = Some(error);
    }

    /// Decrypts bytes received after the handshake, if the link is encrypted. `is_failed`: returns no bytes.
    pub(crate) fn unseal<'a>(
        &mut self,
        now: Time,
        wire: &'a [u8],
        scratch: &'a mut Scratch,
        is_failed: bool,
    ) -> &'a [u8] {
        let Some(records) = &mut self.records else { return wire };
        if is_failed || self.error.is_some() {
            return &[];
        }
        let (opened, outcome) = records.unseal(now, wire, scratch);
        self.error = outcome.err();
        opened
    }

    pub(crate) fn check_opened(&self, input: &[u8]) -> Result<(), LinkError> {
        self.records.as_ref().map_or(Ok(()), |records| records.check_opened(input))
    }

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

    pub(crate) fn held(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.held())
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. `None`: no record is incomplete.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.records.as_ref()?.poll_timeout()
    }

    /// Fails when the rest of a record did not arrive in time. `is_read`: the caller reads the link.
    pub(crate) fn handle_timeout(&mut self, now: Time, is_read: bool) -> Result<(), LinkError> {
        self.records.as_mut().map_or(Ok(()), |records| records.handle_timeout(now, is_read))
    }
}
