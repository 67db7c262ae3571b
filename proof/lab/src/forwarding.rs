//! What joins the hosts of a laboratory.

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
}
