//! The settings of the stack, and all constants that depend on the address family of the traces.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, OwnAddress, Resolver, Settings};

use super::frame::{self, PEER_IP, PEER_IP6, STACK_IP, STACK_IP6, STACK_MAC};
use super::{Seg, Trace};
use crate::IS_IPV6;

/// Ports of the listeners without and with a gate.
pub const UNGATED_PORT: u16 = 80;
pub const GATED_PORT: u16 = 81;
/// Port of the first peer.
pub const PEER_PORT: u16 = 4000;

/// The address of the stack, and that of its peers.
pub const STACK: IpAddr = if IS_IPV6 { IpAddr::V6(STACK_IP6) } else { IpAddr::V4(STACK_IP) };
pub const PEER: IpAddr = if IS_IPV6 { IpAddr::V6(PEER_IP6) } else { IpAddr::V4(PEER_IP) };

/// Offset of the TCP header in frames without IP options or extension headers.
pub const TCP_OFFSET: usize = if IS_IPV6 { frame::TCP_AT6 } else { frame::TCP_AT };
/// The segment size of a peer whose SYN has no MSS option.
pub const MSS_DEFAULT: u16 = if IS_IPV6 { 1220 } else { 536 };

/// The one of two addresses that is of the traces' family.
pub fn either(ipv4: &str, ipv6: &str) -> IpAddr {
    if IS_IPV6 { ipv6 } else { ipv4 }.parse().expect("an address")
}

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The stack's settings. Windows have at most 65,535 bytes, so that window fields count bytes without a
/// scale. Segments of both families have up to 1,460 bytes.
pub fn settings() -> Settings {
    let listener = |port, is_gated| Listener { address: SocketAddr::from((STACK, port)), is_gated };
    Settings {
        listeners: vec![listener(UNGATED_PORT, false), listener(GATED_PORT, true)],
        receive_window_max: 65_535,
        mtu: if IS_IPV6 { 1520 } else { 1500 },
        resolver: if IS_IPV6 { Resolver::Driver } else { Resolver::Arp },
        ..Settings::new(STACK_MAC, STACK, if IS_IPV6 { 64 } else { 24 }, Key([7; 16]))
    }
}

/// Adds an IPv6 address with the same two ports, as listeners 2 and 3. [`Trace::transmit`] resolves next hops.
pub fn add_ipv6(settings: &mut Settings) {
    settings.resolver = Resolver::Driver;
    settings.addresses.push(OwnAddress::new(STACK_IP6, 64));
    let listener = |port, is_gated| Listener { address: SocketAddr::from((STACK_IP6, port)), is_gated };
    settings.listeners.extend([listener(UNGATED_PORT, false), listener(GATED_PORT, true)]);
}

impl Trace {
    /// A stack that listens at addresses of both families, and one peer with an IPv6 address.
    pub fn new_ipv6(change: impl FnOnce(&mut Settings)) -> Trace {
        let mut t = Trace::new(|settings| {
            add_ipv6(settings);
            change(settings);
        });
        t.peers[0].ip = PEER_IP6.into();
        t
    }

    /// [`open_with`](Self::open_with) over IPv6.
    pub fn open_ipv6(syn: Seg) -> Trace {
        let mut t = Trace::new_ipv6(|_| {});
        t.establish(syn);
        t.grant(65_535);
        t
    }
}
