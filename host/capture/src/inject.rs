//! Segments on behalf of the peer. A raw socket sends them to the host's own address: such packets keep their route over
//! `lo`, so the kernel does not check whether their source is plausible there, and processes them within the call.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use spillway_wire::packet::checksum::{pseudo_v4, pseudo_v6};
use spillway_wire::packet::tcp::{Flags, HEADER_BYTES, Header, Options};
use spillway_wire::packet::{ipv4, ipv6};

use crate::error::CaptureError;

/// Attempts to send a segment while the kernel is short of memory.
const ATTEMPTS: usize = 3;

/// Raw sockets of the network namespace in which they were opened. One serves any number of connections.
#[derive(Debug)]
pub struct Injector {
    ipv4: OwnedFd,
    /// `None` on a kernel without IPv6.
    ipv6: Option<OwnedFd>,
}

/// A segment without data or options. Without a timestamp the kernel does not compare it with TS.Recent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerSegment {
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub has_fin: bool,
    pub window: u16,
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

    pub(crate) fn send(&self, segment: &PeerSegment) -> Result<(), CaptureError> {
        let (packet, target) = segment.packet()?;
        let socket = if target.is_ipv4() { Some(&self.ipv4) } else { self.ipv6.as_ref() };
        let unsupported =
            || CaptureError::System("send a segment on behalf of the peer", Errno::AFNOSUPPORT.into());
        let socket = socket.ok_or_else(unsupported)?;
        let mut result = Err(Errno::NOBUFS);
        for _ in 0..ATTEMPTS {
            result = sendto(socket, &packet, SendFlags::DONTWAIT, &target);
            if !matches!(result, Err(Errno::NOBUFS | Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        match result {
            Ok(_) => Ok(()),
            Err(errno) => Err(CaptureError::System("send a segment on behalf of the peer", errno.into())),
        }
    }
}

/// A socket for packets with their IP headers, which receives nothing.
fn raw_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))
}

impl PeerSegment {
    /// The packet, and the address to send it to, whose port raw sockets do not use.
    fn packet(&self) -> Result<(Vec<u8>, SocketAddr), CaptureError> {
        let flags = if self.has_fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
        let header = Header {
            source: self.peer.port(),
            target: self.local.port(),
            seq: self.seq,
            ack: self.ack,
            flags,
            window: self.window,
            urgent: 0,
            options: Options::default(),
        };
        let (length, protocol) = (HEADER_BYTES as u16, ipv4::PROTOCOL_TCP);
        let mut packet;
        match (self.peer.ip(), self.local.ip()) {
            (IpAddr::V4(peer), IpAddr::V4(local)) => {
                let mut head = [0; ipv4::HEADER_BYTES];
                ipv4::Header::new(peer, local, protocol, length).emit(&mut head);
                packet = head.to_vec();
                packet.resize(head.len() + HEADER_BYTES, 0);
                header.emit(&mut packet[head.len()..], 0, pseudo_v4(peer, local, protocol, length.into()));
            }
            (IpAddr::V6(peer), IpAddr::V6(local)) => {
                let mut head = [0; ipv6::HEADER_BYTES];
                ipv6::Header::new(peer, local, protocol, length).emit(&mut head);
                packet = head.to_vec();
                packet.resize(head.len() + HEADER_BYTES, 0);
                header.emit(&mut packet[head.len()..], 0, pseudo_v6(peer, local, protocol, length.into()));
            }
            _ => return Err(CaptureError::Contradiction("addresses of two families")),
        }
        Ok((packet, SocketAddr::new(self.local.ip(), 0)))
    }
}
