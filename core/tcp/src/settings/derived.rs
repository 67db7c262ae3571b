//! What follows from the settings for one flow or one target: own address, segment size, window scale, next hop.

use core::net::{IpAddr, Ipv4Addr};

use super::address::{OwnAddress, is_host};
use super::values::{Resolver, Settings};
use crate::flow::Flow;

impl Settings {
    /// The stack's own address of the same family as `target`.
    pub(crate) fn own_address(&self, target: IpAddr) -> Option<IpAddr> {
        self.own_for(target).map(|own| own.ip)
    }

    fn own_for(&self, target: IpAddr) -> Option<&OwnAddress> {
        self.addresses.iter().find(|own| own.ip.is_ipv4() == target.is_ipv4())
    }

    pub(crate) fn own_ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|own| match own.ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        })
    }

    /// The maximum segment size that the SYN of a flow advertises, whatever options segments have (RFC 6691 §2).
    pub(crate) fn mss(&self, flow: &Flow) -> u16 {
        self.mtu - flow.headers_bytes()
    }

    /// The window scale that SYNs advertise: the smallest with which the largest window fits its field (RFC 7323 §2.3).
    pub(crate) fn window_scale(&self) -> u8 {
        let shift = |scale: &u8| self.receive_window_max >> *scale <= u32::from(u16::MAX);
        (0..14).find(shift).unwrap_or(14)
    }

    /// Whether a single other host may have this address: not the link's broadcast address (RFC 1122 §3.2.1.3).
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.own_for(address).map_or_else(|| is_host(address), |own| own.is_peer(address))
    }

    /// The next hop of packets to `target`.
    pub(crate) fn next_hop(&self, target: IpAddr) -> Option<IpAddr> {
        if self.resolver == Resolver::Driver {
            return Some(target); // the driver knows the route
        }
        let IpAddr::V4(address) = target else { return None }; // no neighbour discovery
        let is_on_link = self.own_for(target)?.is_on_link(address);
        if is_on_link { Some(target) } else { self.gateway.map(IpAddr::V4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::test_settings::{both, ip, settings};

    #[test]
    fn the_scale_is_the_smallest_that_can_express_the_window() {
        let scale = |window| Settings { receive_window_max: window, ..settings() }.window_scale();
        assert_eq!([scale(65_535), scale(65_536), scale(1 << 20), scale(1 << 30)], [0, 1, 5, 14]);
    }

    #[test]
    fn packets_for_hosts_beyond_the_link_go_to_the_gateway() {
        let mut settings = settings();
        let (near, far) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 1, 9).into());
        assert_eq!((settings.next_hop(near.into()), settings.next_hop(far)), (Some(near.into()), None));
        settings.gateway = Some(near);
        assert_eq!(settings.next_hop(far), Some(near.into()));
        settings.addresses[0].prefix = 0;
        assert_eq!(
            settings.next_hop(far),
            Some(far),
            "with a prefix of 0 bits all hosts should be on the link"
        );
        assert_eq!(
            settings.next_hop(ip("fd00::9")),
            None,
            "an IPv6 address should be unreachable, because the stack has no neighbour discovery"
        );
        settings.resolver = Resolver::Driver;
        assert_eq!(settings.next_hop(ip("fd00::9")), Some(ip("fd00::9")));
    }

    #[test]
    fn only_single_other_hosts_are_peers() {
        let settings = both();
        for peer in ["10.0.0.2", "192.0.2.1", "fd00::2", "fe80::1", "2001:db8::1"] {
            assert!(settings.is_peer(ip(peer)), "{peer} should be a peer");
        }
        for other in ["10.0.0.1", "10.0.0.255", "224.0.0.1", "0.0.0.0", "127.0.0.1", "255.255.255.255"] {
            assert!(!settings.is_peer(ip(other)), "{other} should not be a peer");
        }
        for other in ["fd00::1", "::", "::1", "ff02::1", "::ffff:10.0.0.2"] {
            assert!(!settings.is_peer(ip(other)), "{other} should not be a peer");
        }
    }

    #[test]
    fn the_own_address_has_the_family_of_the_target() {
        assert_eq!(both().own_address(ip("192.0.2.1")), Some(ip("10.0.0.1")));
        assert_eq!(both().own_address(ip("2001:db8::1")), Some(ip("fd00::1")));
        assert_eq!(settings().own_address(ip("2001:db8::1")), None);
    }

    #[test]
    fn the_segment_size_is_what_the_headers_of_the_family_leave() {
        let flow =
            |local: &str, peer: &str| Flow::new(local.parse().unwrap(), peer.parse().unwrap()).unwrap();
        assert_eq!(both().mss(&flow("10.0.0.1:1", "10.0.0.2:1")), 1460);
        assert_eq!(both().mss(&flow("[fd00::1]:1", "[fd00::2]:1")), 1440);
    }
}
