//! A link from its first packet until the server's application has accepted.

use std::io;

use spillway_batch::{LinkError, OpenerEvent, RefuseReason};
use spillway_transport::Time;

use super::{Ended, Link, Stage};
use crate::error::MoveError;
use crate::{scratch, socket};

/// The preamble and the answer to *connect* fit many times.
const OPENING_BYTES: usize = 2048;

impl Link {
    /// Goes on as far as it can without blocking. Whether the connection is accepted.
    pub(crate) fn advance(&mut self, now: Time) -> Result<bool, MoveError> {
        if self.stage == Stage::Connecting {
            if !socket::is_connected(&self.socket)? {
                return Ok(false);
            }
            self.stage = Stage::Authenticating;
        }
        self.push()?;
        let mut buffer = [0; OPENING_BYTES];
        while !matches!(self.stage, Stage::Open(_)) {
            match socket::receive(&self.socket, &mut buffer) {
                Ok(0) => return Err(MoveError::Closed),
                Ok(received) => self.digest(now, &buffer[..received])?,
                Err(error) if socket::is_later(&error) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(MoveError::Closed);
                }
                Err(error) => return Err(error.into()),
            }
            match self.ended {
                Some(Ended::Refused(reason)) => return Err(MoveError::Refused(reason)),
                Some(Ended::Closed(_)) => return Err(MoveError::Refused(RefuseReason::Unavailable)),
                _ => {}
            }
            self.push()?;
        }
        Ok(true)
    }

    /// Takes in what arrived while the application cannot receive: data is held.
    pub(super) fn digest(&mut self, now: Time, wire: &[u8]) -> Result<(), LinkError> {
        scratch::with(|scratch| {
            let opened = self.end.unseal(now, wire, scratch);
            self.digest_opened(now, opened)
        })
    }

    fn digest_opened(&mut self, now: Time, mut input: &[u8]) -> Result<(), LinkError> {
        while let Some(event) = self.end.decompose(now, &mut input)? {
            match event {
                OpenerEvent::Established { .. } => self.ask()?,
                OpenerEvent::Data { bytes, .. } => self.held.extend_from_slice(bytes),
                other => self.note(&other),
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<(), LinkError> {
        // A socket that was connected a moment ago has an address; if it is gone, reading will say so.
        let client = socket::local_address(&self.socket).map_err(|_| LinkError::Welcome)?;
        // A link that was just established has at least one free id, or its welcome made no sense.
        let id = self.end.open(client, self.server).map_err(|_| LinkError::Welcome)?;
        self.stage = Stage::Asked(id);
        Ok(())
    }

    /// What an event other than data and *established* changes.
    pub(super) fn note(&mut self, event: &OpenerEvent<'_>) {
        match *event {
            OpenerEvent::Accepted { id } => self.stage = Stage::Open(id),
            OpenerEvent::Refused { reason, .. } => self.ended = Some(Ended::Refused(reason)),
            OpenerEvent::Finished { .. } => self.ended = Some(Ended::Finished),
            OpenerEvent::Closed { id, reason } => {
                self.end.close(id, reason);
                self.ended = Some(Ended::Closed(reason));
            }
            OpenerEvent::Drain { deadline_ms } => self.drain_ms = Some(deadline_ms),
            OpenerEvent::Established { .. }
            | OpenerEvent::Data { .. }
            | OpenerEvent::Taken { .. }
            | OpenerEvent::RelayedData { .. }
            | OpenerEvent::RelayedControl { .. } => {}
        }
    }
}
