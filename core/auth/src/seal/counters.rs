//! What an end has opened and rejected.

use spillway_wire::handoff::HandoffError;

use super::{Opened, SealRejection};

/// Datagrams by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounters {
    /// Messages that were opened.
    pub messages: u64,
    /// Greetings that were accepted.
    pub greetings: u64,
    /// Rejected: not a datagram or a message of this version.
    pub malformed: u64,
    /// Rejected: another version.
    pub version: u64,
    /// Rejected: not from the peer to this server.
    pub misdirected: u64,
    /// Rejected: another session.
    pub other_session: u64,
    /// Rejected: an old greeting.
    pub stale: u64,
    /// Rejected: wrong tag.
    pub not_authentic: u64,
    /// Rejected: received before.
    pub replayed: u64,
}

impl SealCounters {
    /// The number of rejected datagrams.
    pub fn rejected(&self) -> u64 {
        self.malformed
            + self.version
            + self.misdirected
            + self.other_session
            + self.stale
            + self.not_authentic
            + self.replayed
    }

    pub(super) fn count(&mut self, result: Result<&Opened<'_>, &SealRejection>) {
        let counter = match result {
            Ok(Opened::Message(_)) => &mut self.messages,
            Ok(Opened::Greeting { .. }) => &mut self.greetings,
            Err(SealRejection::Malformed(HandoffError::Version(_))) => &mut self.version,
            Err(SealRejection::Malformed(_)) => &mut self.malformed,
            Err(SealRejection::Misdirected) => &mut self.misdirected,
            Err(SealRejection::OtherSession) => &mut self.other_session,
            Err(SealRejection::Stale) => &mut self.stale,
            Err(SealRejection::NotAuthentic) => &mut self.not_authentic,
            Err(SealRejection::Replayed) => &mut self.replayed,
        };
        *counter += 1;
    }
}
