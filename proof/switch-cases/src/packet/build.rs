//! The bytes of packets. Checksums are computed from nothing by the simple algorithm of RFC 1071, so that incremental
//! updates are compared with another computation.

use std::net::IpAddr;

use super::{Arp, Body, Content, Edit, Fragment, Ip, Packet, Payload, Tcp, Udp};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const FRAGMENT_HEADER: u8 = 44;
const IDENTIFICATION: u16 = 0x4242;
/// Offset of later fragments, in units of 8 bytes.
const FRAGMENT_OFFSET: u16 = 185;

impl Packet {
    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.destination.0, self.source.0].concat();
        for (kind, control) in &self.vlan_tags {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(control.to_be_bytes());
        }
        match &self.body {
            Body::Ip(ip) => {
                bytes.extend(if ip.source.is_ipv4() { IPV4 } else { IPV6 }.to_be_bytes());
                bytes.extend(ip.bytes());
            }
            Body::Arp(arp) => {
                bytes.extend(ARP.to_be_bytes());
                bytes.extend(arp.bytes());
            }
            Body::Other(kind, content) => {
                bytes.extend(kind.to_be_bytes());
                bytes.extend(content);
            }
        }
        for edit in &self.edits {
            match *edit {
                Edit::Cut(length) => bytes.truncate(length),
                Edit::Pad(length) => bytes.extend(std::iter::repeat_n(0, length)),
                Edit::Byte(at, byte) => {
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                }
            }
        }
        bytes
    }
}

impl Arp {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0, 1, 8, 0, 6, 4];
        bytes.extend(self.operation.to_be_bytes());
        for (mac, address) in [&self.sender, &self.target] {
            bytes.extend(mac.0);
            bytes.extend(address);
        }
        bytes
    }
}

impl Ip {
    fn bytes(&self) -> Vec<u8> {
        let payload = self.payload.bytes(self.source, self.destination);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.bytes_v4(source.octets(), destination.octets(), &payload)
            }
            (source, destination) => self.bytes_v6(
                crate::message::address_bytes(source),
                crate::message::address_bytes(destination),
                &payload,
            ),
        }
    }

    fn bytes_v4(&self, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let header_bytes = 20 + 4 * usize::from(self.option_words);
        let mut bytes = vec![0x45 + self.option_words, 0];
        bytes.extend(length(header_bytes + payload.len()).to_be_bytes());
        bytes.extend(IDENTIFICATION.to_be_bytes());
        let fragment = match self.fragment {
            Fragment::None | Fragment::Atomic => 0x4000,
            Fragment::First => 0x2000,
            Fragment::Later => 0x2000 | FRAGMENT_OFFSET,
        };
        bytes.extend(u16::to_be_bytes(fragment));
        bytes.extend([self.hop_limit, self.payload.protocol(), 0, 0]);
        bytes.extend(source);
        bytes.extend(destination);
        bytes.resize(header_bytes, 1); // the option "no operation"
        let check = checksum(&[&bytes], self.checksum_error);
        bytes[10..12].copy_from_slice(&check.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn bytes_v6(&self, source: [u8; 16], destination: [u8; 16], payload: &[u8]) -> Vec<u8> {
        let mut headers: Vec<(u8, Vec<u8>)> = Vec::new();
        for (kind, units) in &self.extensions {
            // A routing header with no segments left, or one option that fills the header.
            let mut header = vec![0, *units, 1];
            header.resize(8 * (usize::from(*units) + 1), 0);
            header[3] = match *kind {
                43 => 0,
                FRAGMENT_HEADER => 1,
                _ => u8::try_from(header.len() - 4).unwrap_or(u8::MAX),
            };
            if *kind == FRAGMENT_HEADER {
                header[1..3].fill(0);
            }
            headers.push((*kind, header));
        }
        let offset = match self.fragment {
            Fragment::None => None,
            Fragment::First => Some(1),
            Fragment::Later => Some(FRAGMENT_OFFSET << 3 | 1),
            Fragment::Atomic => Some(0),
        };
        if let Some(offset) = offset {
            let mut header = vec![0, 0];
            header.extend(u16::to_be_bytes(offset));
            header.extend(u32::from(IDENTIFICATION).to_be_bytes());
            headers.push((FRAGMENT_HEADER, header));
        }
        let mut next = self.payload.protocol();
        for (kind, header) in headers.iter_mut().rev() {
            header[0] = std::mem::replace(&mut next, *kind);
        }
        let content: Vec<u8> =
            headers.iter().flat_map(|(_, header)| header).chain(payload).copied().collect();
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend(length(content.len()).to_be_bytes());
        bytes.extend([next, self.hop_limit]);
        bytes.extend(source);
        bytes.extend(destination);
        bytes.extend(content);
        bytes
    }
}

impl Payload {
    fn protocol(&self) -> u8 {
        match self {
            Payload::Tcp(_) => 6,
            Payload::Udp(_) => 17,
            Payload::Icmp(kind, _) => {
                if *kind >= 128 {
                    58
                } else {
                    1
                }
            }
            Payload::Error(error) => {
                if error.quoted.source.is_ipv6() {
                    58
                } else {
                    1
                }
            }
            Payload::Other(protocol, _) => *protocol,
        }
    }

    fn bytes(&self, source: IpAddr, destination: IpAddr) -> Vec<u8> {
        let pseudo = |bytes: &[u8]| {
            let mut pseudo =
                [crate::message::address_bytes(source), crate::message::address_bytes(destination)].concat();
            if source.is_ipv4() {
                // ::ffff: of both addresses does not belong to the sum.
                pseudo = [&pseudo[12..16], &pseudo[28..32]].concat();
            }
            pseudo.extend(u32::from(length(bytes.len())).to_be_bytes());
            pseudo.extend([0, 0, 0, self.protocol()]);
            pseudo
        };
        match self {
            Payload::Tcp(tcp) => tcp.bytes(pseudo),
            Payload::Udp(udp) => udp.bytes(pseudo),
            Payload::Icmp(kind, content) => {
                let mut bytes = vec![*kind, 0, 0, 0];
                bytes.extend(content);
                let pseudo = if *kind >= 128 { pseudo(&bytes) } else { Vec::new() };
                let check = checksum(&[&pseudo, &bytes], 0);
                bytes[2..4].copy_from_slice(&check.to_be_bytes());
                bytes
            }
            Payload::Error(error) => {
                let mut quoted = error.quoted.bytes();
                quoted.truncate(error.bytes);
                // An unused field, or an MTU.
                let bytes = [&[error.kind, 0, 0, 0, 0, 0, 5, 0x14], &quoted[..]].concat();
                let pseudo = if source.is_ipv6() { pseudo(&bytes) } else { Vec::new() };
                let check = checksum(&[&pseudo, &bytes], error.checksum_error);
                [&bytes[..2], &check.to_be_bytes(), &bytes[4..]].concat()
            }
            Payload::Other(_, bytes) => bytes.clone(),
        }
    }
}

impl Tcp {
    fn bytes(&self, pseudo: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut bytes = [self.source.to_be_bytes(), self.destination.to_be_bytes()].concat();
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgement.to_be_bytes());
        bytes.extend([(5 + self.option_words) << 4, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        bytes.resize(20 + 4 * usize::from(self.option_words), 1);
        bytes.extend(&self.data);
        let check = checksum(&[&pseudo(&bytes), &bytes], self.checksum_error);
        bytes[16..18].copy_from_slice(&check.to_be_bytes());
        bytes
    }
}

impl Udp {
    fn bytes(&self, pseudo: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let content = match &self.content {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Message(message) => message.bytes().to_vec(),
        };
        let mut bytes = [self.source.to_be_bytes(), self.destination.to_be_bytes()].concat();
        bytes.extend(length(8 + content.len()).wrapping_add_signed(self.length_error).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(content);
        if let Some(error) = self.checksum_error {
            // RFC 768: a checksum of 0 is sent as ffff.
            let check = match checksum(&[&pseudo(&bytes), &bytes], error) {
                0 => 0xffff,
                check => check,
            };
            bytes[6..8].copy_from_slice(&check.to_be_bytes());
        }
        bytes
    }
}

fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("packets of cases are shorter than 64 KiB")
}

/// The checksum of these bytes (RFC 1071), after `error` was added to their sum. Only the last part may have an odd
/// length.
pub(crate) fn checksum(parts: &[&[u8]], error: u16) -> u16 {
    let mut sum = u32::from(error);
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the carry was added back")
}

#[cfg(test)]
mod tests {
    use super::super::tcp_flags;
    use super::*;

    fn at(text: &str) -> std::net::SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn sums_over_headers_with_their_checksums_are_zero() {
        let mut packet = Packet::tcp(at("10.0.0.1:80"), at("10.0.0.2:4000"), tcp_flags::ACK);
        let ip = packet.ip_mut().unwrap();
        ip.option_words = 3;
        let Payload::Tcp(tcp) = &mut ip.payload else { unreachable!() };
        tcp.data = b"odd".to_vec();
        let bytes = packet.bytes();
        assert_eq!((bytes.len(), bytes[14]), (14 + 32 + 20 + 3, 0x48));
        assert_eq!(checksum(&[&bytes[14..46]], 0), 0);
        let pseudo = [10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0, 23];
        assert_eq!(checksum(&[&pseudo, &bytes[46..]], 0), 0);
    }

    #[test]
    fn extension_headers_form_a_chain() {
        let mut packet = Packet::tcp(at("[2001:db8::1]:80"), at("[2001:db8::2]:4000"), tcp_flags::SYN);
        let ip = packet.ip_mut().unwrap();
        ip.extensions = vec![(0, 0), (60, 1)];
        ip.fragment = Fragment::First;
        let bytes = packet.bytes();
        assert_eq!((bytes[20], bytes[54], bytes[62], bytes[78]), (0, 60, 44, 6));
        assert_eq!(bytes[18..20], [0, 8 + 16 + 8 + 20]);
        assert_eq!(bytes[80..82], [0, 1], "more fragments, offset 0");
    }

    #[test]
    fn edits_are_made_in_their_order() {
        let mut packet = Packet::tcp(at("10.0.0.1:80"), at("10.0.0.2:4000"), 0);
        packet.edits = vec![Edit::Cut(20), Edit::Pad(2), Edit::Byte(0, 7)];
        let bytes = packet.bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[21]), (22, 7, 0));
    }
}
