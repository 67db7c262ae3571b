//! The configuration of a stack.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use spillway_wire::packet::ethernet::Mac;

use crate::flow::Flow;
use crate::isn::Key;
use crate::recovery;

/// Every IPv4 host accepts datagrams of 576 bytes (RFC 791); a smaller MTU leaves little room for options.
const MTU_MIN: u16 = 576;
/// The smallest MTU of a link with IPv6 (RFC 8200 §5).
pub(crate) const IPV6_MTU_MIN: u16 = 1280;

/// An address of the stack on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of the link's prefix in bits: addresses that share the prefix of `ip` are on the link. At most 32 for
    /// IPv4, and 128 for IPv6.
    pub prefix: u8,
}

impl OwnAddress {
    /// An address with its link's prefix. An IPv4 address that is mapped into IPv6 becomes an IPv4 address.
    pub fn new(ip: impl Into<IpAddr>, prefix: u8) -> OwnAddress {
        let ip = ip.into();
        let is_mapped = ip.is_ipv6() && ip.to_canonical().is_ipv4();
        let prefix = if is_mapped { prefix.saturating_sub(96) } else { prefix };
        OwnAddress { ip: ip.to_canonical(), prefix }
    }

    /// Whether a single other host may have `address`: not this end, nor the link's broadcast address (RFC 1122 §3.2.1.3).
    pub fn is_peer(&self, address: IpAddr) -> bool {
        let is_broadcast = match (address, self.ip) {
            (IpAddr::V4(address), IpAddr::V4(ip)) => {
                let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                hosts > 1 && address.to_bits() == ip.to_bits() | hosts
            }
            _ => false, // IPv6 has no broadcast addresses
        };
        is_host(address) && address != self.ip && !is_broadcast
    }

    /// Whether an IPv4 address is on the link.
    pub fn is_on_link(&self, address: Ipv4Addr) -> bool {
        let IpAddr::V4(ip) = self.ip else { return false };
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        (address.to_bits() ^ ip.to_bits()) & mask == 0
    }

    fn is_prefix_valid(&self) -> bool {
        self.prefix <= if self.ip.is_ipv4() { 32 } else { 128 }
    }
}

/// An address and port at which peers may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The stack's own address, and the port. An IPv4 address that is mapped into IPv6 counts as an IPv4 address.
    pub address: SocketAddr,
    /// Whether acknowledgements wait for [`release`](spillway_transport::Transport::release) (PostMan §4.2).
    pub is_gated: bool,
}

impl Listener {
    /// Whether peers can connect to this address.
    pub(crate) fn check(&self, settings: &Settings) -> Result<(), SettingsError> {
        let ip = self.address.ip().to_canonical();
        let is_usable = is_host(ip) && self.address.port() != 0;
        if is_usable { settings.check_family(ip) } else { Err(SettingsError::Listener(self.address)) }
    }
}

/// Keep-alive probes of silent connections (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is lost.
    pub probes: u32,
}

/// How the Ethernet addresses of next hops are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolver {
    /// Only the stack uses its addresses. It finds next hops by ARP, the prefix of its address, and its own `gateway`.
    /// Only for IPv4: the stack has no neighbour discovery (RFC 4861).
    #[default]
    Arp,
    /// The stack shares its addresses with a kernel, which resolves neighbours and has the routes. The driver queries
    /// the kernel: see [`Stack::poll_next_hop_request`](crate::Stack::poll_next_hop_request).
    Driver,
}

/// The configuration of a stack. `Settings::new` sets defaults for all but its arguments.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ethernet address of the interface.
    pub mac: Mac,
    /// The stack's addresses: one IPv4 address, one IPv6 address, or both. A connection that the stack opens uses the
    /// address of the peer's family. Listeners may have other addresses. IPv6 needs [`Resolver::Driver`].
    pub addresses: Vec<OwnAddress>,
    /// Next hop for addresses that are not on the link; `None`: such addresses are unreachable. Not used with
    /// [`Resolver::Driver`].
    pub gateway: Option<Ipv4Addr>,
    /// How the Ethernet addresses of next hops are found. Default: by ARP.
    pub resolver: Resolver,
    /// Local ports of connections that this end opens, except the ports of listeners. Default 32,768 to 60,999, as in
    /// Linux; the dynamic ports of RFC 6335 §6 begin at 49,152.
    pub ports: RangeInclusive<u16>,
    /// Bytes of the largest IP packet. 576 to 65,535, with IPv6 at least 1,280 (RFC 8200 §5); default 1,500.
    pub mtu: u16,
    /// Time to live of IPv4 packets, and hop limit of IPv6 packets (RFC 9293 MUST-49). At least 1; default 64.
    pub ttl: u8,
    /// Differentiated services code point of packets (RFC 2474; RFC 9293 MUST-48). At most 63; default 0.
    pub dscp: u8,
    /// The first listeners; [`Stack::set_listener`](crate::Stack::set_listener) changes them later.
    pub listeners: Vec<Listener>,
    /// Maximum number of connections, half-open ones included.
    pub connections_max: u32,
    /// Those places of `connections_max` that only connections opened by this end may take, so that peers cannot prevent
    /// this end from connecting. Less than `connections_max`; default 0.
    pub connect_reserve: u32,
    /// Maximum number of connections that peers have opened and that are not established yet. In addition, they take at
    /// most half of the places that other connections leave. Beyond that, SYNs are answered with cookies (RFC 4987
    /// §3.6). If half-open connections must not reduce the number of established ones, `connections_max` needs
    /// `half_open_max` more places.
    pub half_open_max: u32,
    /// Maximum number of connections in TIME-WAIT; at the limit a new one replaces the oldest.
    pub time_wait_max: usize,
    /// Maximum number of used cookies that are remembered, for about two minutes each, because a cookie is valid only
    /// once. A peer's address may use a tenth of them, and less when few are free; beyond that, the peer is sent no cookie,
    /// and none is accepted from it, until older ones expire. A cookie takes at most 21 bytes of memory. Default
    /// 262,144.
    pub cookies_max: usize,
    /// Send buffer of a connection: bytes taken from the application and not acknowledged.
    pub send_buffer_bytes: usize,
    /// The largest window that can be advertised; it determines the window scale. 65,535 to 2^30.
    pub receive_window_max: u32,
    /// The window before the application's first grant, so that a peer's first bytes need not wait. At most 65,535.
    pub initial_window: u16,
    /// Distance from RCV.NXT within which a connection keeps out-of-order bytes. Bytes beyond it are dropped, and the
    /// peer retransmits them. Default 256 KiB.
    pub reassembly_bytes_max: usize,
    /// Maximum of out-of-order bytes in all connections together. Bytes beyond it are dropped, and the peers retransmit
    /// them. Default 64 MiB.
    pub reassembly_total_max: usize,
    /// Secret key of all hashes, for example for initial sequence numbers, timestamps and cookies. Helpers may share
    /// it.
    pub key: Key,
    /// The time since 1970 at [`Time::ZERO`](spillway_transport::Time::ZERO), by a clock that survives restarts and is
    /// the same for all helpers that share the key.
    pub clock_at_zero: Duration,
    /// Nagle's algorithm: whether small segments wait while data is in flight (RFC 9293 §3.7.4). Off by default,
    /// because batches are large.
    pub is_nagle: bool,
    /// Maximum delay of an acknowledgement. At most 500 ms (RFC 9293 §3.8.6.3); default 40 ms.
    pub delayed_ack: Duration,
    /// Duration of TIME-WAIT: twice the maximum segment lifetime. Default 60 s, as in Linux.
    pub time_wait: Duration,
    /// Time without progress that ends a connection. RFC 9293 §3.8.3 recommends at least 100 s; default 120 s.
    pub user_timeout: Duration,
    /// The same for connections that this end opens; `None`: `user_timeout`, which is the default.
    pub opened_user_timeout: Option<Duration>,
    /// Time after which a connection that this end opens is given up. RFC 9293 §3.8.3 demands at least 180 s for a SYN
    /// (MUST-23), which is the default.
    pub give_up_opening_after: Duration,
    /// Time after which a half-open connection is given up. Default 63 s, as in Linux: five retransmissions of the
    /// SYN-ACK. The 180 s of RFC 9293 §3.8.3 concern the end that repeats its SYN, and each repetition begins a new
    /// half-open connection here. Forged SYNs keep their places for this time.
    pub give_up_accepting_after: Duration,
    /// Keep-alive probes; `None`: silent connections are not probed.
    pub keep_alive: Option<KeepAlive>,
    /// Whether expected segments take the fast path. The fast path only saves time; tests compare both paths.
    pub has_header_prediction: bool,
    /// Loss recovery and congestion control.
    pub recovery: recovery::Settings,
}

impl Settings {
    /// Defaults for a stack on one link, with one address. One of the other family may be added to `addresses`.
    pub fn new(mac: Mac, address: impl Into<IpAddr>, prefix: u8, key: Key) -> Settings {
        Settings {
            mac,
            addresses: alloc::vec![OwnAddress::new(address, prefix)],
            gateway: None,
            resolver: Resolver::Arp,
            ports: 32_768..=60_999,
            mtu: 1500,
            ttl: 64,
            dscp: 0,
            listeners: Vec::new(),
            connections_max: 65_536,
            connect_reserve: 0,
            half_open_max: 1024,
            time_wait_max: 16_384,
            cookies_max: 262_144,
            send_buffer_bytes: 256 * 1024,
            receive_window_max: 1 << 20,
            initial_window: u16::MAX,
            reassembly_bytes_max: 256 * 1024,
            reassembly_total_max: 64 << 20,
            key,
            clock_at_zero: Duration::ZERO,
            is_nagle: false,
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            user_timeout: Duration::from_secs(120),
            opened_user_timeout: None,
            give_up_opening_after: Duration::from_secs(180),
            give_up_accepting_after: Duration::from_secs(63),
            keep_alive: None,
            has_header_prediction: true,
            recovery: recovery::Settings::default(),
        }
    }

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

/// Whether a host may have this address (RFC 1122 §3.2.1.3, RFC 4291 §2.5). IPv4 addresses that are mapped into IPv6
/// never appear in packets.
pub(crate) fn is_host(address: IpAddr) -> bool {
    let is_never_a_host = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    let is_special = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
    };
    !is_never_a_host && !is_special
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
    use super::*;

    fn settings() -> Settings {
        Settings::new(Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1), 24, Key([7; 16]))
    }

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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Settings with an address of each family.
    fn both() -> Settings {
        let mut settings = Settings { resolver: Resolver::Driver, ..settings() };
        settings.addresses.push(OwnAddress::new(ip("fd00::1"), 64));
        settings
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
        let mapped = OwnAddress::new(ip("::ffff:10.0.0.1"), 120);
        assert_eq!(mapped, OwnAddress { ip: ip("10.0.0.1"), prefix: 24 });
    }

    #[test]
    fn the_segment_size_is_what_the_headers_of_the_family_leave() {
        let flow =
            |local: &str, peer: &str| Flow::new(local.parse().unwrap(), peer.parse().unwrap()).unwrap();
        assert_eq!(both().mss(&flow("10.0.0.1:1", "10.0.0.2:1")), 1460);
        assert_eq!(both().mss(&flow("[fd00::1]:1", "[fd00::2]:1")), 1440);
    }

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
