//! Which settings are valid, and the errors of those that are not.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::address::is_host;
use super::values::{Listener, Resolver, Settings};

/// Every IPv4 host accepts datagrams of 576 bytes (RFC 791); a smaller MTU leaves little room for options.
const MTU_MIN: u16 = 576;
/// The smallest MTU of a link with IPv6 (RFC 8200 §5).
pub(crate) const IPV6_MTU_MIN: u16 = 1280;

impl Settings {
    /// Returns an error for the first invalid setting.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let ensure = |is_valid, error| if is_valid { Ok(()) } else { Err(error) };
        ensure(self.mtu >= MTU_MIN, SettingsError::Mtu(self.mtu))?;
        ensure(self.ttl > 0, SettingsError::Ttl)?;
        ensure(self.dscp < 64, SettingsError::Dscp(self.dscp))?;
        ensure(self.mac.is_unicast(), SettingsError::Mac)?;
        for own in &self.addresses {
            ensure(own.is_prefix_valid(), SettingsError::Prefix(own.prefix))?;
            ensure(is_host(own.ip), SettingsError::Address(own.ip))?;
            self.check_family(own.ip)?;
        }
        let family_count = |is_ipv4| self.addresses.iter().filter(|own| own.ip.is_ipv4() == is_ipv4).count();
        let is_clear = !self.addresses.is_empty() && family_count(true) <= 1 && family_count(false) <= 1;
        ensure(is_clear, SettingsError::Addresses)?;
        ensure(!self.ports.is_empty() && *self.ports.start() > 0, SettingsError::Ports)?;
        ensure(self.connections_max > 0 && self.half_open_max > 0, SettingsError::NoConnections)?;
        let (reserve, places) = (self.connect_reserve, self.connections_max);
        ensure(reserve < places, SettingsError::ConnectReserve { reserve, places })?;
        let window = self.receive_window_max;
        ensure((65_535..=1 << 30).contains(&window), SettingsError::Window(window))?;
        ensure(self.delayed_ack <= Duration::from_millis(500), SettingsError::DelayedAck(self.delayed_ack))?;
        let listeners = self.listeners.len();
        ensure(listeners <= usize::from(u16::MAX), SettingsError::Listeners(listeners))?;
        self.listeners.iter().try_for_each(|listener| listener.check(self))?;
        Ok(())
    }

    /// Whether the settings permit local addresses of the family of `ip`.
    pub(crate) fn check_family(&self, ip: IpAddr) -> Result<(), SettingsError> {
        if ip.is_ipv4() {
            Ok(())
        } else if self.resolver != Resolver::Driver {
            Err(SettingsError::Neighbours(ip))
        } else if self.mtu < IPV6_MTU_MIN {
            Err(SettingsError::Ipv6Mtu(self.mtu))
        } else {
            Ok(())
        }
    }
}

impl Listener {
    /// Whether peers can connect to this address.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), SettingsError> {
        let ip = self.address.ip().to_canonical();
        let is_usable = is_host(ip) && self.address.port() != 0;
        if is_usable { settings.check_family(ip) } else { Err(SettingsError::Listener(self.address)) }
    }
}

/// Why a stack cannot be created: an invalid setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// The MTU is below the minimum of IPv4.
    Mtu(u16),
    /// The time to live is 0.
    Ttl,
    /// The DSCP has more than six bits.
    Dscp(u8),
    /// The prefix has more bits than the address.
    Prefix(u8),
    /// There is no address, or there are several of one family.
    Addresses,
    /// An IPv6 address needs [`Resolver::Driver`].
    Neighbours(IpAddr),
    /// The MTU is below the minimum of IPv6.
    Ipv6Mtu(u16),
    /// The Ethernet address is not unicast.
    Mac,
    /// The address cannot be a host's.
    Address(IpAddr),
    /// A limit on connections is 0.
    NoConnections,
    /// All places are reserved for connections that the stack opens.
    ConnectReserve {
        /// Reserved places.
        reserve: u32,
        /// All places.
        places: u32,
    },
    /// The window is not between 65,535 and 2^30.
    Window(u32),
    /// Acknowledgements are delayed for longer than RFC 9293 allows.
    DelayedAck(Duration),
    /// There are more than 65,535 listeners.
    Listeners(usize),
    /// The range of local ports is empty or contains 0.
    Ports,
    /// The listener's address is not one of a host, or it has no port.
    Listener(SocketAddr),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Mtu(mtu) => write!(f, "an MTU of {mtu} bytes: IPv4 needs at least {MTU_MIN}"),
            SettingsError::Ttl => f.write_str("a time to live of 0: packets need at least 1"),
            SettingsError::Dscp(code) => write!(f, "a DSCP of {code}: it has six bits"),
            SettingsError::Prefix(bits) => {
                write!(f, "a prefix of {bits} bits: an IPv4 address has 32, an IPv6 address 128")
            }
            SettingsError::Addresses => {
                f.write_str("the stack needs an IPv4 address, an IPv6 address, or one of each")
            }
            SettingsError::Neighbours(address) => write!(
                f,
                "{address}: the stack has no neighbour discovery of its own; share the address with the kernel \
                 (Resolver::Driver)"
            ),
            SettingsError::Ipv6Mtu(mtu) => {
                write!(f, "an MTU of {mtu} bytes: IPv6 needs at least {IPV6_MTU_MIN} (RFC 8200 §5)")
            }
            SettingsError::Mac => {
                f.write_str("the Ethernet address is not unicast: give the interface's own")
            }
            SettingsError::Address(address) => write!(f, "{address} cannot be a host's own address"),
            SettingsError::NoConnections => f.write_str("a limit of 0 connections: allow at least one"),
            SettingsError::ConnectReserve { reserve, places } => write!(
                f,
                "{reserve} of {places} connections are reserved for those that the stack opens: leave at least one for peers"
            ),
            SettingsError::Window(bytes) => {
                write!(f, "a window of {bytes} bytes: it must be from 65,535 to 2^30")
            }
            SettingsError::DelayedAck(delay) => {
                write!(f, "acknowledgements delayed by {delay:?}: at most 500 ms (RFC 9293 §3.8.6.3)")
            }
            SettingsError::Ports => f.write_str(
                "the range of local ports is empty or contains 0: give one that begins at 1 or above",
            ),
            SettingsError::Listeners(count) => write!(f, "{count} listeners: at most 65,535"),
            SettingsError::Listener(address) => {
                write!(f, "a listener at {address}: it needs the address of a host, and a port")
            }
        }
    }
}

impl core::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use core::ops::RangeInclusive;

    use super::*;
    use crate::settings::address::OwnAddress;
    use crate::settings::test_settings::{both, ip, settings};

    #[test]
    fn an_invalid_setting_is_reported() {
        assert_eq!(settings().check(), Ok(()));
        let wrong = Settings { mtu: 68, ..settings() };
        assert_eq!(wrong.check(), Err(SettingsError::Mtu(68)));
        let address = "224.0.0.2:80".parse().unwrap();
        let listeners = alloc::vec![Listener { address, is_gated: false }];
        assert_eq!(Settings { listeners, ..settings() }.check(), Err(SettingsError::Listener(address)));
        let slow = Settings { delayed_ack: Duration::from_secs(1), ..settings() };
        assert!(slow.check().is_err(), "the invalid setting should be reported");
        for ports in [0..=9, RangeInclusive::new(9, 8)] {
            assert_eq!(Settings { ports, ..settings() }.check(), Err(SettingsError::Ports));
        }
        let mut long = settings();
        long.addresses[0].prefix = 33;
        assert_eq!(long.check(), Err(SettingsError::Prefix(33)));
    }

    #[test]
    fn addresses_of_ipv6_need_the_drivers_neighbours_and_an_mtu_of_1280() {
        assert_eq!(both().check(), Ok(()));
        let ipv6 = ip("fd00::1");
        let no_neighbours = Settings { resolver: Resolver::Arp, ..both() };
        assert_eq!(no_neighbours.check(), Err(SettingsError::Neighbours(ipv6)));
        assert_eq!(Settings { mtu: 1279, ..both() }.check(), Err(SettingsError::Ipv6Mtu(1279)));
        assert_eq!(Settings { mtu: 1280, ..both() }.check(), Ok(()));

        let address = "[fd00::9]:80".parse().unwrap();
        let listeners = alloc::vec![Listener { address, is_gated: false }];
        let listening = Settings { listeners, ..settings() };
        assert_eq!(listening.check(), Err(SettingsError::Neighbours(address.ip())));
        assert_eq!(Settings { resolver: Resolver::Driver, ..listening }.check(), Ok(()));

        let mut two = both();
        two.addresses.push(OwnAddress::new(ip("fd00::2"), 64));
        assert_eq!(two.check(), Err(SettingsError::Addresses));
        two.addresses.clear();
        assert_eq!(two.check(), Err(SettingsError::Addresses));
        for wrong in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            let mut settings = both();
            settings.addresses[1] = OwnAddress { ip: ip(wrong), prefix: 64 };
            assert_eq!(settings.check(), Err(SettingsError::Address(ip(wrong))));
        }
    }
}
