//! Packets of a peer that a connection's owner has not received from the network: copies of those that the old socket did not
//! accept, and segments that are made on the peer's behalf.

use std::net::{IpAddr, SocketAddr};

use spillway_wire::Bytes;
use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::tcp::{self, Flags};
use spillway_wire::packet::{Layer, PacketError, ipv4, ipv6};

use crate::error::CaptureError;

/// Longest IPv4 packet. IPv6 packets are not made longer either.
const PACKET_BYTES_MAX: usize = 65_535;

// Offsets in an IPv4 header.
const V4_TOTAL: usize = 2;
const V4_FRAGMENT: usize = 6;
const V4_PROTOCOL: usize = 9;
const V4_CHECKSUM: usize = 10;
const V4_TARGET: usize = 16;
/// Mask of "more fragments" and of the fragment offset: one that is set makes the packet a fragment.
const V4_FRAGMENT_MASK: u16 = 0x3fff;
// Offsets in an IPv6 header.
const V6_LENGTH: usize = 4;
const V6_TARGET: usize = 24;
// Offsets in a TCP header.
const TARGET_PORT: usize = 2;
const SEQUENCE: usize = 4;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;
const URGENT: usize = 18;

/// A TCP packet of the peer with its IP header and valid checksums, ready to be injected at the connection's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPacket {
    bytes: Bytes,
    peer: SocketAddr,
    local: SocketAddr,
    /// Offset of the TCP header.
    tcp_at: usize,
    /// Offset of the data.
    data_at: usize,
}

/// A segment to be made on the peer's behalf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSegment {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub has_fin: bool,
    /// As in a header, before scaling.
    pub window: u16,
    /// Without timestamps the kernel does not compare the segment with TS.Recent, but the user-level stack drops it if
    /// timestamps were negotiated (RFC 7323 §3.2).
    pub stamps: Option<tcp::Timestamps>,
}

impl PeerPacket {
    /// Reads a packet, and computes its checksums without verifying them: a damaged packet would become valid. A packet from
    /// another server is injected by [`SocketInjector::inject_forwarded`](crate::SocketInjector::inject_forwarded), which checks that
    /// it belongs to the connection.
    ///
    /// # Errors
    /// It is not one whole TCP packet.
    pub fn read(packet: impl Into<Vec<u8>>) -> Result<PeerPacket, CaptureError> {
        PeerPacket::new(packet.into()).map_err(CaptureError::NotAPacket)
    }

    fn new(mut bytes: Vec<u8>) -> Result<PeerPacket, PacketError> {
        let (peer, local, tcp_at) = ends(&bytes)?;
        let segment = bytes.get(tcp_at..).unwrap_or_default();
        let (Some(ports), Some(offset)) = (segment.first_chunk::<4>(), segment.get(DATA_OFFSET)) else {
            return Err(PacketError::Truncated(Layer::Tcp));
        };
        let [p0, p1, l0, l1] = *ports;
        let header_bytes = usize::from(offset >> 4) * 4;
        if header_bytes < tcp::HEADER_BYTES {
            return Err(PacketError::HeaderLength(Layer::Tcp));
        }
        if segment.len() < header_bytes {
            return Err(PacketError::Truncated(Layer::Tcp));
        }
        let data_at = tcp_at + header_bytes;
        let peer = SocketAddr::new(peer, u16::from_be_bytes([p0, p1]));
        let local = SocketAddr::new(local, u16::from_be_bytes([l0, l1]));
        finish(&mut bytes, tcp_at, peer.ip(), local.ip());
        Ok(PeerPacket { bytes: bytes.into(), peer, local, tcp_at, data_at })
    }

    /// Makes a segment. `data` must fit into one packet.
    pub(crate) fn made(segment: &PeerSegment, data: &[u8]) -> Result<PeerPacket, CaptureError> {
        let fin = if segment.has_fin { Flags::FIN } else { Flags::NONE };
        let push = if data.is_empty() { Flags::NONE } else { Flags::PSH };
        let header = tcp::Header {
            source: segment.peer.port(),
            target: segment.local.port(),
            seq: segment.seq,
            ack: segment.ack,
            flags: Flags::ACK | fin | push,
            window: segment.window,
            urgent: 0,
            options: tcp::Options { timestamps: segment.stamps, ..tcp::Options::default() },
        };
        let segment_bytes = header.header_bytes() + data.len();
        let length = u16::try_from(segment_bytes)
            .map_err(|_| CaptureError::NotAPacket(PacketError::Length(Layer::Tcp)))?;
        let mut bytes = match (segment.peer.ip(), segment.local.ip()) {
            (IpAddr::V4(peer), IpAddr::V4(local)) => {
                let mut head = [0; ipv4::HEADER_BYTES];
                ipv4::Header::new(peer, local, ipv4::PROTOCOL_TCP, length).emit(&mut head);
                head.to_vec()
            }
            (IpAddr::V6(peer), IpAddr::V6(local)) => {
                let mut head = [0; ipv6::HEADER_BYTES];
                ipv6::Header::new(peer, local, ipv4::PROTOCOL_TCP, length).emit(&mut head);
                head.to_vec()
            }
            _ => return Err(CaptureError::Contradiction("addresses of two families")),
        };
        let tcp_at = bytes.len();
        bytes.resize(tcp_at + header.header_bytes(), 0);
        bytes.extend_from_slice(data);
        // `read` computes the checksum.
        header.emit(&mut bytes[tcp_at..], data.len(), Sum::ZERO);
        PeerPacket::read(bytes)
    }

    /// Bytes of a packet's headers with timestamps: what is left of a packet is data.
    pub(crate) fn header_bytes(local: SocketAddr) -> usize {
        let ip = if local.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES };
        ip + tcp::HEADER_BYTES + 12
    }

    /// The packet, with its IP header.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The peer, which is the packet's source.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The packet's target: the local address of the socket that was captured.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sequence number of the first byte of data.
    pub fn seq(&self) -> u32 {
        self.bytes[self.tcp_at + SEQUENCE..].first_chunk().copied().map_or(0, u32::from_be_bytes)
    }

    /// The data.
    pub fn data(&self) -> &[u8] {
        &self.bytes[self.data_at..]
    }

    /// The peer finishes after these bytes.
    pub fn has_fin(&self) -> bool {
        Flags(self.bytes[self.tcp_at + FLAGS]).contains(Flags::FIN)
    }

    /// The packet for a new owner with another address, which the switch translates for packets that pass it.
    ///
    /// # Errors
    /// The address is of another family.
    pub fn addressed_to(&self, local: SocketAddr) -> Result<PeerPacket, CaptureError> {
        if local == self.local {
            return Ok(self.clone());
        }
        let mut bytes = self.bytes.to_vec();
        match (self.local.ip(), local.ip()) {
            (IpAddr::V4(_), IpAddr::V4(target)) => {
                bytes[V4_TARGET..V4_TARGET + 4].copy_from_slice(&target.octets());
            }
            (IpAddr::V6(_), IpAddr::V6(target)) => {
                bytes[V6_TARGET..V6_TARGET + 16].copy_from_slice(&target.octets());
            }
            _ => return Err(CaptureError::Contradiction("addresses of two families")),
        }
        let port = self.tcp_at + TARGET_PORT;
        bytes[port..port + 2].copy_from_slice(&local.port().to_be_bytes());
        PeerPacket::read(bytes)
    }

    /// The same data in packets of at most `bytes_max` bytes: the kernel merges what has arrived to packets that are longer than
    /// an interface accepts. A limit that leaves no room for data counts as one that leaves room for a byte.
    pub fn split(&self, bytes_max: usize) -> Vec<PeerPacket> {
        let step = bytes_max.min(PACKET_BYTES_MAX).saturating_sub(self.data_at).max(1);
        if self.data().len() <= step {
            return vec![self.clone()];
        }
        let last = (self.data().len() - 1) / step;
        self.data()
            .chunks(step)
            .enumerate()
            .map(|(at, data)| self.piece(at * step, data, at == last))
            .collect()
    }

    /// A packet with a part of the data, which begins at `offset`.
    fn piece(&self, offset: usize, data: &[u8], is_last: bool) -> PeerPacket {
        let mut bytes = self.bytes[..self.data_at].to_vec();
        bytes.extend_from_slice(data);
        let tcp = &mut bytes[self.tcp_at..];
        // The data is shorter than 64 KiB.
        let seq = self.seq().wrapping_add(offset as u32);
        tcp[SEQUENCE..SEQUENCE + 4].copy_from_slice(&seq.to_be_bytes());
        if !is_last {
            tcp[FLAGS] &= !(Flags::FIN | Flags::PSH).0;
        }
        let urgent = usize::from(u16::from_be_bytes([tcp[URGENT], tcp[URGENT + 1]]));
        let urgent = if Flags(tcp[FLAGS]).contains(Flags::URG) { urgent.saturating_sub(offset) } else { 0 };
        if urgent == 0 {
            tcp[FLAGS] &= !Flags::URG.0;
        }
        tcp[URGENT..URGENT + 2].copy_from_slice(&(urgent as u16).to_be_bytes());
        finish(&mut bytes, self.tcp_at, self.peer.ip(), self.local.ip());
        PeerPacket { bytes: bytes.into(), ..*self }
    }
}

/// Source, target and the offset of the TCP header.
fn ends(packet: &[u8]) -> Result<(IpAddr, IpAddr, usize), PacketError> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let head =
                packet.first_chunk::<{ ipv4::HEADER_BYTES }>().ok_or(PacketError::Truncated(Layer::Ipv4))?;
            let header_bytes = usize::from(head[0] & 0xf) * 4;
            let total = usize::from(u16::from_be_bytes([head[V4_TOTAL], head[V4_TOTAL + 1]]));
            if header_bytes < ipv4::HEADER_BYTES || total != packet.len() || total < header_bytes {
                return Err(PacketError::Length(Layer::Ipv4));
            }
            let fragment = u16::from_be_bytes([head[V4_FRAGMENT], head[V4_FRAGMENT + 1]]);
            if fragment & V4_FRAGMENT_MASK != 0 {
                return Err(PacketError::Fragment(Layer::Ipv4));
            }
            if head[V4_PROTOCOL] != ipv4::PROTOCOL_TCP {
                return Err(PacketError::Unsupported(Layer::Ipv4));
            }
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *head;
            Ok(([s0, s1, s2, s3].into(), [d0, d1, d2, d3].into(), header_bytes))
        }
        Some(6) => {
            let (header, header_bytes, payload) = ipv6::Header::parse(packet)?;
            if header_bytes + payload.len() != packet.len() {
                return Err(PacketError::Length(Layer::Ipv6));
            }
            if header.protocol != ipv4::PROTOCOL_TCP {
                return Err(PacketError::Unsupported(Layer::Ipv6));
            }
            Ok((header.source.into(), header.target.into(), header_bytes))
        }
        _ => Err(PacketError::Unsupported(Layer::Ipv4)),
    }
}

/// Sets the lengths and checksums of a packet.
fn finish(bytes: &mut [u8], tcp_at: usize, peer: IpAddr, local: IpAddr) {
    // No length exceeds its field: packets are read with these fields, and pieces of packets are shorter.
    let segment_bytes = (bytes.len() - tcp_at) as u32;
    let pseudo = match (peer, local) {
        (IpAddr::V4(peer), IpAddr::V4(local)) => {
            let total = bytes.len() as u16;
            bytes[V4_TOTAL..V4_TOTAL + 2].copy_from_slice(&total.to_be_bytes());
            set_checksum(&mut bytes[..tcp_at], V4_CHECKSUM, Sum::ZERO);
            pseudo_v4(peer, local, ipv4::PROTOCOL_TCP, segment_bytes)
        }
        (IpAddr::V6(peer), IpAddr::V6(local)) => {
            let payload = (bytes.len() - ipv6::HEADER_BYTES) as u16;
            bytes[V6_LENGTH..V6_LENGTH + 2].copy_from_slice(&payload.to_be_bytes());
            pseudo_v6(peer, local, ipv4::PROTOCOL_TCP, segment_bytes)
        }
        _ => unreachable!("both addresses are of the packet's IP header"),
    };
    set_checksum(&mut bytes[tcp_at..], CHECKSUM, pseudo);
}

fn set_checksum(bytes: &mut [u8], at: usize, sum: Sum) {
    bytes[at..at + 2].fill(0);
    let checksum = sum.add_bytes(bytes).finish();
    bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: [&str; 2] = ["192.0.2.1:1000", "[2001:db8::1]:1000"];
    const LOCAL: [&str; 2] = ["192.0.2.2:80", "[2001:db8::2]:80"];

    fn packet(family: usize, data: &[u8], has_fin: bool) -> PeerPacket {
        let stamps = Some(tcp::Timestamps { value: 7, echo: 8 });
        let (peer, local) = (PEER[family].parse().unwrap(), LOCAL[family].parse().unwrap());
        let segment = PeerSegment { peer, local, seq: u32::MAX - 1, ack: 5, has_fin, window: 9, stamps };
        PeerPacket::made(&segment, data).unwrap()
    }

    /// The header of a packet whose checksums and lengths are valid.
    fn parsed(packet: &PeerPacket) -> (tcp::Header, Vec<u8>) {
        let bytes = packet.bytes();
        let (pseudo, segment) = if packet.local().is_ipv4() {
            let (head, _, segment) = ipv4::Header::parse(bytes).unwrap();
            (pseudo_v4(head.source, head.target, head.protocol, head.payload_bytes.into()), segment)
        } else {
            let (head, _, segment) = ipv6::Header::parse(bytes).unwrap();
            (pseudo_v6(head.source, head.target, head.protocol, head.payload_bytes.into()), segment)
        };
        let (header, _, data) = tcp::Header::parse(segment, pseudo).unwrap();
        assert_eq!(data, packet.data());
        (header, data.to_vec())
    }

    #[test]
    fn made_segments_are_valid_and_readable() {
        for family in 0..2 {
            let made = packet(family, b"hello", true);
            let (header, data) = parsed(&made);
            assert_eq!((header.seq, header.ack, header.window), (u32::MAX - 1, 5, 9));
            assert_eq!(header.flags, Flags::ACK | Flags::FIN | Flags::PSH);
            assert_eq!(header.options.timestamps, Some(tcp::Timestamps { value: 7, echo: 8 }));
            assert_eq!(data, b"hello");
            assert_eq!(
                (made.peer().to_string(), made.local().to_string()),
                (PEER[family].into(), LOCAL[family].into())
            );
            assert_eq!((made.seq(), made.has_fin()), (u32::MAX - 1, true));
            // Copies have any checksum.
            let mut damaged = made.bytes().to_vec();
            let at = made.tcp_at + CHECKSUM;
            damaged[at] ^= 0xff;
            if family == 0 {
                damaged[V4_CHECKSUM] ^= 0xff;
            }
            assert_eq!(PeerPacket::read(damaged).unwrap(), made);
        }
    }

    #[test]
    fn pieces_have_all_the_data_and_the_end_once() {
        for family in 0..2 {
            let data: Vec<u8> = (0..=255).cycle().take(60_000).collect();
            let long = packet(family, &data, true);
            for bytes_max in [1_280, 1_500, 59_999] {
                let pieces = long.split(bytes_max);
                assert!(pieces.iter().all(|piece| piece.bytes().len() <= bytes_max));
                let mut next = long.seq();
                let mut joined = Vec::new();
                for (at, piece) in pieces.iter().enumerate() {
                    let (header, data) = parsed(piece);
                    assert_eq!(header.seq, next);
                    let is_last = at + 1 == pieces.len();
                    assert_eq!(header.flags.contains(Flags::FIN | Flags::PSH), is_last);
                    assert_eq!(header.flags.intersects(Flags::FIN | Flags::PSH), is_last);
                    next = next.wrapping_add(data.len() as u32);
                    joined.extend(data);
                }
                assert_eq!(joined, data);
            }
            assert_eq!(long.split(usize::MAX), std::slice::from_ref(&long));
            assert_eq!(packet(family, b"ab", false).split(0).len(), 2);
        }
    }

    #[test]
    fn a_switch_that_translates_addresses_is_imitated() {
        for (family, local) in ["192.0.2.77:8080", "[2001:db8::77]:8080"].into_iter().enumerate() {
            let local: SocketAddr = local.parse().unwrap();
            let moved = packet(family, b"hello", false).addressed_to(local).unwrap();
            assert_eq!(moved.local(), local);
            assert_eq!(parsed(&moved).0.target, 8080);
            assert!(moved.addressed_to(LOCAL[1 - family].parse().unwrap()).is_err());
        }
    }

    /// The injecting kernel would wait for the other fragments. IPv6 fragments have an extension header, which is refused.
    #[test]
    fn fragments_are_refused() {
        let whole = packet(0, b"hello", false).bytes().to_vec();
        for (field, is_fragment) in
            [(0, false), (0x4000, false), (0x2000, true), (0x0001, true), (0x5000, true)]
        {
            let mut bytes = whole.clone();
            bytes[V4_FRAGMENT..V4_FRAGMENT + 2].copy_from_slice(&u16::to_be_bytes(field));
            let error = PeerPacket::read(bytes).err();
            let is_refused =
                matches!(error, Some(CaptureError::NotAPacket(PacketError::Fragment(Layer::Ipv4))));
            assert_eq!((error.is_some(), is_refused), (is_fragment, is_fragment), "{field:#x}");
        }
    }

    #[test]
    fn other_bytes_are_no_packets() {
        for family in 0..2 {
            let whole = packet(family, b"hello", false).bytes().to_vec();
            for length in 0..whole.len() {
                assert!(PeerPacket::read(&whole[..length]).is_err(), "{length} bytes");
            }
            let mut longer = whole.clone();
            longer.push(0);
            assert!(PeerPacket::read(longer).is_err());
            for at in 0..whole.len() {
                for bit in 0..8 {
                    let mut wrong = whole.clone();
                    wrong[at] ^= 1 << bit;
                    // Not a panic.
                    let _ = PeerPacket::read(wrong).map(|packet| packet.split(60));
                }
            }
        }
    }
}
