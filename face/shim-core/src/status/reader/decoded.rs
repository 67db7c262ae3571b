//! What the words of a page mean: the status of a server, its links and its virtual connections.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use spillway_policy::Override;

use super::page_file::Slots;
use crate::status::layout::{self, Counter, State, Traffic, header};

/// A server's status according to its page.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Whether links are accepted.
    pub state: State,
    /// The operator's override of relief that is in effect.
    pub relief: Override,
    /// The override's remaining time; `None` without an end.
    pub relief_left: Option<Duration>,
    /// Time since the page was created, which is before the link port opens.
    pub age: Duration,
    /// The link port's address; `None` for all addresses.
    pub link_address: Option<IpAddr>,
    /// The link port's number.
    pub link_port: u16,
    /// The server's ordinary port.
    pub helped_port: u16,
    /// All counters, in the order of [`Counter::ALL`].
    pub counters: Vec<(Counter, u64)>,
    /// Traffic of all links together, including links that have ended, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
    /// The links that have not ended.
    pub links: Vec<LinkStatus>,
}

/// One link.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// Index of the link on this page.
    pub index: u32,
    /// Address of the helper or library client.
    pub peer: SocketAddr,
    /// `authenticating`, `helper` or `client`.
    pub state: &'static str,
    /// The id of the link's key.
    pub key: u64,
    /// Time since the link was accepted.
    pub age: Duration,
    /// Whether the link is encrypted; false before the peer has authenticated.
    pub encrypted: bool,
    /// Number of virtual connections on the link.
    pub connections: u64,
    /// Number of virtual connections on the link that carry sessions, which can move to other links; `None` if the
    /// server does not report it.
    pub sessions: Option<u64>,
    /// The link's traffic, in the order of [`Traffic::ALL`].
    pub traffic: Vec<(Traffic, u64)>,
}

/// One virtual connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The client's own address.
    pub client: SocketAddr,
    /// Index of the connection's link.
    pub link: u32,
    /// The connection's id on that link.
    pub id: u32,
    /// Time since the connection was opened.
    pub age: Duration,
    /// Bytes of requests received.
    pub bytes_received: u64,
    /// Bytes of replies sent.
    pub bytes_sent: u64,
}

impl ServerStatus {
    /// Decodes the header's words and the slots of links, at the time `now` in ns.
    pub(super) fn of(words: &[u64], links: Slots, now: u64) -> ServerStatus {
        let mut traffic = traffic_at(words, header::ENDED_TRAFFIC);
        let links: Vec<LinkStatus> =
            links.into_iter().filter_map(|(index, words)| LinkStatus::of(index, &words, now)).collect();
        for link in &links {
            // Saturating, because a forged page may contain any numbers.
            traffic
                .iter_mut()
                .zip(&link.traffic)
                .for_each(|(sum, more)| sum.1 = sum.1.saturating_add(more.1));
        }
        let address = [words[header::LINK_ADDRESS], words[header::LINK_ADDRESS + 1]];
        let link_address = (address != [0; 2]).then(|| {
            let v6 = Ipv6Addr::from_bits(u128::from(address[0]) << 64 | u128::from(address[1]));
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        });
        let until = words[header::RELIEF_UNTIL_NS];
        let relief_left = (until > 0).then(|| Duration::from_nanos(until.saturating_sub(now)));
        let on_page = layout::override_of(words[header::RELIEF]);
        let relief = if relief_left == Some(Duration::ZERO) { Override::Auto } else { on_page };
        ServerStatus {
            relief,
            relief_left: relief_left.filter(|_| relief != Override::Auto),
            state: State::of(words[header::STATE]),
            age: Duration::from_nanos(now.saturating_sub(words[header::BEGAN_NS])),
            link_address,
            link_port: words[header::LINK_PORT] as u16,
            helped_port: words[header::HELPED_PORT] as u16,
            counters: Counter::ALL
                .iter()
                .map(|counter| (*counter, words[header::COUNTERS + *counter as usize]))
                .collect(),
            traffic,
            links,
        }
    }
}

impl LinkStatus {
    /// `None`: the slot is free.
    fn of(index: u32, words: &[u64], now: u64) -> Option<LinkStatus> {
        let state = match words[layout::link::STATE] {
            1 => "authenticating",
            2 => "helper",
            3 => "client",
            _ => return None,
        };
        Some(LinkStatus {
            index,
            state,
            peer: address_at(words, layout::link::PEER)?,
            key: words[layout::link::KEY],
            age: Duration::from_nanos(now.saturating_sub(words[layout::link::SINCE_NS])),
            encrypted: words[layout::link::ENCRYPTED] == 1,
            connections: words[layout::link::CONNECTIONS],
            sessions: words[layout::link::SESSIONS].checked_sub(1),
            traffic: traffic_at(words, layout::link::TRAFFIC),
        })
    }
}

impl ConnectionStatus {
    /// `None`: the slot is free.
    pub(super) fn of(words: &[u64], now: u64) -> Option<ConnectionStatus> {
        let link = words[layout::connection::LINK];
        Some(ConnectionStatus {
            client: address_at(words, layout::connection::CLIENT)?,
            link: (link >> 32) as u32,
            id: link as u32,
            age: Duration::from_nanos(now.saturating_sub(words[layout::connection::SINCE_NS])),
            bytes_received: words[layout::connection::BYTES_RECEIVED],
            bytes_sent: words[layout::connection::BYTES_SENT],
        })
    }
}

fn traffic_at(words: &[u64], at: usize) -> Vec<(Traffic, u64)> {
    Traffic::ALL.iter().map(|kind| (*kind, words[at + *kind as usize])).collect()
}

fn address_at(words: &[u64], at: usize) -> Option<SocketAddr> {
    layout::address_of([words[at], words[at + 1], words[at + 2]])
}
