//! Connections that were exported: until their moves have ended, and until no segment can reach their sockets any more.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use spillway_capture::{CaptureError, Captured, Leaving, PeerPacket, Step};
use spillway_moves::ConnectionEnds;
use spillway_net::Detached;

use crate::faults::{Fault, Faults};
use crate::frames::framed;

/// How often a socket that leaves is looked at again after the kernel has refused it.
const ATTEMPTS_MAX: u32 = 20;
/// Shortest time between two looks at sockets that leave: with many moves a second they share the wake-ups.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// Time between two such attempts.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// A connection whose move is not decided.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) captured: Captured,
    pub(crate) detached: Detached,
}

/// A socket whose connection has left.
#[derive(Debug)]
struct LeavingSocket {
    socket: Leaving,
    /// How often it could not be looked at.
    attempts: u32,
}

impl LeavingSocket {
    /// Takes what the socket has got of the peer. Returns when to look again; `None`: the socket has ended.
    fn look(
        &mut self,
        ends: &ConnectionEnds,
        now: Instant,
        strays: &mut VecDeque<Vec<u8>>,
        faults: &mut Faults,
    ) -> Option<Instant> {
        loop {
            match self.socket.poll(now) {
                Ok(Step::Forward(packet)) => strays.push_back(framed(packet.bytes(), ends.local)),
                Ok(Step::Wait(until)) => return Some(until),
                Ok(Step::Ended) => return None,
                Err(error) => {
                    let is_final = matches!(error, CaptureError::Refused(_)) || self.attempts == ATTEMPTS_MAX;
                    faults.add(Fault::NotForwarded(ends.peer, error));
                    self.attempts += 1;
                    return (!is_final).then(|| now + RETRY_AFTER);
                }
            }
        }
    }
}

/// Connections that were exported.
#[derive(Debug, Default)]
pub(crate) struct Exported {
    undecided: BTreeMap<ConnectionEnds, Away>,
    leaving: BTreeMap<ConnectionEnds, LeavingSocket>,
    /// When the first socket that leaves is to be looked at.
    due: Option<Instant>,
    /// Frames for the connections' new owners.
    strays: VecDeque<Vec<u8>>,
    /// What sockets have not accepted whose connections are to come here again.
    returning: BTreeMap<ConnectionEnds, Vec<PeerPacket>>,
}

impl Exported {
    pub(crate) fn add(&mut self, ends: ConnectionEnds, away: Away) {
        self.undecided.insert(ends, away);
    }

    /// The connection has not moved.
    pub(crate) fn take_back(&mut self, ends: &ConnectionEnds) -> Option<Away> {
        self.undecided.remove(ends)
    }

    /// Another server has the connection, or it is lost. What its socket has got of the peer goes to the new owner at once.
    pub(crate) fn give_up(&mut self, ends: &ConnectionEnds, faults: &mut Faults) {
        let Some(away) = self.undecided.remove(ends) else { return };
        let now = Instant::now();
        let mut leaving = LeavingSocket { socket: away.captured.accepted(), attempts: 0 };
        if let Some(until) = leaving.look(ends, now, &mut self.strays, faults) {
            self.leaving.insert(*ends, leaving);
            // One that is to be looked at earlier waits for others.
            let until = until.max(now + LOOK_INTERVAL);
            self.due = Some(self.due.map_or(until, |due| due.min(until)));
        }
    }

    /// Number of sockets of exported connections.
    pub(crate) fn len(&self) -> usize {
        self.undecided.len() + self.leaving.len()
    }

    /// Ends the socket of a connection that is to come here again before the socket's grace is over. All packets of the client
    /// are held now, so none can meet a missing socket. What the socket has not accepted is kept for the new one.
    pub(crate) fn end_leaving(&mut self, ends: &ConnectionEnds, faults: &mut Faults) {
        let Some(mut leaving) = self.leaving.remove(ends) else { return };
        let mut packets = Vec::new();
        loop {
            match leaving.socket.poll(Instant::now()) {
                Ok(Step::Forward(packet)) => packets.push(packet),
                Ok(Step::Wait(_) | Step::Ended) => break,
                Err(error) => {
                    faults.add(Fault::NotForwarded(ends.peer, error));
                    break;
                }
            }
        }
        if !packets.is_empty() {
            self.returning.insert(*ends, packets);
        }
    }

    /// The connection is here again: returns the packets that the socket which it had before has not accepted.
    pub(crate) fn take_returning(&mut self, ends: &ConnectionEnds) -> Vec<PeerPacket> {
        self.returning.remove(ends).unwrap_or_default()
    }

    /// The connection does not come: its packets go to its owner.
    pub(crate) fn refuse(&mut self, ends: &ConnectionEnds) {
        let packets = self.take_returning(ends);
        self.strays.extend(packets.iter().map(|packet| framed(packet.bytes(), ends.local)));
    }

    /// Looks at the sockets that leave: what they have got of their peers goes to the new owners.
    pub(crate) fn work(&mut self, now: Instant, faults: &mut Faults) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let strays = &mut self.strays;
        let mut due: Option<Instant> = None;
        self.leaving.retain(|ends, leaving| {
            let until = leaving.look(ends, now, strays, faults);
            due = due.into_iter().chain(until).min();
            until.is_some()
        });
        self.due = due.map(|due| due.max(now + LOOK_INTERVAL));
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
