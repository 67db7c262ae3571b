//! The steering decision in Rust, written independently of the program.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_bpf::{AddressRule, Endpoint, Flow, Protocol, Verdict};

/// As in `c/parse.h`.
const EXTENSIONS_MAX: usize = 8;
/// As in `c/parse.h`.
const VLAN_TAGS_MAX: usize = 3;

/// The contents of the program's maps, without sockets.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub addresses: Vec<(IpAddr, AddressRule)>,
    pub endpoints: Vec<Endpoint>,
    pub flows: Vec<Flow>,
}

enum Parsed {
    Ports {
        protocol: Protocol,
        local: SocketAddr,
        peer: SocketAddr,
        is_fragment: bool,
    },
    /// Neither TCP nor UDP over IP, or an ARP packet with this target.
    NoPorts {
        local: IpAddr,
        is_fragment: bool,
    },
    LaterFragment {
        local: IpAddr,
    },
    LongChain {
        local: IpAddr,
    },
    /// Neither IP nor ARP.
    Other,
}

impl Model {
    /// The verdict on a frame whose queue has a socket.
    pub fn decide(&self, frame: &[u8]) -> Verdict {
        let rule_of = |ip| self.addresses.iter().find(|(address, _)| *address == ip).map(|(_, rule)| rule);
        let is_separate = |ip| rule_of(ip).is_some_and(|rule| rule.is_separate);
        let (verdict, is_fragment) = match parse(frame) {
            None => return Verdict::PassShort,
            Some(Parsed::Other) => return Verdict::PassOther,
            Some(Parsed::LaterFragment { local }) if is_separate(local) => return Verdict::DropFragment,
            Some(Parsed::LaterFragment { .. }) => return Verdict::PassLaterFragment,
            Some(Parsed::LongChain { local }) if rule_of(local).is_some() => return Verdict::DropLongChain,
            Some(Parsed::LongChain { .. }) => return Verdict::PassForeign,
            Some(Parsed::NoPorts { local, .. }) if !is_separate(local) => return Verdict::PassOther,
            Some(Parsed::NoPorts { is_fragment, .. }) => (Verdict::ToAddress, is_fragment),
            Some(Parsed::Ports { protocol, local, peer, is_fragment }) => {
                let rule = rule_of(local.ip());
                let ports = rule.and_then(|rule| rule.ports.as_ref()).filter(|_| protocol == Protocol::Tcp);
                let verdict = if ports.is_some_and(|ports| ports.contains(&local.port())) {
                    Verdict::ToRange
                } else if self.endpoints.contains(&Endpoint { protocol, address: local }) {
                    Verdict::ToEndpoint
                } else if self.flows.contains(&Flow { protocol, local, peer }) {
                    Verdict::ToFlow
                } else if is_separate(local.ip()) {
                    Verdict::ToAddress
                } else {
                    return Verdict::PassForeign;
                };
                (verdict, is_fragment)
            }
        };
        if is_fragment { Verdict::DropFragment } else { verdict }
    }
}

/// Parses a frame; `None` if its headers are cut or invalid.
fn parse(frame: &[u8]) -> Option<Parsed> {
    let mut rest = frame.get(12..)?;
    let (mut kind, after) = (u16_at(rest, 0)?, rest.get(2..)?);
    rest = after;
    for _ in 0..VLAN_TAGS_MAX {
        // 802.1Q and 802.1ad.
        if !matches!(kind, 0x8100 | 0x88a8) {
            break;
        }
        kind = u16_at(rest, 2)?;
        rest = rest.get(4..)?;
    }
    match kind {
        0x0800 => parse_ipv4(rest),
        0x86dd => parse_ipv6(rest),
        0x0806 => parse_arp(rest),
        _ => Some(Parsed::Other),
    }
}

fn parse_arp(packet: &[u8]) -> Option<Parsed> {
    let packet: &[u8; 28] = packet.first_chunk()?;
    if !matches!(packet[..6], [0, 1 | 6, 0x08, 0, 6, 4]) {
        return Some(Parsed::Other);
    }
    let local = Ipv4Addr::new(packet[24], packet[25], packet[26], packet[27]).into();
    Some(Parsed::NoPorts { local, is_fragment: false })
}

fn parse_ipv4(packet: &[u8]) -> Option<Parsed> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let (version, words) = (header[0] >> 4, usize::from(header[0] & 15));
    if version != 4 || words < 5 {
        return None;
    }
    let address =
        |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    let fragment = u16_at(header, 6)?;
    if fragment & 0x1fff != 0 {
        return Some(Parsed::LaterFragment { local: address(16) });
    }
    parse_ports(header[9], packet.get(words * 4..), address(16), address(12), fragment & 0x2000 != 0)
}

fn parse_ipv6(packet: &[u8]) -> Option<Parsed> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap()));
    let (peer, local) = (address(8), address(24));
    let (mut next, mut at, mut is_fragment) = (header[6], 40, false);
    let end = 40 + usize::from(u16_at(header, 4)?);
    for _ in 0..EXTENSIONS_MAX {
        match next {
            0 | 6 | 17 | 43 | 44 | 60 if is_fragment && at + 8 > end => {
                return Some(Parsed::LongChain { local });
            }
            44 => {
                let extension = packet.get(at..at + 8)?;
                if u16_at(extension, 2)? & 0xfff8 != 0 {
                    return Some(Parsed::LaterFragment { local });
                }
                (next, at, is_fragment) = (extension[0], at + 8, true);
            }
            0 | 43 | 60 => {
                let extension = packet.get(at..at + 2)?;
                (next, at) = (extension[0], at + (usize::from(extension[1]) + 1) * 8);
            }
            protocol => return parse_ports(protocol, packet.get(at..), local, peer, is_fragment),
        }
    }
    Some(Parsed::LongChain { local })
}

fn parse_ports(
    protocol: u8,
    segment: Option<&[u8]>,
    local: IpAddr,
    peer: IpAddr,
    is_fragment: bool,
) -> Option<Parsed> {
    let protocol = match protocol {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        _ => return Some(Parsed::NoPorts { local, is_fragment }),
    };
    let (source, destination) = (u16_at(segment?, 0)?, u16_at(segment?, 2)?);
    let local = SocketAddr::new(local, destination);
    Some(Parsed::Ports { protocol, local, peer: SocketAddr::new(peer, source), is_fragment })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}
