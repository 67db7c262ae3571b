//! Notices of a running context for the operator.

use std::fmt;
use std::net::IpAddr;

use spillway_wire::packet::ethernet::Mac;

use crate::interface::{Interface, InterfaceState};

/// An event of a running context that the operator should see. The text of a problem names the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The interface is down.
    InterfaceDown {
        /// The interface's name.
        interface: String,
    },
    /// The interface is up again.
    InterfaceUp {
        /// The interface's name.
        interface: String,
    },
    /// Packets arrive with partial checksums and are dropped: their sender leaves checksums to hardware, and
    /// a veth has none. Reported once.
    PartialChecksums {
        /// Number of these packets so far.
        packets: u64,
    },
    /// The kernel has refused to defer interrupts, or to end the deferral. The thread does not try again.
    InterruptsNotDeferred {
        /// The kernel's error.
        error: String,
    },
    /// The interface no longer has an address at which a stack listens or from which it connects.
    AddressRemoved {
        /// The interface's name.
        interface: String,
        /// The address.
        address: IpAddr,
    },
    /// Another host also has the stack's separate address.
    AddressConflict {
        /// The address.
        address: IpAddr,
        /// The other host's Ethernet address.
        mac: Mac,
    },
    /// The interface has an address again.
    AddressReturned {
        /// The interface's name.
        interface: String,
        /// The address.
        address: IpAddr,
    },
}

impl Notice {
    /// An interface has come into this state.
    pub fn of_state(interface: &Interface, state: InterfaceState) -> Notice {
        let interface = interface.name.clone();
        match state {
            InterfaceState::Up => Notice::InterfaceUp { interface },
            InterfaceState::Down => Notice::InterfaceDown { interface },
        }
    }

    /// Whether something is wrong.
    pub fn is_problem(&self) -> bool {
        !matches!(self, Notice::AddressReturned { .. } | Notice::InterfaceUp { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::InterfaceDown { interface } => write!(
                f,
                "interface {interface} is down: no packet arrives or leaves, and connections wait; set it up again (`ip link \
                 set {interface} up`), with its routes and IPv6 addresses"
            ),
            Notice::InterfaceUp { interface } => {
                write!(f, "interface {interface} is up again: connections go on")
            }
            Notice::PartialChecksums { packets } => write!(
                f,
                "{packets} packets had no checksums and were dropped, as all others from there will be: their sender is the \
                 other end of a veth, which must compute checksums; run `ethtool -K INTERFACE tx off tso off` there"
            ),
            Notice::InterruptsNotDeferred { error } => write!(
                f,
                "the deferral of interrupts (defer_interrupts) stays as it is, whatever the load: the kernel refused a change \
                 ({error}); restart to try again"
            ),
            Notice::AddressRemoved { interface, address } => write!(
                f,
                "interface {interface} does not have the address {address} any more: no packet arrives there; add the address \
                 again (`ip addr add {address}/BITS dev {interface}`), and connections go on, or restart with another one"
            ),
            Notice::AddressConflict { address, mac } => write!(
                f,
                "the host with the Ethernet address {mac} also has the address {address}: clients reach one of the two; give \
                 this helper another address in [helper.xdp], or remove it there"
            ),
            Notice::AddressReturned { interface, address } => {
                write!(f, "interface {interface} has the address {address} again")
            }
        }
    }
}
