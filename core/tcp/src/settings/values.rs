//! The settings of a stack, and their defaults.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::time::Duration;

use spillway_wire::packet::ethernet::Mac;

use super::address::OwnAddress;
use crate::isn::Key;
use crate::recovery;

/// An address and port at which peers may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The stack's own address, and the port. An IPv4 address that is mapped into IPv6 counts as an IPv4 address.
    pub address: SocketAddr,
    /// Whether acknowledgements wait for [`release`](spillway_transport::Transport::release) (PostMan §4.2).
    pub is_gated: bool,
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
    /// A local address and port whose segments arrive from another station than the next hop to their peer, as from a switch on
    /// another host's interface: the next hop is resolved, and not taken from the peer's segments. Default: none.
    pub one_way_at: Option<SocketAddr>,
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
    /// Secret key of all hashes, for example for initial sequence numbers, timestamps and cookies. Helpers may have
    /// the same key.
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
            one_way_at: None,
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
}
