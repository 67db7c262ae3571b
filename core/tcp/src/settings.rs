//! What a stack is told when it is made.

use alloc::vec::Vec;
use core::fmt;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use spillway_wire::packet::ethernet::Mac;

use crate::isn::Key;
use crate::recovery;

/// Bytes of the IPv4 and TCP headers without options.
pub(crate) const HEADERS_BYTES: u16 = 40;
/// Every IPv4 host takes datagrams of so many bytes (RFC 791), and a smaller MTU leaves little room for options.
const MTU_MIN: u16 = 576;

/// An address and port at which peers may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// One of the stack's own addresses, and the port.
    pub address: SocketAddrV4,
    /// Whether bytes are acknowledged only as far as [`release`](spillway_transport::Transport::release) says (PostMan §4.2).
    pub is_gated: bool,
}

/// When a silent connection is asked whether it lives (RFC 9293 §3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Nothing was heard for so long.
    pub idle: Duration,
    /// Between two questions.
    pub interval: Duration,
    /// So many questions without an answer, and the connection is lost.
    pub probes: u32,
}

/// Everything that a stack is told. `Settings::new` has sensible values for all but the addresses.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The interface's.
    pub mac: Mac,
    /// The stack's own.
    pub address: Ipv4Addr,
    /// Addresses that share so many leading bits with ours are on the link. 0 to 32.
    pub prefix: u8,
    /// Where packets for all others go.
    pub gateway: Option<Ipv4Addr>,
    /// Bytes of the largest IP packet. 576 to 65,535; 1,500.
    pub mtu: u16,
    /// Routers that a packet may pass (RFC 9293 MUST-49). At least 1; 64.
    pub ttl: u8,
    /// The differentiated services that packets ask for (RFC 2474; RFC 9293 MUST-48). At most 63; 0.
    pub dscp: u8,
    /// Where peers may connect.
    pub listeners: Vec<Listener>,
    /// Connections at once, half-open ones included.
    pub connections_max: u32,
    /// Connections that were begun by a peer and are not established; more are answered with cookies (RFC 4987 §3.6).
    pub half_open_max: u32,
    /// Connections remembered after both ends have closed; the oldest are forgotten.
    pub time_wait_max: usize,
    /// Connections that came of a cookie in the last two minutes or so, for a cookie is good once: when there are more, no
    /// cookie is given or taken until some are older. 21 bytes each at most; 262,144.
    pub cookies_max: usize,
    /// Bytes of one connection that were taken and are not acknowledged.
    pub send_buffer_bytes: usize,
    /// The largest window that can be told: sets the window scale. 65,535 to 2^30.
    pub receive_window_max: u32,
    /// The window of a connection to which nothing was granted yet, so that its first bytes need not wait. At most 65,535.
    pub initial_window: u16,
    /// How far ahead of its next byte a connection keeps what comes out of order; what comes from beyond is refused, and comes
    /// again. 256 KB.
    pub reassembly_bytes_max: usize,
    /// The same of all connections together; what comes beyond is dropped, and comes again. 64 MB.
    pub reassembly_total_max: usize,
    /// Of hashes for initial sequence numbers, timestamps and cookies. Secret; helpers may share it.
    pub key: Key,
    /// What a clock that goes on over restarts, and is the same for all who share the key, shows at [`Time::ZERO`](spillway_transport::Time::ZERO): the time
    /// since 1970.
    pub clock_at_zero: Duration,
    /// Whether small segments wait for what is in flight (RFC 9293 §3.7.4). Batches have no use for it.
    pub is_nagle: bool,
    /// How long an acknowledgement may wait for company. At most 500 ms (RFC 9293 §3.8.6.3); 40 ms.
    pub delayed_ack: Duration,
    /// How long a closed connection is remembered: twice the maximum segment lifetime. 60 s, as Linux.
    pub time_wait: Duration,
    /// What is not acknowledged for so long breaks the connection. At least 100 s by RFC 9293 §3.8.3; 120 s.
    pub give_up_after: Duration,
    /// The same while it is being established. At least 180 s by RFC 9293 §3.8.3.
    pub give_up_opening_after: Duration,
    /// Nothing: connections may be silent for ever.
    pub keep_alive: Option<KeepAlive>,
    /// Whether expected segments take the short way. It makes no difference but in time: for tests that compare.
    pub is_predicting: bool,
    /// Of what was sent and is not acknowledged.
    pub recovery: recovery::Settings,
}

impl Settings {
    /// Of a stack on one link, with these addresses.
    pub fn new(mac: Mac, address: Ipv4Addr, prefix: u8, key: Key) -> Settings {
        Settings {
            mac,
            address,
            prefix,
            gateway: None,
            mtu: 1500,
            ttl: 64,
            dscp: 0,
            listeners: Vec::new(),
            connections_max: 65_536,
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
            give_up_after: Duration::from_secs(120),
            give_up_opening_after: Duration::from_secs(180),
            keep_alive: None,
            is_predicting: true,
            recovery: recovery::Settings::default(),
        }
    }

    /// What cannot be.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let ensure = |is_right, error| if is_right { Ok(()) } else { Err(error) };
        ensure(self.mtu >= MTU_MIN, SettingsError::Mtu(self.mtu))?;
        ensure(self.ttl > 0, SettingsError::Ttl)?;
        ensure(self.dscp < 64, SettingsError::Dscp(self.dscp))?;
        ensure(self.prefix <= 32, SettingsError::Prefix(self.prefix))?;
        ensure(self.mac.is_unicast(), SettingsError::Mac)?;
        ensure(is_host(self.address), SettingsError::Address(self.address))?;
        ensure(self.connections_max > 0 && self.half_open_max > 0, SettingsError::NoConnections)?;
        let window = self.receive_window_max;
        ensure((65_535..=1 << 30).contains(&window), SettingsError::Window(window))?;
        ensure(self.delayed_ack <= Duration::from_millis(500), SettingsError::DelayedAck(self.delayed_ack))?;
        let many = self.listeners.len();
        ensure(many <= usize::from(u16::MAX), SettingsError::Listeners(many))?;
        for listener in &self.listeners {
            let address = listener.address;
            ensure(*address.ip() == self.address && address.port() != 0, SettingsError::Listener(address))?;
        }
        Ok(())
    }

    /// The maximum segment size that we tell.
    pub(crate) fn mss(&self) -> u16 {
        self.mtu - HEADERS_BYTES
    }

    /// By how many bits our windows are shifted: as few as let the largest one be told (RFC 7323 §2.3).
    pub(crate) fn window_scale(&self) -> u8 {
        let shift = |scale: &u8| self.receive_window_max >> *scale <= u32::from(u16::MAX);
        (0..14).find(shift).unwrap_or(14)
    }

    /// Whether one host may have this address: the last of our own link is everybody's (RFC 1122 §3.2.1.3).
    pub(crate) fn is_peer(&self, address: Ipv4Addr) -> bool {
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
        let is_everybody = hosts > 1 && address.to_bits() == self.address.to_bits() | hosts;
        is_host(address) && address != self.address && !is_everybody
    }

    /// To whom a packet for this address is given.
    pub(crate) fn next_hop(&self, target: Ipv4Addr) -> Option<Ipv4Addr> {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        let is_near = (target.to_bits() ^ self.address.to_bits()) & mask == 0;
        if is_near { Some(target) } else { self.gateway }
    }
}

/// Whether a host may have this address (RFC 1122 §3.2.1.3).
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_broadcast() || address.is_loopback())
}

/// Why a stack is not made: the caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// Smaller than IPv4 allows.
    Mtu(u16),
    /// Packets that no router and no host takes.
    Ttl,
    /// More than six bits.
    Dscp(u8),
    /// More than 32 bits.
    Prefix(u8),
    /// Not one of a single interface.
    Mac,
    /// Not one of a host.
    Address(Ipv4Addr),
    /// Room for no connection.
    NoConnections,
    /// Not between 65,535 and 2^30.
    Window(u32),
    /// Longer than RFC 9293 allows.
    DelayedAck(Duration),
    /// More than 65,535.
    Listeners(usize),
    /// Not at the stack's own address, or without a port.
    Listener(SocketAddrV4),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Mtu(mtu) => write!(f, "an MTU of {mtu} bytes: IPv4 needs {MTU_MIN} at least"),
            SettingsError::Ttl => f.write_str("a time to live of 0: no packet would arrive"),
            SettingsError::Dscp(code) => write!(f, "a DSCP of {code}: it has six bits"),
            SettingsError::Prefix(bits) => write!(f, "a prefix of {bits} bits: an IPv4 address has 32"),
            SettingsError::Mac => f.write_str("the Ethernet address is not one interface's own"),
            SettingsError::Address(address) => write!(f, "{address} cannot be a host's own address"),
            SettingsError::NoConnections => f.write_str("room for no connection: allow one at least"),
            SettingsError::Window(bytes) => {
                write!(f, "a window of {bytes} bytes: it must be from 65,535 to 2^30")
            }
            SettingsError::DelayedAck(delay) => {
                write!(f, "acknowledgements delayed by {delay:?}: at most 500 ms (RFC 9293 §3.8.6.3)")
            }
            SettingsError::Listeners(many) => write!(f, "{many} listeners: at most 65,535"),
            SettingsError::Listener(address) => {
                write!(f, "a listener at {address}: it needs the stack's own address, and a port")
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
    fn the_scale_is_the_smallest_that_tells_the_window() {
        let scale = |window| Settings { receive_window_max: window, ..settings() }.window_scale();
        assert_eq!([scale(65_535), scale(65_536), scale(1 << 20), scale(1 << 30)], [0, 1, 5, 14]);
    }

    #[test]
    fn packets_for_far_hosts_go_to_the_gateway() {
        let mut settings = settings();
        let (near, far) = (Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 1, 9));
        assert_eq!((settings.next_hop(near), settings.next_hop(far)), (Some(near), None));
        settings.gateway = Some(near);
        assert_eq!(settings.next_hop(far), Some(near));
        settings.prefix = 0;
        assert_eq!(settings.next_hop(far), Some(far), "without a prefix everybody is near");
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(settings().check(), Ok(()));
        let wrong = Settings { mtu: 68, ..settings() };
        assert_eq!(wrong.check(), Err(SettingsError::Mtu(68)));
        let address = "10.0.0.2:80".parse().expect("an address");
        let listeners = alloc::vec![Listener { address, is_gated: false }];
        assert_eq!(Settings { listeners, ..settings() }.check(), Err(SettingsError::Listener(address)));
        let slow = Settings { delayed_ack: Duration::from_secs(1), ..settings() };
        assert!(slow.check().is_err());
    }
}
