//! What has gone wrong, one event after the other: for logs, and for checks of the protocol.

use alloc::collections::VecDeque;

use spillway_handoff::{Cause, PeerFault};
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Flow, ServerId};

/// Maximum number of incidents that wait for [`Server::poll_incident`](crate::Server::poll_incident). Beyond it the oldest is
/// dropped.
const INCIDENTS_MAX: usize = 1024;

/// An event that an operator may want to know about, besides the results of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A datagram of another server was not accepted.
    PeerFault(PeerFault),
    /// A move to this server was refused, or has ended here. Its source has the connection.
    Refused {
        /// The flow of the connection.
        flow: Flow,
        /// The server from which the connection would have come.
        source: ServerId,
        /// The reason.
        reason: Reason,
    },
    /// This server has lost a connection.
    Lost(Flow, Loss),
}

/// How a server has lost a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The connection was here. This server does not own its flow any more, and has dropped it without a segment.
    Dropped(Cause),
    /// The connection had ended here. Its last segments cannot be repeated any more.
    LastSegments(Cause),
    /// The source of a move has given the connection up after the export. The target may have it.
    GivenUp(Cause),
    /// This server owns the flow, but its stack has refused the connection's state.
    NotImported,
}

/// Incidents that were not polled yet.
#[derive(Debug, Default)]
pub(crate) struct Incidents(VecDeque<Incident>);

impl Incidents {
    pub(crate) fn add(&mut self, incident: Incident) {
        if self.0.len() == INCIDENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(incident);
    }

    pub(crate) fn poll(&mut self) -> Option<Incident> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_incidents_are_dropped_beyond_the_bound() {
        let fault = |version: usize| Incident::PeerFault(PeerFault::Version(version as u8));
        let mut incidents = Incidents::default();
        for version in 0..INCIDENTS_MAX + 1 {
            incidents.add(fault(version));
        }
        assert_eq!(incidents.poll(), Some(fault(1)));
        assert_eq!(core::iter::from_fn(|| incidents.poll()).count(), INCIDENTS_MAX - 1);
    }
}
