//! Opening of a link, until the server's application has accepted the virtual connection.

use std::io;

use spillway_batch::{LinkError, OpenerEvent, RefuseReason};
use spillway_transport::Time;

use super::{Ended, Link, Stage};
use crate::error::MoveError;
use crate::network::{Stream, would_block};
use crate::scratch;

/// More than the size of the preamble and of the answer to *connect*.
const OPENING_BUFFER_BYTES: usize = 2048;

impl<S: Stream> Link<S> {
    /// Continues the opening, without blocking. Returns whether the virtual connection is accepted.
    pub(crate) fn advance(&mut self, now: Time) -> Result<bool, MoveError> {
        if self.stage == Stage::Connecting {
            if !self.stream.is_connected()? {
                return Ok(false);
            }
            self.stage = Stage::Authenticating { client: self.stream.local_address()? };
        }
        self.push()?;
        let mut buffer = [0; OPENING_BUFFER_BYTES];
        while !matches!(self.stage, Stage::Open(_)) {
            match self.stream.receive(&mut buffer) {
                Ok(0) => return Err(MoveError::Closed),
                Ok(received) => self.handle_input(now, &buffer[..received])?,
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(MoveError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
            match self.incoming_end {
                Some(Ended::Refused(reason)) => return Err(MoveError::Refused(reason)),
                Some(Ended::Closed(_)) => return Err(MoveError::Refused(RefuseReason::Unavailable)),
                _ => {}
            }
            self.push()?;
        }
        Ok(true)
    }

    /// Handles bytes that arrived while the application cannot receive, and holds the data.
    pub(super) fn handle_input(&mut self, now: Time, wire: &[u8]) -> Result<(), LinkError> {
        scratch::with(|scratch| {
            let plaintext = self.protocol.unseal(now, wire, scratch);
            self.handle_decrypted(now, plaintext)
        })
    }

    fn handle_decrypted(&mut self, now: Time, mut input: &[u8]) -> Result<(), LinkError> {
        while let Some(event) = self.protocol.decompose(now, &mut input)? {
            match event {
                OpenerEvent::Established { .. } => self.request_connection()?,
                OpenerEvent::Data { bytes, .. } => self.held.extend_from_slice(bytes),
                other => self.handle_event(&other),
            }
        }
        Ok(())
    }

    fn request_connection(&mut self) -> Result<(), LinkError> {
        let Stage::Authenticating { client } = self.stage else {
            debug_assert!(
                false,
                "a link should be established only while it authenticates: {:?}",
                self.stage
            );
            return Ok(());
        };
        // Fails only if the link's welcome was invalid: a new link has free ids.
        let id = self.protocol.open(client, self.server).map_err(|_| LinkError::Welcome)?;
        self.stage = Stage::Requested(id);
        Ok(())
    }

    /// Handles an event other than data and *established*.
    pub(super) fn handle_event(&mut self, event: &OpenerEvent<'_>) {
        match *event {
            OpenerEvent::Accepted { id } => self.stage = Stage::Open(id),
            OpenerEvent::Refused { reason, .. } => self.incoming_end = Some(Ended::Refused(reason)),
            OpenerEvent::Finished { .. } => self.incoming_end = Some(Ended::Finished),
            OpenerEvent::Closed { id, reason } => {
                self.protocol.close(id, reason);
                self.incoming_end = Some(Ended::Closed(reason));
            }
            OpenerEvent::Drain { deadline_ms } => self.drain_ms = Some(deadline_ms),
            OpenerEvent::Established { .. }
            | OpenerEvent::Data { .. }
            | OpenerEvent::Acknowledged { .. }
            | OpenerEvent::RelayedData { .. }
            | OpenerEvent::RelayedControl { .. } => {}
        }
    }
}
