//! Packets of connections that are to come: they are held until the connection is here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_bpf::{Budget, HeldFlows, Hold, Mode, Release};
use spillway_capture::{InjectError, Injector, PeerPacket};
use spillway_moves::ConnectionEnds;
use spillway_wire::handoff::Reason;

use crate::error::OpenError;
use crate::faults::{Fault, Faults};
use crate::frames::framed;

/// Maximum number of connections that are to come, and of those whose packets are still being released.
const FLOWS_MAX: u32 = 1024;
/// What may wait for a connection: the window of a client that sends a large request, in small segments, too.
const BUDGET: Budget = Budget { frames_max: 256, bytes_max: 192 * 1024 };
/// How long packets of a connection that does not come may still arrive: as long as servers forward packets.
const REFUSED_FOR: Duration = Duration::from_millis(100);
/// Room for the packets of all connections: some 300 budgets of full length.
const RING_BYTES: u32 = 64 << 20;

/// The program that holds packets, with the connections that are to come.
#[derive(Debug)]
pub(crate) struct Holds {
    flows: HeldFlows,
    mode: Mode,
    holds: BTreeMap<ConnectionEnds, Hold>,
    /// Connections that are here, and whose packets arrive faster than they are given to the socket.
    draining: BTreeSet<ConnectionEnds>,
    /// Connections that do not come, and until when their packets may still arrive here.
    refused: BTreeMap<ConnectionEnds, Instant>,
    /// Frames of connections that do not come.
    strays: VecDeque<Vec<u8>>,
}

impl Holds {
    /// Loads the program, and attaches it to the interface on which clients' packets arrive.
    pub(crate) fn open(interface: &str) -> Result<Holds, OpenError> {
        let mut flows = HeldFlows::load(FLOWS_MAX, RING_BYTES).map_err(OpenError::Program)?;
        let mode = flows.attach(interface).map_err(OpenError::Interface)?;
        Ok(Holds {
            flows,
            mode,
            holds: BTreeMap::new(),
            draining: BTreeSet::new(),
            refused: BTreeMap::new(),
            strays: VecDeque::new(),
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Holds a connection's packets. A connection whose packets are held already may be announced again.
    pub(crate) fn hold(&mut self, ends: ConnectionEnds, faults: &mut Faults) -> Result<(), Reason> {
        self.refused.remove(&ends);
        if self.draining.contains(&ends) {
            // These packets belong to a connection that has ended.
            self.end(ends, faults);
        }
        if self.holds.contains_key(&ends) {
            return Ok(());
        }
        match self.flows.hold(ends.local, ends.peer, BUDGET) {
            Ok(hold) => {
                self.holds.insert(ends, hold);
                Ok(())
            }
            Err(error) => {
                if let spillway_bpf::HoldError::Bpf(error) = error {
                    faults.add(Fault::NotHeld(error));
                }
                Err(Reason::NoRoom)
            }
        }
    }

    /// Takes packets out of the ring, so that it has room.
    pub(crate) fn collect(&mut self, faults: &mut Faults) {
        if let Err(error) = self.flows.collect() {
            faults.add(Fault::NotHeld(error));
        }
    }

    /// Whether packets of a connection that is here still wait.
    pub(crate) fn drains(&self, ends: &ConnectionEnds) -> bool {
        self.draining.contains(ends)
    }

    /// Whether packets of connections that are here wait for [`release`](Self::release).
    pub(crate) fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Gives a connection's packets to its socket, and ends the hold when none is left.
    pub(crate) fn release(&mut self, ends: ConnectionEnds, injector: &Injector, faults: &mut Faults) {
        let Some(hold) = self.holds.get(&ends).copied() else { return };
        let socket = injector.for_connection(ends.local, ends.peer);
        let mut lost: Option<InjectError> = None;
        let released = self.flows.release(hold, |packet| {
            if let Err(error) = socket.inject(packet) {
                lost = lost.take().or(Some(error));
            }
        });
        if let Some(error) = lost {
            faults.add(Fault::NotInjected(ends.peer, error));
        }
        match released {
            Ok(Release::Released) => {
                self.holds.remove(&ends);
                self.draining.remove(&ends);
            }
            Ok(Release::Draining) => {
                self.draining.insert(ends);
            }
            Err(error) => {
                self.draining.insert(ends);
                faults.add(Fault::NotHeld(error));
            }
        }
    }

    /// Releases further packets of connections that are here.
    pub(crate) fn drain(&mut self, injector: &Injector, faults: &mut Faults) {
        for ends in self.draining.iter().copied().collect::<Vec<_>>() {
            self.release(ends, injector, faults);
        }
    }

    /// The connection does not come: returns the frames that were held. The switch may send further ones until it knows that:
    /// they become strays.
    pub(crate) fn refuse(&mut self, ends: ConnectionEnds, faults: &mut Faults) -> Vec<Vec<u8>> {
        if !self.holds.contains_key(&ends) {
            return Vec::new();
        }
        self.draining.remove(&ends);
        self.refused.insert(ends, Instant::now() + REFUSED_FOR);
        self.take(&ends, faults)
    }

    /// Looks at the connections that do not come.
    pub(crate) fn work(&mut self, now: Instant, faults: &mut Faults) {
        for (ends, until) in self.refused.iter().map(|(ends, until)| (*ends, *until)).collect::<Vec<_>>() {
            let frames = self.take(&ends, faults);
            self.strays.extend(frames);
            if until <= now {
                self.refused.remove(&ends);
                self.end(ends, faults);
            }
        }
    }

    /// When to call [`work`](Self::work) if nothing arrives.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.refused.values().min().copied()
    }

    /// Whether frames of connections that do not come wait.
    pub(crate) fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// The next frame of a connection that does not come.
    pub(crate) fn poll_stray(&mut self) -> Option<Vec<u8>> {
        self.strays.pop_front()
    }

    fn take(&mut self, ends: &ConnectionEnds, faults: &mut Faults) -> Vec<Vec<u8>> {
        let Some(hold) = self.holds.get(ends) else { return Vec::new() };
        match self.flows.take(*hold) {
            Ok(packets) => framed_all(&packets, ends),
            Err(error) => {
                faults.add(Fault::NotHeld(error));
                Vec::new()
            }
        }
    }

    /// Ends a hold. Packets that still wait become strays.
    fn end(&mut self, ends: ConnectionEnds, faults: &mut Faults) {
        self.draining.remove(&ends);
        let Some(hold) = self.holds.get(&ends).copied() else { return };
        match self.flows.forget(hold) {
            Ok(packets) => {
                self.holds.remove(&ends);
                self.strays.extend(framed_all(&packets, &ends));
            }
            Err(error) => {
                // It is tried again.
                self.refused.insert(ends, Instant::now() + REFUSED_FOR);
                faults.add(Fault::NotHeld(error));
            }
        }
    }
}

/// Valid packets as frames. Checksums that were left to the hardware are completed.
fn framed_all(packets: &[Vec<u8>], ends: &ConnectionEnds) -> Vec<Vec<u8>> {
    let read = packets.iter().filter_map(|packet| PeerPacket::arrived(packet).ok());
    read.map(|packet| framed(packet.bytes(), ends.local)).collect()
}

/// Readable when packets have arrived for connections that are to come.
impl AsFd for Holds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flows.as_fd()
    }
}
