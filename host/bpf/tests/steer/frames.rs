//! Frames for the tests. They have no checksums, because the program does not read any.

use std::net::{IpAddr, SocketAddr};

/// EtherType of 802.1Q tags.
pub const VLAN: u16 = 0x8100;
/// EtherType of 802.1ad tags.
pub const SERVICE_VLAN: u16 = 0x88a8;

/// The description of a frame. Its headers are valid by default.
#[derive(Clone, Debug)]
pub struct Frame {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// The protocol's number: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Whether the frame is an ARP request for the destination's address instead of a packet to it.
    pub is_arp: bool,
    /// The VLAN tags, outer ones first: EtherType ([`VLAN`] or [`SERVICE_VLAN`]) and number of the VLAN.
    pub vlan_tags: Vec<(u16, u16)>,
    /// IPv4 only: options in units of 4 bytes.
    pub option_words: usize,
    /// IPv4 only: the field with the flags and the fragment offset.
    pub fragment_field: u16,
    /// IPv6 only: the extension headers, each with its kind and its length field. Kind 44 is a fragment
    /// header, whose second number is the field with offset and flags.
    pub extensions: Vec<(u8, u16)>,
    /// IPv6 only: the length of the payload in the header, if it is not the true one.
    pub ipv6_length: Option<u16>,
    /// Bytes after the ports.
    pub payload: usize,
}

impl Frame {
    pub fn tcp(source: &str, destination: &str) -> Frame {
        Frame {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 6,
            is_arp: false,
            vlan_tags: Vec::new(),
            option_words: 0,
            fragment_field: 0,
            extensions: Vec::new(),
            ipv6_length: None,
            payload: 16,
        }
    }

    pub fn udp(source: &str, destination: &str) -> Frame {
        Frame { protocol: 17, ..Frame::tcp(source, destination) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for (protocol, vlan) in &self.vlan_tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(vlan.to_be_bytes());
        }
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) if self.is_arp => {
                frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
                frame.extend([2, 0, 0, 0, 0, 2]);
                frame.extend(source.octets());
                frame.extend([0; 6]);
                frame.extend(destination.octets());
                return frame;
            }
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([0x08, 0x00]);
                let length = 20 + self.option_words * 4 + 4 + self.payload;
                frame.extend([0x40 | (5 + self.option_words) as u8, 0]);
                frame.extend((length as u16).to_be_bytes());
                frame.extend([0, 1]);
                frame.extend(self.fragment_field.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend(vec![1; self.option_words * 4]);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let units = self.extensions.iter().map(|(kind, field)| match kind {
                    44 => 1,
                    _ => 1 + usize::from(*field as u8),
                });
                let length = self.ipv6_length.unwrap_or((8 * units.sum::<usize>() + 4 + self.payload) as u16);
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.push(self.extensions.first().map_or(self.protocol, |(kind, _)| *kind));
                frame.push(64);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                for (index, (kind, field)) in self.extensions.iter().enumerate() {
                    let next = self.extensions.get(index + 1).map_or(self.protocol, |(kind, _)| *kind);
                    if *kind == 44 {
                        frame.extend([next, 0]);
                        frame.extend(field.to_be_bytes());
                        frame.extend([0; 4]);
                    } else {
                        frame.extend([next, *field as u8]);
                        frame.extend(vec![0; 6 + usize::from(*field as u8) * 8]);
                    }
                }
            }
            _ => panic!("both ends of a frame have addresses of one family"),
        }
        frame.extend(self.source.port().to_be_bytes());
        frame.extend(self.destination.port().to_be_bytes());
        frame.extend(vec![0; self.payload]);
        frame
    }
}
