//! ARP probes, which find out whether another host has an address (RFC 5227 §2.1.1).

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

/// PROBE_NUM of RFC 5227 §1.1.
const PROBES: u32 = 3;
/// Time for the answer to each probe. Shorter than the RFC's, because hosts of a datacenter answer within milliseconds.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// More than the 60 bytes of a padded frame with an ARP packet.
const FRAME_BYTES: usize = 128;

/// Sends probes for an address on an interface's network, and returns the Ethernet address of a host that has
/// the address. Returns `None` after 300 ms without an answer. Call it before attaching an XDP program to the
/// interface: the program would take the answers away from this socket.
///
/// # Errors
/// The process has no CAP_NET_RAW, or the system has failed.
pub fn find_holder(interface: &Interface, ip: Ipv4Addr) -> io::Result<Option<Mac>> {
    let socket = arp_socket(interface)?;
    let probe = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: interface.mac,
        // Other hosts must not store this sender in their ARP caches (RFC 5227 §2.1.1).
        sender_ip: Ipv4Addr::UNSPECIFIED,
        target_mac: Mac::ZERO,
        target_ip: ip,
    };
    let frame = probe.frame(Mac::BROADCAST);
    for _ in 0..PROBES {
        send(&socket, &frame, SendFlags::empty())?;
        let until = Instant::now() + ANSWER_TIME;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let is_readable = poll_with(&[], Some(left), &[socket.as_fd()])?.is_woken;
            if !is_readable {
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

/// The Ethernet address of an ARP packet's sender, if it has the address `ip` or probes it as well (RFC 5227 §2.1.1).
fn holder(frame: &[u8], ip: Ipv4Addr) -> Option<Mac> {
    let (header, packet) = ethernet::Header::parse(frame).ok()?;
    let packet = (header.kind == ethernet::KIND_ARP).then(|| arp::Packet::parse(packet).ok())??;
    let is_probe = packet.operation == arp::Operation::Request
        && (packet.sender_ip, packet.target_ip) == (Ipv4Addr::UNSPECIFIED, ip);
    (packet.sender_ip == ip || is_probe).then_some(packet.sender_mac)
}

fn arp_socket(interface: &Interface) -> io::Result<OwnedFd> {
    let protocol = ethernet::KIND_ARP.to_be();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // The protocol is given to bind(2) only: with a protocol from the start, the socket would receive packets of all
    // interfaces before bind(2) (packet(7)).
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

#[cfg(test)]
mod tests {
    use super::*;

    const IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);

    fn frame(operation: arp::Operation, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Vec<u8> {
        let (sender_mac, target_mac) = (Mac([4; 6]), Mac::ZERO);
        let packet = arp::Packet { operation, sender_mac, sender_ip, target_mac, target_ip };
        packet.frame(Mac::BROADCAST).into()
    }

    #[test]
    fn a_host_that_has_the_address_or_probes_it_is_its_holder() {
        let none = Ipv4Addr::UNSPECIFIED;
        for (operation, sender, target, is_holder) in [
            (arp::Operation::Reply, IP, none, true),
            (arp::Operation::Request, IP, OTHER, true),
            (arp::Operation::Request, none, IP, true),
            (arp::Operation::Request, none, OTHER, false),
            (arp::Operation::Request, OTHER, IP, false),
            (arp::Operation::Reply, OTHER, IP, false),
        ] {
            let found = holder(&frame(operation, sender, target), IP);
            assert_eq!(found.is_some(), is_holder, "{operation:?} of {sender} for {target}");
        }
        assert_eq!(holder(&[], IP), None);
    }
}
