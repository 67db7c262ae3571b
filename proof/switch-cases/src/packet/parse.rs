//! Packets in case files: a body, then changes, separated by commas.
//!
//! Bodies:
//!
//! | body | meaning |
//! |---|---|
//! | `tcp alice:40000 > web syn ack fin rst psh seq 7 acknowledges 9 data 100 options 3` | TCP; the flags in any order |
//! | `udp alice:40000 > 10.0.0.1:53 data 8` | UDP |
//! | `icmp alice > A` | an echo request; `icmp6` for ICMPv6 |
//! | `error 3 gateway > A quotes 28 tcp web > alice:40000 ack` | an ICMP error of type 3, which quotes 28 bytes of the packet |
//! | `protocol 47 alice > A data 8` | another IP protocol |
//! | `arp request alice for 10.0.0.1`, `arp reply A to alice` | ARP; `arp reply B as 10.0.0.1 to alice` with another sender's address |
//! | `solicit alice for 2001:db8::1` | IPv6 neighbour solicitation |
//! | `discover 136 B > alice about 2001:db8::1` | a message of neighbour discovery, here an advertisement |
//! | `raw 0x88cc data 46` | neither IP nor ARP |
//! | `own A flow alice:40000 web generation g3` | a control message of a server (see `message/parse.rs`) |
//!
//! Changes, also of the packets that leave:
//!
//! | change | meaning |
//! |---|---|
//! | `eth from alice to A` | MACs; either may be missing |
//! | `from web`, `to web-b` | addresses and ports |
//! | `about web-b` | destination of an error, and source of the packet that it quotes |
//! | `quoted ttl 3` | a change of the quoted packet |
//! | `vlan 5`, `vlan 5 7`, `service-vlan 5 7` | tags, from outside; 802.1ad for the first of `service-vlan`; `vlan none` |
//! | `tunnel A > X`, `tunnel none` | an outer IP header from and to the addresses of these servers, or none |
//! | `ttl 1` | TTL or hop limit |
//! | `class 185` | DSCP and ECN |
//! | `options 2` | words of IPv4 options |
//! | `extensions hop routing destination long fragment` | IPv6 extension headers; `long` are 24 bytes of destination options, `fragment` is a first fragment's |
//! | `fragment first`, `later`, `atomic`, `permitted` | see [`Fragment`] |
//! | `checksum 5`, `ip-checksum 5`, `checksum none` | makes a checksum wrong; `none` for UDP |
//! | `length -1` | makes the length of UDP wrong |
//! | `message load 5` | fields of the control message |
//! | `cut 30`, `pad 4`, `byte 14 0x55` | changes of the bytes |
//!
//! MACs that are not stated are those of the hosts with the packet's addresses. Without such a host the destination is
//! the MAC of the ingress port: the packet is routed.

use std::net::{IpAddr, SocketAddr};

use super::{
    Arp, Body, Content, Edit, Fragment, IcmpError, Ip, Packet, Payload, SERVICE_VLAN, Tcp, VLAN, tcp_flags,
};
use crate::error::TextError;
use crate::mac::Mac;
use crate::message::{KINDS, Message};
use crate::setup::Setup;
use crate::text::{Line, Word};

const PREPARE: u8 = 1;
const HOLD: u8 = 3;
/// Lifetime of *prepare* and *hold* without the field `lifetime`.
const DEFAULT_LIFETIME_MS: u32 = 500;

const FLAGS: [(&str, u8); 5] = [
    ("syn", tcp_flags::SYN),
    ("ack", tcp_flags::ACK),
    ("fin", tcp_flags::FIN),
    ("rst", tcp_flags::RST),
    ("psh", tcp_flags::PSH),
];

/// What the text of a packet depends on.
pub(crate) struct PacketContext<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) ingress: u8,
    /// Gives the next sequence number of a sender.
    pub(crate) next_sequence: &'a mut dyn FnMut(u8) -> u64,
}

impl Packet {
    /// Reads a packet up to `->` or the end.
    pub(crate) fn read(context: &mut PacketContext<'_>, line: &mut Line<'_>) -> Result<Packet, TextError> {
        let mut packet = read_body(context, line)?;
        packet.read_changes(context.setup, line)?;
        Ok(packet)
    }

    /// Reads changes, each after a comma.
    pub(crate) fn read_changes(&mut self, setup: &Setup, line: &mut Line<'_>) -> Result<(), TextError> {
        while line.accept(",") {
            self.read_change(setup, line)?;
        }
        Ok(())
    }

    fn read_change(&mut self, setup: &Setup, line: &mut Line<'_>) -> Result<(), TextError> {
        let change = line.word("a change")?;
        match change.text {
            "eth" => {
                if line.accept("from") {
                    self.source = setup.read_mac(line)?;
                }
                if line.accept("to") {
                    self.destination = setup.read_mac(line)?;
                }
            }
            "from" | "to" => {
                let is_v6 = matches!(&self.body, Body::Ip(ip) if ip.source.is_ipv6());
                let at = setup.read_endpoint(line, is_v6)?;
                self.set_end(at, change.text == "from")
                    .ok_or_else(|| change.error("the packet has no ports"))?;
            }
            "vlan" | "service-vlan" => {
                self.vlan_tags.clear();
                let mut kind = if change.text == "vlan" { VLAN } else { SERVICE_VLAN };
                while let Some(control) = line.accept_parsed() {
                    self.vlan_tags.push((kind, control));
                    kind = VLAN;
                }
                line.accept("none");
            }
            "tunnel" => self.tunnel = read_tunnel(setup, line)?,
            "about" => {
                let is_v6 = matches!(&self.body, Body::Ip(ip) if ip.source.is_ipv6());
                let at = setup.read_endpoint(line, is_v6)?;
                self.set_subject(at)
                    .ok_or_else(|| change.error("the packet is not an ICMP error about TCP"))?;
            }
            "quoted" => {
                let word = line.word("a change")?;
                let quoted = self.ip_mut().and_then(Ip::quoted_mut);
                let quoted = quoted.ok_or_else(|| change.error("the packet is not an ICMP error"))?;
                quoted.read_change(word, line)?;
            }
            "message" => {
                let message =
                    self.message_mut().ok_or_else(|| change.error("the packet has no control message"))?;
                message.read_fields(setup, line)?;
            }
            "cut" => self.edits.push(Edit::Cut(line.number("a length")?)),
            "pad" => self.edits.push(Edit::Pad(line.number("a length")?)),
            "byte" => self.edits.push(Edit::Byte(line.number("an offset")?, line.number("a byte")?)),
            _ => {
                let ip = self.ip_mut().ok_or_else(|| {
                    change.error(format!("unknown change `{}` of a packet without IP", change.text))
                })?;
                ip.read_change(change, line)?;
            }
        }
        Ok(())
    }

    /// Addresses an error to the sender of the packet that it quotes.
    fn set_subject(&mut self, at: SocketAddr) -> Option<()> {
        let ip = self.ip_mut()?;
        ip.destination = at.ip();
        let quoted = ip.quoted_mut()?;
        let Payload::Tcp(tcp) = &mut quoted.payload else { return None };
        (quoted.source, tcp.source) = (at.ip(), at.port());
        Some(())
    }

    fn set_end(&mut self, at: SocketAddr, is_source: bool) -> Option<()> {
        let ip = self.ip_mut()?;
        let (address, port) = match (&mut ip.payload, is_source) {
            (Payload::Tcp(tcp), true) => (&mut ip.source, &mut tcp.source),
            (Payload::Tcp(tcp), false) => (&mut ip.destination, &mut tcp.destination),
            (Payload::Udp(udp), true) => (&mut ip.source, &mut udp.source),
            (Payload::Udp(udp), false) => (&mut ip.destination, &mut udp.destination),
            _ => return None,
        };
        (*address, *port) = (at.ip(), at.port());
        Some(())
    }
}

impl Ip {
    /// The packet that an ICMP error quotes.
    pub(crate) fn quoted_mut(&mut self) -> Option<&mut Ip> {
        if let Payload::Error(error) = &mut self.payload { Some(&mut *error.quoted) } else { None }
    }

    fn read_change(&mut self, change: Word<'_>, line: &mut Line<'_>) -> Result<(), TextError> {
        match (change.text, &mut self.payload) {
            ("ttl", _) => self.hop_limit = line.number("a number up to 255")?,
            ("class", _) => self.class = line.number("a number up to 255")?,
            ("options", _) => self.option_words = line.number("a number of words")?,
            ("extensions", _) => {
                self.extensions.clear();
                while let Some(extension) = line.peek().and_then(extension) {
                    line.word("a header")?;
                    self.extensions.push(extension);
                }
            }
            ("fragment", _) => {
                let word = line.word("first, later, atomic or permitted")?;
                self.fragment = match word.text {
                    "first" => Fragment::First,
                    "later" => Fragment::Later,
                    "atomic" => Fragment::Atomic,
                    "permitted" => Fragment::Permitted,
                    _ => return Err(word.error("expected first, later, atomic or permitted")),
                };
            }
            ("ip-checksum", _) => self.checksum_error = line.number("a number")?,
            ("checksum", Payload::Tcp(tcp)) => tcp.checksum_error = line.number("a number")?,
            ("checksum", Payload::Error(error)) => error.checksum_error = line.number("a number")?,
            ("checksum", Payload::Udp(udp)) => {
                udp.checksum_error = if line.accept("none") { None } else { Some(line.number("a number")?) };
            }
            ("length", Payload::Udp(udp)) => udp.length_error = line.parse("a number")?,
            (other, _) => return Err(change.error(format!("unknown change `{other}` of this packet"))),
        }
        Ok(())
    }
}

/// Reads the ends of a tunnel: servers or addresses.
fn read_tunnel(setup: &Setup, line: &mut Line<'_>) -> Result<Option<(IpAddr, IpAddr)>, TextError> {
    if line.accept("none") {
        return Ok(None);
    }
    let end = |word: Word<'_>| {
        let server = setup.servers.get(word.text).map(|server| server.address);
        let address = server.or_else(|| word.text.parse().ok());
        address.ok_or_else(|| word.error(format!("`{}` is not a server or an address", word.text)))
    };
    let source = end(line.word("a server")?)?;
    line.expect(">")?;
    Ok(Some((source, end(line.word("a server")?)?)))
}

fn extension(name: &str) -> Option<(u8, u8)> {
    Some(match name {
        "hop" => (0, 0),
        "routing" => (43, 0),
        "destination" => (60, 0),
        "long" => (60, 2),
        "fragment" => (44, 0),
        _ => return None,
    })
}

fn read_body(context: &mut PacketContext<'_>, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let setup = context.setup;
    let word = line.word("a packet")?;
    let mut packet = match word.text {
        "tcp" => {
            let (source, destination) = read_ends(setup, line)?;
            let mut packet = Packet::tcp(source, destination, 0);
            if let Some(Ip { payload: Payload::Tcp(tcp), .. }) = packet.ip_mut() {
                read_tcp(tcp, line)?;
            }
            packet
        }
        "udp" => {
            let (source, destination) = read_ends(setup, line)?;
            Packet::udp(source, destination, Content::Bytes(read_data(line)?))
        }
        "icmp" | "icmp6" => {
            let is_v6 = word.text == "icmp6";
            let (source, destination) = read_hosts(setup, line, is_v6)?;
            let kind = if is_v6 { 128 } else { 8 };
            Packet::ip(source, destination, Payload::Icmp(kind, vec![0, 1, 0, 1]))
        }
        "error" => read_error(setup, line)?,
        "discover" => read_discovery(setup, line)?,
        "protocol" => {
            let protocol = line.number("a protocol number")?;
            let (source, destination) = read_hosts(setup, line, false)?;
            Packet::ip(source, destination, Payload::Other(protocol, read_data(line)?))
        }
        "arp" => return read_arp(setup, line),
        "solicit" => return read_solicitation(setup, line),
        "raw" => {
            let kind = line.number("an Ethernet type")?;
            let body = Body::Other(kind, read_data(line)?);
            return Ok(Packet {
                source: Mac::default(),
                destination: Mac::default(),
                vlan_tags: Vec::new(),
                tunnel: None,
                body,
                edits: Vec::new(),
            });
        }
        name => match KINDS.iter().find(|(kind, _)| *kind == name) {
            Some((_, kind)) => return read_message(context, *kind, line),
            None => {
                return Err(word.error(format!(
                    "unknown packet `{name}`: expected tcp, udp, icmp, icmp6, error, protocol, arp, solicit, discover, \
                     raw or the kind of a control message"
                )));
            }
        },
    };
    packet.set_macs(setup, context.ingress);
    Ok(packet)
}

/// Reads an ICMP error after its first word.
fn read_error(setup: &Setup, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let kind = line.number("a type")?;
    let source = line.word("a host or an address")?;
    line.expect(">")?;
    let destination = line.word("a host or an address")?;
    line.expect("quotes")?;
    let bytes = line.number("a number of bytes")?;
    line.expect("tcp")?;
    let (from, to) = read_ends(setup, line)?;
    let mut quoted = Packet::tcp(from, to, 0);
    let Body::Ip(mut quoted) = std::mem::replace(&mut quoted.body, Body::Other(0, Vec::new())) else {
        return Err(source.error("the quoted packet is not IP"));
    };
    if let Payload::Tcp(tcp) = &mut quoted.payload {
        read_tcp(tcp, line)?;
    }
    let is_v6 = from.is_ipv6();
    let (source, destination) = (read_host(setup, source, is_v6)?, read_host(setup, destination, is_v6)?);
    let error = IcmpError { kind, quoted: Box::new(quoted), bytes, checksum_error: 0 };
    Ok(Packet::ip(source, destination, Payload::Error(error)))
}

/// Reads a message of neighbour discovery after its first word.
fn read_discovery(setup: &Setup, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let kind = line.number("a type")?;
    let (source, destination) = read_hosts(setup, line, true)?;
    line.expect("about")?;
    let about = line.parse::<std::net::Ipv6Addr>("an IPv6 address")?;
    // The option with the sender's Ethernet address is not read by the switch.
    let content = [&[0; 4], &about.octets()[..], &[2, 1, 2, 0, 0, 0, 0, 9]].concat();
    let mut packet = Packet::ip(source, destination, Payload::Icmp(kind, content));
    if let Some(ip) = packet.ip_mut() {
        ip.hop_limit = 255;
    }
    Ok(packet)
}

fn read_ends(setup: &Setup, line: &mut Line<'_>) -> Result<(SocketAddr, SocketAddr), TextError> {
    let first = line.word("an address and port")?;
    line.expect(">")?;
    let second = line.word("an address and port")?;
    // Hosts may have two addresses: if either end has IPv6 only, the other end's IPv6 address is meant.
    let is_v6 =
        [first, second].iter().any(|word| setup.endpoint(word.text, false).is_some_and(|at| at.is_ipv6()));
    let end = |word: Word<'_>| {
        setup.endpoint(word.text, is_v6).filter(|at| at.is_ipv6() == is_v6).ok_or_else(|| {
            word.error(format!("`{}` is not an address and port of the other end's family", word.text))
        })
    };
    Ok((end(first)?, end(second)?))
}

fn read_hosts(setup: &Setup, line: &mut Line<'_>, is_v6: bool) -> Result<(IpAddr, IpAddr), TextError> {
    let source = line.word("a host or an address")?;
    line.expect(">")?;
    let destination = line.word("a host or an address")?;
    Ok((read_host(setup, source, is_v6)?, read_host(setup, destination, is_v6)?))
}

fn read_host(setup: &Setup, word: Word<'_>, is_v6: bool) -> Result<IpAddr, TextError> {
    let address = setup.host_address(word.text, is_v6).or_else(|| word.text.parse().ok());
    address.ok_or_else(|| word.error(format!("`{}` is not a host or an address", word.text)))
}

fn read_tcp(tcp: &mut Tcp, line: &mut Line<'_>) -> Result<(), TextError> {
    while let Some((_, flag)) = FLAGS.iter().find(|(name, _)| line.peek() == Some(*name)) {
        line.word("a flag")?;
        tcp.flags |= flag;
    }
    while let Some(text) = line.peek().filter(|text| !matches!(*text, "," | "->")) {
        match text {
            "data" => tcp.data = read_data(line)?,
            "seq" | "acknowledges" | "options" => {
                line.word("a field")?;
                match text {
                    "seq" => tcp.sequence = line.number("a sequence number")?,
                    "options" => tcp.option_words = line.number("a number of words")?,
                    _ => tcp.acknowledgement = line.number("a sequence number")?,
                }
            }
            other => return Err(line.error(format!("unknown field `{other}` of TCP"))),
        }
    }
    Ok(())
}

/// Reads `data N`, if it is there: N bytes that differ.
fn read_data(line: &mut Line<'_>) -> Result<Vec<u8>, TextError> {
    if !line.accept("data") {
        return Ok(Vec::new());
    }
    let length = line.number::<u16>("a length")?;
    Ok((0..length).map(|index| index.wrapping_mul(7).to_le_bytes()[0]).collect())
}

fn read_arp(setup: &Setup, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let word = line.word("request or reply")?;
    let is_request = match word.text {
        "request" => true,
        "reply" => false,
        _ => return Err(word.error("expected request or reply")),
    };
    let sender = read_arp_host(setup, line)?;
    let target = if is_request {
        line.expect("for")?;
        (Mac::default(), line.parse::<std::net::Ipv4Addr>("an IPv4 address")?.octets())
    } else {
        line.expect("to")?;
        read_arp_host(setup, line)?
    };
    Ok(Packet {
        source: sender.0,
        destination: if is_request { Mac::BROADCAST } else { target.0 },
        vlan_tags: Vec::new(),
        tunnel: None,
        body: Body::Arp(Arp { operation: if is_request { 1 } else { 2 }, sender, target }),
        edits: Vec::new(),
    })
}

fn read_arp_host(setup: &Setup, line: &mut Line<'_>) -> Result<(Mac, [u8; 4]), TextError> {
    let word = line.word("a host")?;
    let address = if line.accept("as") { line.accept_parsed() } else { setup.host_address(word.text, false) };
    match (setup.mac(word.text), address) {
        (Some(mac), Some(IpAddr::V4(address))) => Ok((mac, address.octets())),
        _ => Err(word.error(format!("`{}` is not a host with an IPv4 address", word.text))),
    }
}

fn read_solicitation(setup: &Setup, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let word = line.word("a host")?;
    let (Some(mac), Some(source @ IpAddr::V6(_))) =
        (setup.mac(word.text), setup.host_address(word.text, true))
    else {
        return Err(word.error(format!("`{}` is not a host with an IPv6 address", word.text)));
    };
    line.expect("for")?;
    let target = line.parse::<std::net::Ipv6Addr>("an IPv6 address")?.octets();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&target[13..]);
    let content = [&[0; 4], &target[..], &[1, 1], &mac.0].concat();
    let mut packet = Packet::ip(source, IpAddr::from(group), Payload::Icmp(135, content));
    if let Some(ip) = packet.ip_mut() {
        ip.hop_limit = 255;
    }
    packet.source = mac;
    packet.destination = Mac([0x33, 0x33, group[12], group[13], group[14], group[15]]);
    Ok(packet)
}

/// Reads a control message after its kind: the sender's name and fields. The message goes from the server's address and
/// control port to the control endpoint.
fn read_message(context: &mut PacketContext<'_>, kind: u8, line: &mut Line<'_>) -> Result<Packet, TextError> {
    let setup = context.setup;
    let word = line.word("a server")?;
    let server =
        setup.servers.get(word.text).ok_or_else(|| word.error(format!("`{}` is not a server", word.text)))?;
    let sequence = (context.next_sequence)(server.id);
    let mut message = Message::new(kind, u32::from(server.id), server.key, sequence, setup.epoch);
    if matches!(kind, PREPARE | HOLD) {
        message.lifetime_ms = DEFAULT_LIFETIME_MS;
    }
    message.read_fields(setup, line)?;
    let control = setup
        .control_address(server.address)
        .ok_or_else(|| word.error("the control endpoint has no address of the server's family"))?;
    let source = SocketAddr::new(server.address, control_port(server.id));
    let destination = SocketAddr::new(control, setup.control_port);
    let mut packet = Packet::udp(source, destination, Content::Message(message));
    packet.source = server.mac;
    packet.destination = setup.port(context.ingress).map(|port| port.mac).unwrap_or_default();
    Ok(packet)
}

/// The control port of a server, unless a packet states another.
pub(crate) fn control_port(server: u8) -> u16 {
    7000 + u16::from(server)
}
