//! Connections that were exported: until their moves have ended, and until no segment can reach their sockets any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use spillway_capture::{Captured, Leaving, PeerPacket, Step};
use spillway_moves::ConnectionEnds;
use spillway_net::Detached;

use crate::faults::{Fault, Faults};
use crate::frames::framed;

/// A connection whose move is not decided.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) captured: Captured,
    pub(crate) detached: Detached,
}

/// Connections that were exported.
#[derive(Debug, Default)]
pub(crate) struct Exported {
    undecided: BTreeMap<ConnectionEnds, Away>,
    leaving: BTreeMap<ConnectionEnds, Leaving>,
    /// When the first socket that leaves is to be looked at.
    due: Option<Instant>,
    /// Frames for the connections' new owners.
    strays: VecDeque<Vec<u8>>,
}

impl Exported {
    pub(crate) fn add(&mut self, ends: ConnectionEnds, away: Away) {
        self.undecided.insert(ends, away);
    }

    /// The connection has not moved.
    pub(crate) fn take_back(&mut self, ends: &ConnectionEnds) -> Option<Away> {
        self.undecided.remove(ends)
    }

    /// Another server has the connection, or it is lost.
    pub(crate) fn give_up(&mut self, ends: &ConnectionEnds) {
        if let Some(away) = self.undecided.remove(ends) {
            self.leaving.insert(*ends, away.captured.accepted());
            self.due = Some(Instant::now());
        }
    }

    /// Number of sockets of exported connections.
    pub(crate) fn len(&self) -> usize {
        self.undecided.len() + self.leaving.len()
    }

    /// Ends the socket of a connection that comes here again before the socket's grace is over. All packets of the client are
    /// held now, so none can meet a missing socket. Returns the packets that the socket has not accepted.
    pub(crate) fn end_leaving(&mut self, ends: &ConnectionEnds, faults: &mut Faults) -> Vec<PeerPacket> {
        let mut packets = Vec::new();
        let Some(mut leaving) = self.leaving.remove(ends) else { return packets };
        loop {
            match leaving.poll(Instant::now()) {
                Ok(Step::Forward(packet)) => packets.push(packet),
                Ok(Step::Wait(_) | Step::Ended) => return packets,
                Err(error) => {
                    faults.add(Fault::NotForwarded(ends.peer, error));
                    return packets;
                }
            }
        }
    }

    /// Looks at the sockets that leave: what they have got of their peers goes to the new owners.
    pub(crate) fn work(&mut self, now: Instant, faults: &mut Faults) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        let strays = &mut self.strays;
        let mut due: Option<Instant> = None;
        self.leaving.retain(|ends, leaving| {
            loop {
                match leaving.poll(now) {
                    Ok(Step::Forward(packet)) => strays.push_back(framed(packet.bytes(), ends.local)),
                    Ok(Step::Wait(until)) => {
                        due = Some(due.map_or(until, |due| due.min(until)));
                        return true;
                    }
                    Ok(Step::Ended) => return false,
                    Err(error) => {
                        faults.add(Fault::NotForwarded(ends.peer, error));
                        return false;
                    }
                }
            }
        });
        self.due = due;
    }

    /// When to call [`work`](Self::work).
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether frames wait for [`poll_stray`](Self::poll_stray).
    pub(crate) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// The next frame for a connection's new owner.
    pub(crate) fn poll_stray(&mut self) -> Option<Vec<u8>> {
        self.strays.pop_front()
    }
}
