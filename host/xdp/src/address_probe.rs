//! Whether another host has an address: ARP probes (RFC 5227 §2.1.1).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socket_with};
use spillway_wire::packet::arp;
use spillway_wire::packet::ethernet::{self, Mac};

use crate::device::poll_with;
use crate::interface::Interface;

/// Probes (PROBE_NUM of RFC 5227 §1.1).
const PROBES: u32 = 3;
/// Time for the answer to each probe. Shorter than the RFC's, because hosts of a datacenter answer within milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Bytes of a frame with an ARP packet, and more.
const FRAME_BYTES: usize = 128;

/// Asks for an address on an interface's network, for at most 300 ms. Returns the Ethernet address of the host that has it, if one
/// answers. Call it before the interface has a steering program.
///
/// # Errors
/// The process has no CAP_NET_RAW, or the system has failed.
pub fn find_holder(interface: &Interface, ip: Ipv4Addr) -> io::Result<Option<Mac>> {
    let socket = arp_socket(interface)?;
    let header = ethernet::Header { target: Mac::BROADCAST, source: interface.mac, kind: ethernet::KIND_ARP };
    let probe = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: interface.mac,
        // Hosts do not take the sender of a probe for the address's holder.
        sender_ip: Ipv4Addr::UNSPECIFIED,
        target_mac: Mac::ZERO,
        target_ip: ip,
    };
    let (mut head, mut body) = ([0; ethernet::HEADER_BYTES], [0; arp::BYTES]);
    header.emit(&mut head);
    probe.emit(&mut body);
    let frame = [&head[..], &body].concat();
    for _ in 0..PROBES {
        send(&socket, &frame, SendFlags::empty())?;
        let until = Instant::now() + ANSWER_TIME;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if !poll_with(&[], Some(left), &[socket.as_fd()])?.is_woken {
                break;
            }
            let mut received = [0; FRAME_BYTES];
            let length = match recv(&socket, &mut received[..], RecvFlags::empty()) {
                Ok((_, length)) => length.min(FRAME_BYTES),
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if let Some(mac) = holder(&received[..length], ip).filter(|mac| *mac != interface.mac) {
                return Ok(Some(mac));
            }
        }
    }
    Ok(None)
}

/// The sender of an ARP packet that says that it has the address.
fn holder(frame: &[u8], ip: Ipv4Addr) -> Option<Mac> {
    let (header, packet) = ethernet::Header::parse(frame).ok()?;
    let packet = (header.kind == ethernet::KIND_ARP).then(|| arp::Packet::parse(packet).ok())??;
    (packet.sender_ip == ip).then_some(packet.sender_mac)
}

/// A socket for the ARP packets of an interface.
fn arp_socket(interface: &Interface) -> io::Result<OwnedFd> {
    let protocol = ethernet::KIND_ARP.to_be();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol it receives nothing before it is bound to the interface.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None::<Protocol>)?;
    // SAFETY: `sockaddr_ll` consists of integers, for which all-zero bytes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol;
    address.sll_ifindex = i32::try_from(interface.index).map_err(io::Error::other)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the address, which outlives the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}
