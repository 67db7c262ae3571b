//! Packets of one connection, given to its socket: those that were held at an interface, and those that another server forwards.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{getpeername, getsockname};
use spillway_wire::packet::PacketError;

use crate::arrived::Arrived;
use crate::error::CaptureError;
use crate::inject::Injector;
use crate::peer_packet::PeerPacket;

/// Gives packets to one socket, and refuses those of other connections.
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
            InjectError::OtherConnection => f.write_str("a packet belongs to another connection than its socket"),
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

impl PeerPacket {
    /// Reads a packet as it arrived at an interface, from its IP header on; padding may follow it. A checksum that was left to
    /// the hardware is completed.
    ///
    /// # Errors
    /// It is not a valid TCP packet.
    pub fn arrived(packet: &[u8]) -> Result<PeerPacket, InjectError> {
        PeerPacket::read(Arrived::read(packet)?.packet).map_err(InjectError::System)
    }
}

impl Injector {
    /// For the held and forwarded packets of one connected socket. Its local address is one of this host's, so no packet leaves the host.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn for_socket(&self, socket: &impl AsFd) -> io::Result<SocketInjector<'_>> {
        let local = SocketAddr::try_from(getsockname(socket)?)?;
        let peer = getpeername(socket)?.ok_or_else(|| io::Error::from(Errno::NOTCONN))?;
        let peer = SocketAddr::try_from(peer)?;
        Ok(self.for_connection(local, peer))
    }

    /// As [`for_socket`](Self::for_socket), by the connection's two ends. `local` must be an address of this host, which must
    /// have the connection: otherwise the kernel answers the packets by resets.
    pub fn for_connection(&self, local: SocketAddr, peer: SocketAddr) -> SocketInjector<'_> {
        SocketInjector { injector: self, local: canonical(local), peer: canonical(peer) }
    }
}

impl SocketInjector<'_> {
    /// Gives the socket a packet as it arrived at an interface, from its IP header on; padding may follow it. A checksum that a
    /// sender on the same machine, or the kernel's merging of packets, has left to the hardware is completed.
    ///
    /// # Errors
    /// The packet is damaged or of another connection, or a packet filter or the kernel refuses it. It was not delivered then.
    pub fn inject(&self, packet: &[u8]) -> Result<(), InjectError> {
        let packet = PeerPacket::read(check(packet, self.local, self.peer)?).map_err(InjectError::System)?;
        self.deliver(&packet)
    }

    /// Gives the socket a packet that another server has forwarded ([`Step::Forward`](crate::Step::Forward)). If this host has
    /// another address, [`PeerPacket::addressed_to`] comes first.
    ///
    /// # Errors
    /// The packet is of another connection, or a packet filter or the kernel refuses it. It was not delivered then.
    pub fn inject_forwarded(&self, packet: &PeerPacket) -> Result<(), InjectError> {
        if (packet.peer(), packet.local()) == (self.peer, self.local) {
            self.deliver(packet)
        } else {
            Err(InjectError::OtherConnection)
        }
    }

    fn deliver(&self, packet: &PeerPacket) -> Result<(), InjectError> {
        match self.injector.inject(packet) {
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
    let arrived = Arrived::read(packet)?;
    if (arrived.source, arrived.target) == (peer, local) {
        Ok(arrived.packet)
    } else {
        Err(InjectError::OtherConnection)
    }
}

/// The address of an IPv4 connection as such, also if its socket is of IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use spillway_wire::packet::Layer;

    use super::*;
    use crate::peer_packet::PeerSegment;

    #[test]
    fn packets_of_other_connections_are_refused() {
        let (local, peer) = ("192.0.2.2:7000".parse().unwrap(), "198.51.100.7:40000".parse().unwrap());
        let segment = PeerSegment { peer, local, seq: 1, ack: 2, has_fin: false, window: 5, stamps: None };
        let whole = PeerPacket::made(&segment, b"a request").unwrap().bytes().to_vec();
        assert_eq!(check(&whole, local, peer).unwrap(), whole);
        // Two numbers of 16 bits change places, so the checksums stay right.
        let mut other_ports = whole.clone();
        other_ports[20..24].rotate_left(2);
        let mut other_addresses = whole.clone();
        other_addresses[12..20].rotate_left(4);
        for packet in [other_ports, other_addresses] {
            assert!(matches!(check(&packet, local, peer), Err(InjectError::OtherConnection)));
        }
        let of_ipv6 = "[2001:db8::2]:7000".parse().unwrap();
        assert!(matches!(check(&whole, of_ipv6, peer), Err(InjectError::OtherConnection)));
    }

    #[test]
    fn forwarded_packets_are_compared_with_both_ends_of_the_socket() {
        let injector = match Injector::open() {
            Err(CaptureError::PermissionToInject) => {
                eprintln!("skipped: this test needs CAP_NET_RAW");
                return;
            }
            result => result.unwrap(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        let local = server.local_addr().unwrap();
        let socket = injector.for_socket(&server).unwrap();
        let forwarded = |local, peer| {
            let segment =
                PeerSegment { peer, local, seq: 1, ack: 2, has_fin: false, window: 5, stamps: None };
            socket.inject_forwarded(&PeerPacket::made(&segment, &[]).unwrap())
        };
        let other_port = |address: SocketAddr| SocketAddr::new(address.ip(), address.port() ^ 1);
        let other_host = |address: SocketAddr| SocketAddr::new([127, 0, 0, 2].into(), address.port());
        for (local, peer) in [
            (other_port(local), peer),
            (other_host(local), peer),
            (local, other_port(peer)),
            (local, other_host(peer)),
            (peer, local),
        ] {
            assert!(matches!(forwarded(local, peer), Err(InjectError::OtherConnection)), "{local} {peer}");
        }
        // The kernel ignores the numbers of this segment.
        forwarded(local, peer).unwrap();
        server.set_nonblocking(true).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn errors_say_what_to_do() {
        assert!(InjectError::Filtered.to_string().contains("`lo`"));
        let error = InjectError::Packet(PacketError::Checksum(Layer::Tcp));
        assert_eq!(error.to_string(), "a held packet is not valid: TCP: wrong checksum");
    }
}
