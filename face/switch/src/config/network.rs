//! Address ranges in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// An address range. IPv4 and IPv6 ranges are different, also where IPv4 is mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

impl Network {
    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && masked(address, self.length) == self.address
    }

    /// Whether an address is in both ranges: one of them then contains the other.
    pub fn overlaps(&self, other: &Network) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{text}: give an address range such as 10.0.0.0/8 or 2001:db8::/32"))?;
        let length_max = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(length_max), |digits| digits.parse().ok());
        let length = length.filter(|length| *length <= length_max).ok_or_else(|| {
            format!("{text}: the number after the slash must be 0 to {length_max} for this address")
        })?;
        if masked(address, length) != address {
            let network = masked(address, length);
            return Err(format!("{text}: address bits are set after the prefix; give {network}/{length}"));
        }
        Ok(Network { address, length })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_contain_addresses_of_their_family() {
        assert!(network("10.0.0.0/8").contains("10.255.0.1".parse().unwrap()));
        assert!(!network("10.0.0.0/8").contains("11.0.0.1".parse().unwrap()));
        assert!(!network("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert!(network("::/0").contains("2001:db8::1".parse().unwrap()));
        assert_eq!(network("10.0.0.1").to_string(), "10.0.0.1/32");
    }

    #[test]
    fn one_of_two_overlapping_ranges_contains_the_other() {
        for (one, other, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.1.0.0/16", "10.0.0.0/8", true),
            ("10.0.0.0/8", "10.0.0.0/8", true),
            ("10.0.0.0/9", "10.128.0.0/9", false),
            ("0.0.0.0/0", "::/0", false),
        ] {
            assert_eq!(network(one).overlaps(&network(other)), expected, "{one} {other}");
        }
    }

    #[test]
    fn wrong_ranges_are_refused_with_the_next_step() {
        for (text, expected) in [
            ("ten", "such as 10.0.0.0/8"),
            ("10.0.0.0/33", "0 to 32"),
            ("::/129", "0 to 128"),
            ("10.0.0.0/x", "0 to 32"),
            ("10.0.0.1/8", "give 10.0.0.0/8"),
        ] {
            assert!(text.parse::<Network>().unwrap_err().contains(expected), "{text}");
        }
    }
}
