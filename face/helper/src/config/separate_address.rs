//! An address that only the helper has, on the engine `xdp`.

use std::net::{IpAddr, Ipv4Addr};

use spillway_tcp::OwnAddress;

/// An address that only the helper has, in the network of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeparateAddress {
    /// The address.
    pub ip: Ipv4Addr,
    /// Bits of the network's prefix, at most 32.
    pub prefix: u8,
    /// The router to other networks.
    pub gateway: Option<Ipv4Addr>,
}

impl SeparateAddress {
    /// Whether `ip` is in the network of the interface.
    pub fn is_on_link(&self, ip: Ipv4Addr) -> bool {
        OwnAddress::new(self.ip, self.prefix).is_on_link(ip)
    }

    /// Whether packets to `ip` have a next hop.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => self.is_on_link(ip) || self.gateway.is_some(),
            IpAddr::V6(_) => false,
        }
    }
}

/// Reads an address with the bits of its network's prefix, such as `10.0.0.9/24`.
///
/// # Errors
/// The text is not an IPv4 address that a host may have, with a prefix of 1 to 32 bits.
pub fn parse_separate_address(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let error = || format!("{text}: give an IPv4 address and the bits of its network, such as 10.0.0.9/24");
    let (ip, prefix) = text.split_once('/').ok_or_else(error)?;
    let ip: Ipv4Addr = ip.parse().map_err(|_| error())?;
    let prefix: u8 = prefix.parse().ok().filter(|prefix| (1..=32).contains(prefix)).ok_or_else(error)?;
    let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    // Networks of two addresses or one have neither a network nor a broadcast address (RFC 3021).
    let is_network_or_broadcast = hosts > 1 && [0, hosts].contains(&(ip.to_bits() & hosts));
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_network_or_broadcast {
        return Err(format!(
            "{text}: no host can have this address; give another one of the interface's network"
        ));
    }
    Ok((ip, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separate_address_is_one_that_a_host_may_have() {
        assert_eq!(parse_separate_address("10.0.0.9/24"), Ok(([10, 0, 0, 9].into(), 24)));
        assert_eq!(parse_separate_address("10.0.0.8/31"), Ok(([10, 0, 0, 8].into(), 31)));
        for wrong in
            ["", "10.0.0.9", "10.0.0.9/0", "10.0.0.9/33", "10.0.0/24", "2001:db8::9/64", "10.0.0.9/x"]
        {
            let error = parse_separate_address(wrong).unwrap_err();
            assert!(error.contains("such as 10.0.0.9/24"), "{error}");
        }
        for wrong in ["10.0.0.0/24", "10.0.0.255/24", "127.0.0.1/8", "224.0.0.1/4", "0.0.0.0/32"] {
            assert!(parse_separate_address(wrong).unwrap_err().contains("no host can have"), "{wrong}");
        }
    }

    #[test]
    fn other_networks_are_reached_by_the_gateway() {
        let local = SeparateAddress { ip: [10, 0, 0, 9].into(), prefix: 24, gateway: None };
        let reaches = |separate: SeparateAddress, ip: &str| separate.reaches(ip.parse().unwrap());
        assert!(reaches(local, "10.0.0.200") && reaches(local, "::ffff:10.0.0.5"));
        assert!(!reaches(local, "10.0.1.1") && !reaches(local, "2001:db8::1"));
        let routed = SeparateAddress { gateway: Some([10, 0, 0, 1].into()), ..local };
        assert!(reaches(routed, "10.0.1.1") && !reaches(routed, "2001:db8::1"));
        assert!(reaches(SeparateAddress { prefix: 32, ..local }, "10.0.0.9"));
    }
}
