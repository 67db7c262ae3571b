//! Packets that were held at an interface for a connection, given to its socket.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname};
use spillway_wire::packet::checksum::{Sum, pseudo_v4, pseudo_v6};
use spillway_wire::packet::tcp::{Header, is_checksum_partial};
use spillway_wire::packet::{Layer, PacketError, ipv4, ipv6};

use crate::error::CaptureError;
use crate::inject::Injector;
use crate::peer_packet::PeerPacket;

/// Offset of the checksum in a TCP header.
const CHECKSUM_OFFSET: usize = 16;

/// Gives packets as they arrived at an interface to one socket.
#[derive(Debug)]
pub struct SocketInjector<'a> {
    injector: &'a Injector,
    local: SocketAddr,
    peer: SocketAddr,
}

/// Why a packet was not injected.
#[derive(Debug)]
pub enum InjectError {
    /// The packet is not one that TCP would accept: the fault lies with its sender or the network. The kernel would have dropped
    /// the packet, too.
    Packet(PacketError),
    /// The packet belongs to another connection than the socket.
    OtherConnection,
    /// A packet filter of this host has refused the packet at its output.
    Filtered,
    /// The kernel has not taken the packet.
    System(CaptureError),
}

impl fmt::Display for InjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InjectError::Packet(error) => write!(f, "a held packet is not valid: {error}"),
            InjectError::OtherConnection => f.write_str("a held packet belongs to another connection"),
            InjectError::Filtered => f.write_str(
                "a packet filter of this host refuses a held packet: packets of clients must be allowed to leave by `lo`",
            ),
            InjectError::System(source) => {
                write!(f, "a held packet was not given to its socket: {source}; `lo` must be up")
            }
        }
    }
}

impl std::error::Error for InjectError {}

impl From<PacketError> for InjectError {
    fn from(error: PacketError) -> InjectError {
        InjectError::Packet(error)
    }
}

impl Injector {
    /// For the held packets of one connected socket. Its local address is one of this host's, so no packet leaves the host.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn for_socket(&self, socket: &impl AsFd) -> io::Result<SocketInjector<'_>> {
        let local = SocketAddr::try_from(getsockname(socket)?)?;
        let peer = getpeername(socket)?.ok_or_else(|| io::Error::from(Errno::NOTCONN))?;
        let peer = SocketAddr::try_from(peer)?;
        Ok(SocketInjector { injector: self, local: canonical(local), peer: canonical(peer) })
    }
}

impl SocketInjector<'_> {
    /// Gives the socket a packet as it arrived at an interface, from its IP header on; padding may follow it. A checksum that a
    /// sender on the same machine, or the kernel's merging of packets, has left to the hardware is completed.
    ///
    /// # Errors
    /// The packet is damaged or of another connection, or a packet filter or the kernel refuses it. It was not delivered then.
    pub fn inject(&self, packet: &[u8]) -> Result<(), InjectError> {
        let packet = PeerPacket::read(check(packet, self.local, self.peer)?);
        match packet.and_then(|packet| self.injector.inject(&packet)) {
            Ok(()) => Ok(()),
            Err(CaptureError::System(_, error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(InjectError::Filtered)
            }
            Err(error) => Err(InjectError::System(error)),
        }
    }
}

/// Returns a packet of a connection without padding and with a complete checksum.
fn check(packet: &[u8], local: SocketAddr, peer: SocketAddr) -> Result<Cow<'_, [u8]>, InjectError> {
    let Tcp { addresses, header_bytes, segment, pseudo } = Tcp::parse(packet)?;
    if addresses != (peer.ip(), local.ip()) {
        return Err(InjectError::OtherConnection);
    }
    let mut complete = Cow::Borrowed(&packet[..header_bytes + segment.len()]);
    let header = match Header::parse(segment, pseudo) {
        Err(PacketError::Checksum(_)) if is_checksum_partial(segment, pseudo) => {
            let segment = &mut complete.to_mut()[header_bytes..];
            complete_checksum(segment, pseudo);
            Header::parse(segment, pseudo)?.0
        }
        parsed => parsed?.0,
    };
    if (header.source, header.target) != (peer.port(), local.port()) {
        return Err(InjectError::OtherConnection);
    }
    Ok(complete)
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

/// The address of an IPv4 connection as such, also if its socket is of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
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

    fn check(is_ipv4: bool, packet: &[u8]) -> Result<Vec<u8>, InjectError> {
        let (peer, local): (IpAddr, IpAddr) = if is_ipv4 {
            let (peer, local) = addresses_v4();
            (peer.into(), local.into())
        } else {
            let (peer, local) = addresses_v6();
            (peer.into(), local.into())
        };
        let ends = (SocketAddr::new(local, LOCAL_PORT), SocketAddr::new(peer, PEER_PORT));
        super::check(packet, ends.0, ends.1).map(Cow::into_owned)
    }

    #[test]
    fn padding_is_removed_and_nothing_else_changes() {
        for is_ipv4 in [true, false] {
            let (packet, _) = packet(is_ipv4);
            assert_eq!(check(is_ipv4, &packet).unwrap(), packet);
            let padded = [&packet[..], &[0xee; 6]].concat();
            assert_eq!(check(is_ipv4, &padded).unwrap(), packet);
        }
    }

    #[test]
    fn a_checksum_that_was_left_to_the_hardware_is_completed() {
        for is_ipv4 in [true, false] {
            let (whole, at) = packet(is_ipv4);
            let pseudo = Tcp::parse(&whole).unwrap().pseudo;
            let mut partial = whole.clone();
            let place = at + CHECKSUM_OFFSET..at + CHECKSUM_OFFSET + 2;
            partial[place].copy_from_slice(&(!pseudo.finish()).to_be_bytes());
            assert_ne!(partial, whole);
            assert_eq!(check(is_ipv4, &partial).unwrap(), whole);
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
                assert!(check(is_ipv4, &damaged).is_err(), "byte {at}");
            }
            for length in 0..whole.len() {
                assert!(check(is_ipv4, &whole[..length]).is_err(), "{length} bytes");
            }
        }
    }

    #[test]
    fn packets_of_other_connections_are_refused() {
        let (whole, at) = packet(true);
        // Two numbers of 16 bits change places, so the checksums stay right.
        let mut other_ports = whole.clone();
        other_ports[at..at + 4].rotate_left(2);
        let mut other_addresses = whole;
        other_addresses[12..20].rotate_left(4);
        for packet in [other_ports, other_addresses] {
            assert!(matches!(check(true, &packet), Err(InjectError::OtherConnection)));
        }
        assert!(check(false, &packet(true).0).is_err());
    }

    #[test]
    fn errors_say_what_to_do() {
        assert!(InjectError::Filtered.to_string().contains("`lo`"));
        let error = InjectError::Packet(PacketError::Checksum(Layer::Tcp));
        assert_eq!(error.to_string(), "a held packet is not valid: TCP: wrong checksum");
    }
}
