//! The states of the ports, and the removal of links whose interface has left the network namespace.

use std::mem;

use libbpf_rs::MapFlags;
use spillway_rules::PortId;

use super::{PortError, Ports};
use crate::BpfError;
use crate::attach::Mode;
use crate::switch::attachment::Attachment;
use crate::switch::layout::port_key as key;

/// The state of a port with a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The program is attached, and the tables lead to and from the interface.
    Attached {
        /// The index of the interface.
        interface: u32,
        /// Where the program runs.
        mode: Mode,
    },
    /// The program is attached, and frames to the interface are dropped, because the tables do not lead there. The kernel
    /// removes an interface from them that goes to another network namespace, also if it comes back.
    Closed {
        /// The index of the interface.
        interface: u32,
    },
    /// The XDP program is attached, and the tc program at the egress is not: another program has removed the filter. Only in host
    /// mode.
    WithoutEgress {
        /// The index of the interface.
        interface: u32,
    },
    /// The interface is in another network namespace.
    Elsewhere,
    /// The interface was removed, or another process has detached the program.
    Detached,
    /// The system cannot say where the program is attached.
    Unknown {
        /// The system's error.
        why: String,
    },
}

impl PortState {
    /// The index of the interface to which the program is attached.
    pub fn interface(&self) -> Option<u32> {
        match self {
            PortState::Attached { interface, .. }
            | PortState::Closed { interface }
            | PortState::WithoutEgress { interface } => Some(*interface),
            PortState::Elsewhere | PortState::Detached | PortState::Unknown { .. } => None,
        }
    }
}

impl Ports {
    /// The states of the ports with links.
    pub(in crate::switch) fn states(&self) -> Vec<(PortId, PortState)> {
        let state =
            |port| self.state(port).unwrap_or_else(|error| PortState::Unknown { why: error.to_string() });
        self.links.keys().map(|port| (*port, state(*port))).collect()
    }

    fn state(&self, port: PortId) -> Result<PortState, BpfError> {
        Ok(match self.attachment(port)? {
            Attachment::Here { index, .. } if !self.is_open(port, index)? => {
                PortState::Closed { interface: index }
            }
            Attachment::Here { index, .. } if !self.has_filter(index) => {
                PortState::WithoutEgress { interface: index }
            }
            Attachment::Here { index, mode } => PortState::Attached { interface: index, mode },
            Attachment::Elsewhere => PortState::Elsewhere,
            Attachment::Nowhere => PortState::Detached,
        })
    }

    /// Whether the maps lead to and from a port's interface.
    fn is_open(&self, port: PortId, index: u32) -> Result<bool, BpfError> {
        let arrives = self.interfaces.value(&index.to_ne_bytes(), MapFlags::ANY)?;
        Ok(self.leads_to(port)? == Some(index) && arrives.as_deref() == Some(&key(port)))
    }

    /// Whether the interface has the filter at its egress; true also if the switch needs none.
    fn has_filter(&self, interface: u32) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.is_attached(interface))
    }

    /// Removes the links without an interface in this network namespace: the program is detached from interfaces that are
    /// elsewhere, and the maps forget their indexes, which another interface may get. A link that cannot be read or removed
    /// stays.
    ///
    /// Returns the ports that have lost their links since the last call, also by another method, with the links' states.
    pub(in crate::switch) fn release_lost(&mut self) -> Vec<(PortId, PortState)> {
        for (port, state) in self.states() {
            // Otherwise the next call tries again.
            let _ = self.release(port, state);
        }
        mem::take(&mut self.lost).into_iter().collect()
    }

    /// Removes the link of a port, if it has no interface in this network namespace.
    pub(super) fn release(&mut self, port: PortId, state: PortState) -> Result<(), PortError> {
        if matches!(state, PortState::Elsewhere | PortState::Detached) {
            self.forget(port)?;
            self.unlink(port)?;
            self.lost.insert(port, state);
        }
        Ok(())
    }
}
