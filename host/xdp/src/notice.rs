//! What an operator should know of a running context.

use std::fmt;
use std::net::IpAddr;

use spillway_wire::packet::ethernet::Mac;

/// What an operator should know of a running context, with the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Packets arrive without checksums, and are dropped: their sender leaves checksums to hardware that a veth does not have.
    /// Given once.
    PartialChecksums {
        /// Their number so far.
        packets: u64,
    },
    /// The kernel has refused to defer interrupts, or to end the deferral. The thread does not try again.
    InterruptsNotDeferred {
        /// Why.
        error: String,
    },
    /// The interface no longer has an address at which a stack listens or from which it connects.
    AddressRemoved {
        /// The interface's name.
        interface: String,
        /// The address.
        address: IpAddr,
    },
    /// Another host also has the address that only the stack is to have.
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
    /// Whether something is wrong.
    pub fn is_problem(&self) -> bool {
        !matches!(self, Notice::AddressReturned { .. })
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
