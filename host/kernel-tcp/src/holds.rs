//! Packets of connections that are to come: they are held until the connection is here.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use spillway_bpf::{Budget, HeldFlows, Hold, Mode, Release};
use spillway_capture::{InjectError, Injector};
use spillway_moves::ConnectionEnds;
use spillway_wire::handoff::Reason;

use crate::error::OpenError;
use crate::faults::{Fault, Faults};
use crate::frames::framed;

/// Maximum number of connections that are to come, and of those whose packets are still being released.
const FLOWS_MAX: u32 = 1024;
/// What may wait for a connection: the window of a client that sends a large request, in small segments, too.
const BUDGET: Budget = Budget { frames_max: 256, bytes_max: 192 * 1024 };
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
}

impl Holds {
    /// Loads the program, and attaches it to the interface on which clients' packets arrive.
    pub(crate) fn open(interface: &str) -> Result<Holds, OpenError> {
        let mut flows = HeldFlows::load(FLOWS_MAX, RING_BYTES).map_err(OpenError::Program)?;
        let mode = flows.attach(interface).map_err(OpenError::Interface)?;
        Ok(Holds { flows, mode, holds: BTreeMap::new(), draining: BTreeSet::new() })
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Holds a connection's packets. A connection whose packets are held already may be announced again.
    pub(crate) fn hold(&mut self, ends: ConnectionEnds, faults: &mut Faults) -> Result<(), Reason> {
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

    /// The connection does not come: returns the frames that were held.
    pub(crate) fn forget(&mut self, ends: ConnectionEnds, faults: &mut Faults) -> Vec<Vec<u8>> {
        let Some(hold) = self.holds.remove(&ends) else { return Vec::new() };
        match self.flows.forget(hold) {
            Ok(packets) => packets.iter().map(|packet| framed(packet, ends.local)).collect(),
            Err(error) => {
                faults.add(Fault::NotHeld(error));
                Vec::new()
            }
        }
    }
}

/// Readable when packets have arrived for connections that are to come.
impl AsFd for Holds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.flows.as_fd()
    }
}
