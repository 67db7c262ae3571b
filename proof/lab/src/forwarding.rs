//! How frames are forwarded between the hosts of a laboratory, and what depends on the choice.

use crate::ipv6;

/// Name of the bridge's namespace and group.
pub(crate) const BRIDGE: &str = "bridge";
/// Name of the first switch's namespace, and of the group of all switches.
pub(crate) const SWITCH: &str = "switch";

/// How frames are forwarded between the hosts of a lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// The kernel's bridge.
    #[default]
    Bridge,
    /// An XDP program; broadcasts pass through the bridge. Hosts must compute the checksums of sent packets
    /// themselves ([`HostOptions::tx_checksums`](crate::HostOptions::tx_checksums) off), and their cables
    /// cannot [drop packets](crate::Host::drop_packets).
    Xdp,
    /// Spillway's switch, or several in a row: the XDP program that [`LabSwitch::load`] attaches, or a daemon that
    /// [`LabSwitch::spawn`] starts. Without one of them no frame is forwarded. There is no bridge. As with `Xdp`, hosts
    /// compute checksums themselves, and cables cannot drop packets. Hosts have IPv6 addresses, too.
    Switch,
    /// The kernel's bridge between hosts that may run XDP programs on their own interfaces, such as the switch in host mode:
    /// one Ethernet segment. As with `Xdp`, hosts compute checksums themselves, and cables cannot drop packets. Hosts have
    /// IPv6 addresses, too.
    Segment,
}

impl Forwarding {
    /// The name of the group with the CPU time of bridge or switches.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Forwarding::Bridge | Forwarding::Xdp | Forwarding::Segment => BRIDGE,
            Forwarding::Switch => SWITCH,
        }
    }

    /// The IPv6 settings of all namespaces of the lab.
    pub(crate) fn ipv6(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Forwarding::Bridge | Forwarding::Xdp => &ipv6::OFF,
            Forwarding::Switch | Forwarding::Segment => &ipv6::QUIET,
        }
    }

    /// Whether hosts have IPv6 addresses.
    pub(crate) fn has_ipv6(self) -> bool {
        matches!(self, Forwarding::Switch | Forwarding::Segment)
    }

    /// Whether XDP programs see the packets of hosts.
    pub(crate) fn is_xdp(self) -> bool {
        self != Forwarding::Bridge
    }
}

/// How the far end of a host's cable is set up, as arguments and lines of `ip`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FarEnd {
    /// Properties of the new interface.
    pub properties: String,
    /// Commands before the interface is up.
    pub before_up: String,
    /// Commands after the interface is up.
    pub after_up: String,
}

impl FarEnd {
    /// The far end is a port of the bridge.
    pub fn of_bridge(interface: &str) -> FarEnd {
        FarEnd { before_up: format!("link set {interface} master br0\n"), ..FarEnd::default() }
    }
}
