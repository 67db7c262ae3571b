//! Packets on behalf of the peer. A raw socket sends them to the host's own address: such packets keep their route over
//! `lo`, so the kernel does not check whether their source is plausible there, and processes them within the call.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::error::CaptureError;
use crate::peer_packet::PeerPacket;

/// Attempts to send a packet while the kernel is short of memory.
const ATTEMPTS: usize = 3;
/// Usual MTU of `lo`, less a byte that IPv4 packets cannot have.
const PACKET_BYTES_MAX: usize = 65_535;
/// The smallest MTU of an interface with IPv6, for hosts whose `lo` has an unusual one.
const PACKET_BYTES_MIN: usize = 1_280;

/// Raw sockets of the network namespace in which they were opened. One serves any number of connections.
#[derive(Debug)]
pub struct Injector {
    ipv4: OwnedFd,
    /// `None` on a kernel without IPv6.
    ipv6: Option<OwnedFd>,
}

impl Injector {
    /// Opens the sockets in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The process lacks CAP_NET_RAW, or the host has no file descriptors left.
    pub fn open() -> Result<Injector, CaptureError> {
        let open = |family| match raw_socket(family) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AFNOSUPPORT) => Ok(None),
            Err(Errno::PERM) => Err(CaptureError::PermissionToInject),
            Err(errno) => Err(CaptureError::System("open a raw socket", errno.into())),
        };
        let missing = || CaptureError::System("open a raw socket", Errno::AFNOSUPPORT.into());
        Ok(Injector {
            ipv4: open(AddressFamily::INET)?.ok_or_else(missing)?,
            ipv6: open(AddressFamily::INET6)?,
        })
    }

    /// Gives a packet to the socket of this host that has the packet's target as its address, as if the network had brought
    /// it. A packet that is longer than the MTU of `lo` is split.
    ///
    /// The packet's addresses are not compared with a connection: only for copies of the process's own sockets. For packets of
    /// other servers there is [`SocketInjector::inject_forwarded`](crate::SocketInjector::inject_forwarded).
    ///
    /// # Errors
    /// The kernel does not send the packet, for example because `lo` is down.
    pub fn inject(&self, packet: &PeerPacket) -> Result<(), CaptureError> {
        for piece in packet.split(PACKET_BYTES_MAX) {
            match self.send(&piece) {
                Err(Errno::MSGSIZE) => {
                    piece.split(PACKET_BYTES_MIN).iter().try_for_each(|piece| self.send(piece))
                }
                result => result,
            }
            .map_err(|errno| CaptureError::System("send a packet on behalf of the peer", errno.into()))?;
        }
        Ok(())
    }

    fn send(&self, packet: &PeerPacket) -> Result<(), Errno> {
        // Raw sockets do not use the port.
        let target = SocketAddr::new(packet.local().ip(), 0);
        let socket = if target.is_ipv4() { Some(&self.ipv4) } else { self.ipv6.as_ref() };
        let socket = socket.ok_or(Errno::AFNOSUPPORT)?;
        let mut result = Err(Errno::NOBUFS);
        for _ in 0..ATTEMPTS {
            result = sendto(socket, packet.bytes(), SendFlags::DONTWAIT, &target);
            if !matches!(result, Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result.map(|_| ())
    }
}

/// A socket for packets with their IP headers, which receives nothing.
fn raw_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))
}
