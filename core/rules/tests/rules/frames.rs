//! Frames for the tests, and a check of their checksums that is independent of the rules.

use spillway_rules::Endpoint;
use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::ethernet::Mac;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// What a frame's IP packet carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upper {
    Tcp { flags: u8, sequence: u32, acknowledgement: u32 },
    Udp,
    Other(u8),
}

/// The description of a frame, which is valid and has correct checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub target_mac: Mac,
    pub source_mac: Mac,
    /// VLAN tags, outer ones first: EtherType and number of the VLAN.
    pub vlan_tags: Vec<(u16, u16)>,
    pub source: Endpoint,
    pub target: Endpoint,
    pub hops: u8,
    /// IPv4 only: options in units of 4 bytes.
    pub option_words: usize,
    /// IPv4 only: flags and fragment offset.
    pub fragment_field: u16,
    /// IPv6 only: extension headers, each with its kind, and its length field, or for kind 44 offset and flags.
    pub extensions: Vec<(u8, u16)>,
    pub upper: Upper,
    pub payload: Vec<u8>,
}

impl Frame {
    /// A TCP segment without payload.
    pub fn tcp(macs: (Mac, Mac), ends: (Endpoint, Endpoint), flags: u8) -> Frame {
        Frame {
            source_mac: macs.0,
            target_mac: macs.1,
            vlan_tags: Vec::new(),
            source: ends.0,
            target: ends.1,
            hops: 17,
            option_words: 0,
            fragment_field: 0,
            extensions: Vec::new(),
            upper: Upper::Tcp { flags, sequence: 1000, acknowledgement: 2000 },
            payload: Vec::new(),
        }
    }

    /// A UDP datagram.
    pub fn udp(macs: (Mac, Mac), ends: (Endpoint, Endpoint), payload: &[u8]) -> Frame {
        Frame { upper: Upper::Udp, payload: payload.to_vec(), ..Frame::tcp(macs, ends, 0) }
    }

    /// The same segment with these numbers.
    pub fn numbered(mut self, number: u32, acknowledged: u32) -> Frame {
        if let Upper::Tcp { sequence, acknowledgement, .. } = &mut self.upper {
            (*sequence, *acknowledgement) = (number, acknowledged);
        }
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = [self.target_mac.0, self.source_mac.0].concat();
        for (kind, vlan) in &self.vlan_tags {
            frame.extend(kind.to_be_bytes());
            frame.extend(vlan.to_be_bytes());
        }
        let upper = self.upper_bytes();
        if self.source.ip().is_ipv4() {
            frame.extend([0x08, 0x00]);
            let mut header = vec![0x40 | (5 + self.option_words) as u8, 0];
            header.extend(((20 + 4 * self.option_words + upper.len()) as u16).to_be_bytes());
            header.extend([0x12, 0x34]);
            header.extend(self.fragment_field.to_be_bytes());
            header.extend([self.hops, self.protocol(), 0, 0]);
            header.extend(&self.source.address()[12..]);
            header.extend(&self.target.address()[12..]);
            header.extend(vec![1; 4 * self.option_words]);
            let check = Sum::ZERO.add_bytes(&header).finish();
            header[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend(header);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            let mut chain = Vec::new();
            for (index, (kind, field)) in self.extensions.iter().enumerate() {
                let next = self.extensions.get(index + 1).map_or(self.protocol(), |(kind, _)| *kind);
                if *kind == 44 {
                    chain.extend([next, 0]);
                    chain.extend(field.to_be_bytes());
                    chain.extend([0, 0, 0, 9]);
                } else {
                    chain.extend([next, *field as u8]);
                    chain.extend(vec![0; 6 + 8 * usize::from(*field as u8)]);
                }
            }
            frame.extend(((chain.len() + upper.len()) as u16).to_be_bytes());
            frame.push(self.extensions.first().map_or(self.protocol(), |(kind, _)| *kind));
            frame.push(self.hops);
            frame.extend(self.source.address());
            frame.extend(self.target.address());
            frame.extend(chain);
        }
        frame.extend(upper);
        frame
    }

    fn protocol(&self) -> u8 {
        match self.upper {
            Upper::Tcp { .. } => 6,
            Upper::Udp => 17,
            Upper::Other(protocol) => protocol,
        }
    }

    /// The TCP segment or datagram with its checksum.
    fn upper_bytes(&self) -> Vec<u8> {
        let ports = [self.source.port().to_be_bytes(), self.target.port().to_be_bytes()].concat();
        let (mut bytes, check_at) = match self.upper {
            Upper::Tcp { flags, sequence, acknowledgement } => {
                let mut bytes = ports;
                bytes.extend(sequence.to_be_bytes());
                bytes.extend(acknowledgement.to_be_bytes());
                bytes.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
                (bytes, 16)
            }
            Upper::Udp => {
                let mut bytes = ports;
                bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                bytes.extend([0, 0]);
                (bytes, 6)
            }
            Upper::Other(_) => return self.payload.clone(),
        };
        bytes.extend(&self.payload);
        let check = upper_sum(&self.source, &self.target, self.protocol(), &bytes).finish();
        bytes[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
        bytes
    }
}

fn upper_sum(source: &Endpoint, target: &Endpoint, protocol: u8, bytes: &[u8]) -> Sum {
    use core::net::IpAddr::{V4, V6};
    let length = bytes.len() as u32;
    match (source.ip(), target.ip()) {
        (V4(source), V4(target)) => pseudo_v4(source, target, protocol, length),
        (V6(source), V6(target)) => pseudo_v6(source, target, protocol, length),
        _ => panic!("both ends of a packet have addresses of one family"),
    }
    .add_bytes(bytes)
}

/// What a test reads of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub target_mac: Mac,
    pub source_mac: Mac,
    pub source: Endpoint,
    pub target: Endpoint,
    pub hops: u8,
    /// The TCP segment or the datagram.
    pub upper: Vec<u8>,
    /// Whether the checksums of the IPv4 header, if there is one, and of TCP or UDP are correct.
    pub has_correct_checksums: bool,
}

/// Reads a frame with TCP or UDP.
pub fn read(frame: &[u8]) -> Seen {
    let mac = |at: usize| Mac(frame[at..at + 6].try_into().unwrap());
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    let is_ipv4 = frame[at..at + 2] == [0x08, 0x00];
    let packet = &frame[at + 2..];
    let (protocol, hops, source, target, header_is_correct, upper) = if is_ipv4 {
        let header = &packet[..usize::from(packet[0] & 15) * 4];
        let mapped = |at: usize| {
            let mut address = [0; 16];
            address[10..12].fill(0xff);
            address[12..].copy_from_slice(&header[at..at + 4]);
            address
        };
        let is_correct = Sum::ZERO.add_bytes(header).finish() == 0;
        (header[9], header[8], mapped(12), mapped(16), is_correct, &packet[header.len()..])
    } else {
        let (mut next, mut start) = (packet[6], 40);
        while matches!(next, 0 | 43 | 44 | 60) {
            let length = if next == 44 { 8 } else { (usize::from(packet[start + 1]) + 1) * 8 };
            (next, start) = (packet[start], start + length);
        }
        let address = |at: usize| packet[at..at + 16].try_into().unwrap();
        (next, packet[7], address(8), address(24), true, &packet[start..])
    };
    let port = |at: usize| u16::from_be_bytes(upper[at..at + 2].try_into().unwrap());
    let (source, target) = (Endpoint::new(source, port(0)), Endpoint::new(target, port(2)));
    let upper_is_correct = upper_sum(&source, &target, protocol, upper).finish() == 0;
    Seen {
        target_mac: mac(0),
        source_mac: mac(6),
        source,
        target,
        hops,
        upper: upper.to_vec(),
        has_correct_checksums: header_is_correct && upper_is_correct,
    }
}

#[test]
fn the_tests_own_frames_have_correct_checksums() {
    let endpoint = crate::test_config::endpoint;
    let macs = (crate::test_config::mac(1), crate::test_config::mac(2));
    let v4 = (endpoint("10.0.0.1:80"), endpoint("192.0.2.7:5000"));
    let v6 = (endpoint("[fd00::1]:80"), endpoint("[2001:db8::7]:5000"));
    for ends in [v4, v6] {
        for frame in [
            Frame { payload: vec![1, 2, 3], option_words: 3, ..Frame::tcp(macs, ends, ACK) },
            Frame { extensions: vec![(0, 2), (44, 0), (60, 0)], ..Frame::tcp(macs, ends, ACK) },
            Frame { vlan_tags: vec![(0x88a8, 5), (0x8100, 6)], ..Frame::udp(macs, ends, b"odd") },
        ] {
            let mut bytes = frame.bytes();
            let seen = read(&bytes);
            assert!(seen.has_correct_checksums, "{frame:?}");
            assert_eq!((seen.source, seen.target, seen.hops), (ends.0, ends.1, 17));
            assert_eq!((seen.source_mac, seen.target_mac), macs);
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert!(!read(&bytes).has_correct_checksums);
        }
    }
}
