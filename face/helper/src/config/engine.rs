//! The transport of a helper's connections.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use spillway_tcp::OwnAddress;

/// Transport of a helper's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Kernel sockets.
    #[default]
    Sockets,
    /// Spillway's TCP stack on AF_XDP, beside the kernel.
    Xdp,
    /// [`Xdp`](Self::Xdp) if the host and the settings allow it, otherwise [`Sockets`](Self::Sockets).
    Auto,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 3] = [Engine::Sockets, Engine::Xdp, Engine::Auto];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "sockets",
            Engine::Xdp => "xdp",
            Engine::Auto => "auto",
        }
    }
}

/// Maximum of [`XdpConfig::defer_interrupts`], for which a received packet may wait.
pub const DEFER_INTERRUPTS_MAX: Duration = Duration::from_millis(1);

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

/// Settings of the engine `xdp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The helper's own address, which the kernel does not have. `None`: the helper and the kernel share the
    /// interface's addresses.
    pub separate: Option<SeparateAddress>,
    /// Local ports of connections to servers. The kernel must not use them at a shared address.
    pub ports: RangeInclusive<u16>,
    /// Frames of 2 KiB for each receive queue: a power of two from 64 to 65,536.
    pub frames: u32,
    /// Time for which a thread polls for frames after the last one, before it sleeps; zero: no polling.
    pub busy_poll: Duration,
    /// Interval at which the kernel polls the interface while a thread is loaded; zero: interrupts only.
    pub defer_interrupts: Duration,
    /// Whether the helper sets the interface's offloads and queues as the engine needs them.
    pub configure_interface: bool,
}

impl Default for XdpConfig {
    /// The ports are those above Linux's default `ip_local_port_range`, 32768 to 60999.
    fn default() -> XdpConfig {
        XdpConfig {
            separate: None,
            ports: 61_000..=65_535,
            frames: 4096,
            busy_poll: Duration::ZERO,
            defer_interrupts: Duration::ZERO,
            configure_interface: false,
        }
    }
}

/// Reads a range of ports, `FIRST-LAST`.
///
/// # Errors
/// The text is not a range of ports above 0, or the range is empty.
pub fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |part: &str| part.trim().parse::<u16>().ok().filter(|port| *port > 0);
    text.split_once('-')
        .and_then(|(first, last)| Some(number(first)?..=number(last)?))
        .filter(|ports| !ports.is_empty())
        .ok_or_else(|| format!("{text}: give a range of ports, such as 61000-65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_has_two_ends_in_order() {
        assert_eq!(parse_ports("61000-65535"), Ok(61_000..=65_535));
        assert_eq!(parse_ports(" 7 - 7 "), Ok(7..=7));
        for wrong in ["", "7", "-", "0-7", "8-7", "7-70000", "7-8-9", "a-b"] {
            assert!(parse_ports(wrong).unwrap_err().contains("61000-65535"), "{wrong}");
        }
    }

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
