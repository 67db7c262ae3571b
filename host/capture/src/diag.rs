//! What only the kernel's diagnosis reveals about a connection (sock_diag(7)): whether its segments are signed by TCP-MD5.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with,
};

use crate::error::{CaptureError, system};
use crate::refusal::Refusal;

// Numbers of <linux/netlink.h>, <linux/sock_diag.h> and <linux/inet_diag.h>.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Length of `struct inet_diag_msg`, which attributes follow.
const MESSAGE_BYTES: usize = 72;
const INET_DIAG_MD5SIG: u16 = 18;
/// Asks for INET_DIAG_INFO: without it the kernel leaves out the attributes of TCP, too.
const WITH_INFO: u8 = 1 << 1;
/// Memory for an answer. MD5 keys of a listening socket could need more, but those of a connection are few.
const ANSWER_BYTES: usize = 8192;

/// Whether the segments of the connection are signed by TCP-MD5. Only a process with CAP_NET_ADMIN learns that.
///
/// # Errors
/// The connection is not in this thread's network namespace, or the kernel has no diagnosis of TCP.
pub(crate) fn has_md5(local: SocketAddr, peer: SocketAddr, cookie: u64) -> Result<bool, CaptureError> {
    let answer =
        ask(&request(local, peer, cookie)).map_err(system("ask the kernel for the socket's diagnosis"))?;
    match u16_at(&answer, 4) {
        Some(SOCK_DIAG_BY_FAMILY) => Ok(attributes(&answer).any(|kind| kind == INET_DIAG_MD5SIG)),
        Some(NLMSG_ERROR) => Err(Refusal::NotFound.into()),
        _ => Err(CaptureError::System(
            "read the socket's diagnosis",
            io::Error::other("the answer has an unknown form"),
        )),
    }
}

fn ask(request: &[u8]) -> io::Result<Vec<u8>> {
    let protocol = Some(netlink::SOCK_DIAG);
    let socket: OwnedFd =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    sendto(&socket, request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; ANSWER_BYTES];
    // The kernel answers within the call of `sendto`.
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    answer.truncate(length);
    Ok(answer)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`: the headers in the host's order, ports and addresses in the network's.
fn request(local: SocketAddr, peer: SocketAddr, cookie: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    out.extend_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    out.extend_from_slice(&[0; 8]); // sequence number, port
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    out.extend_from_slice(&[family as u8, libc::IPPROTO_TCP as u8, WITH_INFO, 0]);
    out.extend_from_slice(&u32::MAX.to_ne_bytes()); // any state
    out.extend_from_slice(&local.port().to_be_bytes());
    out.extend_from_slice(&peer.port().to_be_bytes());
    for address in [local.ip(), peer.ip()] {
        match address {
            IpAddr::V4(address) => {
                out.extend_from_slice(&address.octets());
                out.extend_from_slice(&[0; 12]);
            }
            IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
        }
    }
    out.extend_from_slice(&[0; 4]); // interface
    out.extend_from_slice(&(cookie as u32).to_ne_bytes());
    out.extend_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    debug_assert_eq!(out.len(), REQUEST_BYTES, "the request has the kernel's length");
    out
}

/// Kinds of the attributes of an answer.
fn attributes(answer: &[u8]) -> impl Iterator<Item = u16> {
    let mut at = HEADER_BYTES + MESSAGE_BYTES;
    std::iter::from_fn(move || {
        let (length, kind) = (u16_at(answer, at)?, u16_at(answer, at + 2)?);
        // Attributes begin at multiples of four bytes; a length below that of the attribute's header ends the walk.
        at += usize::from(length).next_multiple_of(4);
        (length >= 4).then_some(kind)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_walked_and_damaged_ones_end_the_walk() {
        let mut answer = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        for (kind, length) in [(8_u16, 5_u16), (INET_DIAG_MD5SIG, 4)] {
            answer.extend_from_slice(&length.to_ne_bytes());
            answer.extend_from_slice(&kind.to_ne_bytes());
            answer.resize(answer.len() + usize::from(length).next_multiple_of(4) - 4, 0);
        }
        assert_eq!(attributes(&answer).collect::<Vec<_>>(), [8, INET_DIAG_MD5SIG]);
        answer.extend_from_slice(&[0; 4]);
        assert_eq!(attributes(&answer).count(), 2);
        assert_eq!(attributes(&answer[..answer.len() - 5]).count(), 1);
        assert_eq!(attributes(&[]).count(), 0);
    }
}
