//! Packets as cases write them.

pub(crate) mod build;
pub(crate) mod parse;

use std::net::{IpAddr, SocketAddr};

use crate::mac::Mac;
use crate::message::{FROM_SWITCH, Message};
use crate::setup::{LOCAL_PORT, Setup};

/// Ethernet type of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// Ethernet type of an 802.1ad tag.
pub const SERVICE_VLAN: u16 = 0x88a8;

/// A frame.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Source MAC.
    pub source: Mac,
    /// Destination MAC.
    pub destination: Mac,
    /// VLAN tags from outside: Ethernet type and control information.
    pub vlan_tags: Vec<(u16, u16)>,
    /// What follows the Ethernet header.
    pub body: Body,
    /// Changes of the frame's bytes, made after everything else.
    pub edits: Vec<Edit>,
}

/// What follows the Ethernet header and tags.
#[expect(clippy::large_enum_variant, reason = "few packets exist at a time, and most are IP")]
#[derive(Clone, Debug)]
pub enum Body {
    /// IPv4 or IPv6.
    Ip(Ip),
    /// ARP for IPv4.
    Arp(Arp),
    /// This Ethernet type and these bytes.
    Other(u16, Vec<u8>),
}

/// An ARP packet.
#[derive(Clone, Debug)]
pub struct Arp {
    /// 1 request, 2 reply.
    pub operation: u16,
    /// Sender's MAC and address.
    pub sender: (Mac, [u8; 4]),
    /// Target's MAC and address.
    pub target: (Mac, [u8; 4]),
}

/// An IP packet. Both addresses have one family.
#[derive(Clone, Debug)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Words of IPv4 options, 4 bytes each.
    pub option_words: u8,
    /// IPv6 extension headers: numbers and lengths in units of 8 bytes.
    pub extensions: Vec<(u8, u8)>,
    /// The fragment that the packet is, or that it is whole.
    pub fragment: Fragment,
    /// Added to the sum of the header, so that the checksum is wrong unless this is 0.
    pub checksum_error: u16,
    /// What follows the headers.
    pub payload: Payload,
}

/// Which fragment of a packet a frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole packet.
    None,
    /// The first fragment.
    First,
    /// A later fragment. The payload's bytes stand for some in the middle.
    Later,
    /// IPv6: the whole packet with a fragment header (RFC 6946). IPv4: as `None`.
    Atomic,
}

/// What follows the IP headers.
#[derive(Clone, Debug)]
pub enum Payload {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp(Udp),
    /// ICMP or ICMPv6 of this type, with the bytes after the checksum.
    Icmp(u8, Vec<u8>),
    /// An ICMP or ICMPv6 error.
    Error(IcmpError),
    /// This protocol and these bytes.
    Other(u8, Vec<u8>),
}

/// Flags of TCP.
pub mod tcp_flags {
    /// The sender has no more data.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 2;
    /// Resets a connection.
    pub const RST: u8 = 4;
    /// Push.
    pub const PSH: u8 = 8;
    /// The acknowledgement counts.
    pub const ACK: u8 = 16;
}

/// A TCP segment.
#[derive(Clone, Debug)]
pub struct Tcp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// [`tcp_flags`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Words of options, 4 bytes each.
    pub option_words: u8,
    /// Data.
    pub data: Vec<u8>,
    /// As [`Ip::checksum_error`].
    pub checksum_error: u16,
}

/// An ICMP or ICMPv6 error about a packet of the same family.
#[derive(Clone, Debug)]
pub struct IcmpError {
    /// The type.
    pub kind: u8,
    /// The packet that it quotes.
    pub quoted: Box<Ip>,
    /// Number of its bytes that are quoted.
    pub bytes: usize,
    /// As [`Ip::checksum_error`].
    pub checksum_error: u16,
}

/// A UDP datagram.
#[derive(Clone, Debug)]
pub struct Udp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Data.
    pub content: Content,
    /// As [`Ip::checksum_error`]. `None`: no checksum.
    pub checksum_error: Option<u16>,
    /// Added to the length in the header.
    pub length_error: i16,
}

/// Data of a UDP datagram.
#[derive(Clone, Debug)]
pub enum Content {
    /// Any bytes.
    Bytes(Vec<u8>),
    /// A control message.
    Message(Message),
}

/// A change of a frame's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The frame is cut to this number of bytes.
    Cut(usize),
    /// This number of zero bytes is added.
    Pad(usize),
    /// The byte at this offset is replaced.
    Byte(usize, u8),
}

impl Packet {
    /// An IP packet with default fields.
    pub fn ip(source: IpAddr, destination: IpAddr, payload: Payload) -> Packet {
        Packet {
            source: Mac::default(),
            destination: Mac::default(),
            vlan_tags: Vec::new(),
            body: Body::Ip(Ip {
                source,
                destination,
                hop_limit: 64,
                option_words: 0,
                extensions: Vec::new(),
                fragment: Fragment::None,
                checksum_error: 0,
                payload,
            }),
            edits: Vec::new(),
        }
    }

    /// A TCP segment without data.
    pub fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8) -> Packet {
        let tcp = Tcp {
            source: source.port(),
            destination: destination.port(),
            flags,
            sequence: 1_000,
            acknowledgement: if flags & tcp_flags::ACK == 0 { 0 } else { 2_000 },
            option_words: 0,
            data: Vec::new(),
            checksum_error: 0,
        };
        Packet::ip(source.ip(), destination.ip(), Payload::Tcp(tcp))
    }

    /// A UDP datagram.
    pub fn udp(source: SocketAddr, destination: SocketAddr, content: Content) -> Packet {
        let udp = Udp {
            source: source.port(),
            destination: destination.port(),
            content,
            checksum_error: Some(0),
            length_error: 0,
        };
        Packet::ip(source.ip(), destination.ip(), Payload::Udp(udp))
    }

    /// The IP packet inside.
    pub fn ip_mut(&mut self) -> Option<&mut Ip> {
        if let Body::Ip(ip) = &mut self.body { Some(ip) } else { None }
    }

    /// The control message inside.
    pub fn message_mut(&mut self) -> Option<&mut Message> {
        match &mut self.ip_mut()?.payload {
            Payload::Udp(Udp { content: Content::Message(message), .. }) => Some(message),
            _ => None,
        }
    }

    /// Sets the MACs by the addresses: those of the hosts that have them, otherwise the ingress port's own as
    /// destination. Other packets keep their MACs.
    pub(crate) fn set_macs(&mut self, setup: &Setup, ingress: u8) {
        let Body::Ip(Ip { source, destination, .. }) = &self.body else { return };
        let own = setup.port(ingress).map(|port| port.mac).unwrap_or_default();
        self.source = setup.host_at(*source).map_or(self.source, |host| host.mac);
        self.destination = setup.host_at(*destination).map_or(own, |host| host.mac);
    }

    /// The switch's answer to a control message, before its fields are set: back to its sender.
    pub(crate) fn answer(&self) -> Packet {
        let mut answer = self.clone();
        std::mem::swap(&mut answer.source, &mut answer.destination);
        if let Some(ip) = answer.ip_mut() {
            std::mem::swap(&mut ip.source, &mut ip.destination);
            if let Payload::Udp(udp) = &mut ip.payload {
                std::mem::swap(&mut udp.source, &mut udp.destination);
            }
        }
        answer.set_from_switch();
        answer
    }

    /// The control message as the switch relays it to a server with this control port, before its fields are set.
    pub(crate) fn relayed(&self, setup: &Setup, receiver: u8, control_port: u16) -> Option<Packet> {
        let server = setup.server(receiver)?;
        let mut relayed = self.clone();
        if setup.is_host && server.port == LOCAL_PORT {
            relayed.set_from_switch();
            relayed.message_mut()?.key = server.key;
            return Some(relayed);
        }
        relayed.source = setup.port(server.port)?.mac;
        relayed.destination = server.mac;
        let ip = relayed.ip_mut()?;
        ip.source = ip.destination;
        ip.destination = server.address;
        if let Payload::Udp(udp) = &mut ip.payload {
            udp.source = udp.destination;
            udp.destination = control_port;
        }
        relayed.set_from_switch();
        relayed.message_mut()?.key = server.key;
        Some(relayed)
    }

    fn set_from_switch(&mut self) {
        let Some(ip) = self.ip_mut() else { return };
        ip.hop_limit = 64;
        if let Payload::Udp(udp) = &mut ip.payload {
            udp.checksum_error = Some(0);
        }
        if let Some(message) = self.message_mut() {
            message.flags = FROM_SWITCH;
            message.tag_error = 0;
        }
    }
}
