//! Packets as they arrived at this host. The kernel has not checked them yet: an interface's program sees them first, and the
//! filter of a socket sees segments of more than 76 bytes before TCP has verified their checksums.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::tcp::{Header, is_checksum_partial};
use spillway_wire::packet::{Layer, PacketError, ipv4, ipv6};

/// Offset of the checksum in a TCP header.
const CHECKSUM_OFFSET: usize = 16;

/// A TCP packet that is not damaged.
#[derive(Debug)]
pub(crate) struct Arrived<'a> {
    /// The packet without padding and with a complete checksum.
    pub packet: Cow<'a, [u8]>,
    pub source: SocketAddr,
    pub target: SocketAddr,
}

impl Arrived<'_> {
    /// Reads a packet from its IP header on; padding may follow it. A checksum that a sender on the same machine, or the kernel's
    /// merging of packets, has left to the hardware is the sum of the pseudo-header, and is completed.
    ///
    /// # Errors
    /// It is not one whole TCP packet, or a checksum is wrong.
    pub(crate) fn read(packet: &[u8]) -> Result<Arrived<'_>, PacketError> {
        let Tcp { addresses: (source, target), header_bytes, segment, pseudo } = Tcp::parse(packet)?;
        let mut complete = Cow::Borrowed(&packet[..header_bytes + segment.len()]);
        let header = match Header::parse(segment, pseudo) {
            Err(PacketError::Checksum(_)) if is_checksum_partial(segment, pseudo) => {
                let segment = &mut complete.to_mut()[header_bytes..];
                complete_checksum(segment, pseudo);
                Header::parse(segment, pseudo)?.0
            }
            parsed => parsed?.0,
        };
        let (source, target) =
            (SocketAddr::new(source, header.source), SocketAddr::new(target, header.target));
        Ok(Arrived { packet: complete, source, target })
    }
}

/// A TCP packet.
struct Tcp<'a> {
    /// Source and destination.
    addresses: (IpAddr, IpAddr),
    /// Bytes of its IP headers.
    header_bytes: usize,
    segment: &'a [u8],
    /// The pseudo-header's sum for the segment.
    pseudo: Sum,
}

impl Tcp<'_> {
    fn parse(packet: &[u8]) -> Result<Tcp<'_>, PacketError> {
        let (tcp, protocol) = if packet.first().is_some_and(|byte| byte >> 4 == 4) {
            let (header, header_bytes, segment) = ipv4::Header::parse(packet)?;
            let pseudo =
                pseudo_v4(header.source, header.target, header.protocol, header.payload_bytes.into());
            let addresses = (header.source.into(), header.target.into());
            (Tcp { addresses, header_bytes, segment, pseudo }, header.protocol)
        } else {
            let (header, header_bytes, segment) = ipv6::Header::parse(packet)?;
            let pseudo =
                pseudo_v6(header.source, header.target, header.protocol, header.payload_bytes.into());
            let addresses = (header.source.into(), header.target.into());
            (Tcp { addresses, header_bytes, segment, pseudo }, header.protocol)
        };
        if protocol == ipv4::PROTOCOL_TCP { Ok(tcp) } else { Err(PacketError::Unsupported(Layer::Tcp)) }
    }
}

/// Replaces the pseudo-header's sum in the checksum's place by the checksum.
fn complete_checksum(segment: &mut [u8], pseudo: Sum) {
    let place = CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2;
    segment[place.clone()].fill(0);
    let check = pseudo.add_bytes(segment).finish();
    segment[place].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use spillway_wire::packet::tcp::{Flags, HEADER_BYTES, Options};

    use super::*;

    const LOCAL_PORT: u16 = 7000;
    const PEER_PORT: u16 = 40_000;
    const PAYLOAD: &[u8] = b"a request of an odd length.";

    /// A packet of the peer, and the offset of its TCP header.
    fn packet(is_ipv4: bool) -> (Vec<u8>, usize) {
        let header = Header {
            source: PEER_PORT,
            target: LOCAL_PORT,
            seq: 1,
            ack: 2,
            flags: Flags::ACK,
            window: 500,
            urgent: 0,
            options: Options::default(),
        };
        let length = (HEADER_BYTES + PAYLOAD.len()) as u16;
        let (mut packet, pseudo) = if is_ipv4 {
            let (peer, local) = addresses_v4();
            let mut head = [0; ipv4::HEADER_BYTES];
            ipv4::Header::new(peer, local, 6, length).emit(&mut head);
            (head.to_vec(), pseudo_v4(peer, local, 6, length.into()))
        } else {
            let (peer, local) = addresses_v6();
            let mut head = [0; ipv6::HEADER_BYTES];
            ipv6::Header::new(peer, local, 6, length).emit(&mut head);
            (head.to_vec(), pseudo_v6(peer, local, 6, length.into()))
        };
        let at = packet.len();
        packet.resize(at + HEADER_BYTES, 0);
        packet.extend(PAYLOAD);
        header.emit(&mut packet[at..], PAYLOAD.len(), pseudo);
        (packet, at)
    }

    fn addresses_v4() -> (Ipv4Addr, Ipv4Addr) {
        (Ipv4Addr::new(198, 51, 100, 7), Ipv4Addr::new(192, 0, 2, 2))
    }

    fn addresses_v6() -> (Ipv6Addr, Ipv6Addr) {
        ("2001:db8::7".parse().unwrap(), "2001:db8:1::2".parse().unwrap())
    }

    /// The packet as a sender on the same machine leaves it to the hardware.
    pub(crate) fn with_partial_checksum(packet: &[u8]) -> Vec<u8> {
        let Tcp { header_bytes, pseudo, .. } = Tcp::parse(packet).unwrap();
        let mut partial = packet.to_vec();
        let place = header_bytes + CHECKSUM_OFFSET..header_bytes + CHECKSUM_OFFSET + 2;
        partial[place].copy_from_slice(&(!pseudo.finish()).to_be_bytes());
        partial
    }

    fn read(packet: &[u8]) -> Result<Vec<u8>, PacketError> {
        Arrived::read(packet).map(|arrived| arrived.packet.into_owned())
    }

    #[test]
    fn padding_is_removed_and_nothing_else_changes() {
        for is_ipv4 in [true, false] {
            let (packet, _) = packet(is_ipv4);
            let arrived = Arrived::read(&packet).unwrap();
            assert_eq!((arrived.source.port(), arrived.target.port()), (PEER_PORT, LOCAL_PORT));
            assert_eq!(arrived.packet, packet);
            let padded = [&packet[..], &[0xee; 6]].concat();
            assert_eq!(read(&padded).unwrap(), packet);
        }
    }

    #[test]
    fn a_checksum_that_was_left_to_the_hardware_is_completed() {
        for is_ipv4 in [true, false] {
            let (whole, at) = packet(is_ipv4);
            let partial = with_partial_checksum(&whole);
            assert_ne!(partial[at..], whole[at..]);
            assert_eq!(read(&partial).unwrap(), whole);
        }
    }

    #[test]
    fn damaged_packets_are_refused_at_each_byte() {
        for is_ipv4 in [true, false] {
            let (whole, _) = packet(is_ipv4);
            for at in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                // The first bytes of an IPv6 header and its hop limit are in no checksum.
                if !is_ipv4 && matches!(at, 1..4 | 7) {
                    continue;
                }
                assert!(read(&damaged).is_err(), "byte {at}");
            }
            for length in 0..whole.len() {
                assert!(read(&whole[..length]).is_err(), "{length} bytes");
            }
        }
    }
}
