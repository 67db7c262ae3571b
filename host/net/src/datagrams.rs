//! Receives a datagram, such as a library client's load query to a helper, and answers it from the datagram's
//! destination address.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::sys::{allow_free_bind, set_int};

/// Maximum bytes of a query; longer datagrams are ignored.
pub const QUERY_BYTES_MAX: usize = 256;
/// Space for several hundred load queries: the kernel counts about 800 bytes for each.
const RECEIVE_BUFFER_BYTES: usize = 512 << 10;
/// Space for one control message with an address.
const CONTROL_BYTES: usize = 64;

/// A UDP socket bound to this address. If `is_shared`, other sockets may be bound to the address as well; with `free_bind`,
/// this host need not have the address.
pub fn bind(address: SocketAddr, is_shared: bool, free_bind: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if is_shared {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if free_bind {
        allow_free_bind(&fd)?;
    }
    if address.ip().is_unspecified() {
        // The answer's source must be the query's destination; without this option the kernel would choose one.
        let (level, option) = match address {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        };
        set_int(&fd, level, option, 1)?;
    }
    // Many clients may send load queries at once. The host limits the size to rmem_max.
    sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER_BYTES)?;
    rustix::net::bind(&fd, &address)?;
    Ok(fd)
}

/// A buffer with the alignment of control messages.
#[repr(align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

/// Receives one datagram and sends the reply. `answer` receives the sender's address, the query and a buffer as long
/// as the query, and returns the reply's length; 0 sends nothing. Returns `false` if no datagram was waiting.
pub fn exchange(
    fd: &OwnedFd,
    answer: impl FnOnce(SocketAddr, &[u8], &mut [u8]) -> usize,
) -> io::Result<bool> {
    let mut bytes = [0_u8; QUERY_BYTES_MAX];
    let mut control = Control([MaybeUninit::uninit(); CONTROL_BYTES]);
    // SAFETY: `sockaddr_storage` consists of integers, for which all-zero bytes are valid.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut buffer_part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `msghdr` consists of integers and raw pointers, for which all-zero bytes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
    message.msg_iov = &raw mut buffer_part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: all buffers that `message` points to outlive the call and have the lengths that it states.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let Ok(length) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) };
    };
    let Some(from) = socket_address(&name).filter(|_| message.msg_flags & libc::MSG_TRUNC == 0) else {
        return Ok(true);
    };
    let mut reply = [0_u8; QUERY_BYTES_MAX];
    let reply_space = &mut reply[..length.min(QUERY_BYTES_MAX)];
    let written = answer(from, &bytes[..reply_space.len()], reply_space).min(reply_space.len());
    if written == 0 {
        return Ok(true);
    }
    // Name and control message are reused: the reply goes to the sender, from the address that received the query.
    let_route_choose_interface(&mut message);
    buffer_part = libc::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: written };
    message.msg_iov = &raw mut buffer_part;
    message.msg_flags = 0;
    // SAFETY: as for `recvmsg`; the control messages are those that the kernel wrote, or none.
    unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    // A reply that cannot be sent is lost, as any datagram may be.
    Ok(true)
}

/// Removes the receiving interface from the control message, because the route to the sender may use another one.
fn let_route_choose_interface(message: &mut libc::msghdr) {
    // SAFETY: the kernel has written `msg_controllen` bytes of complete control messages; the macros stay within them.
    // The data of a message is as long as its header says, which is checked before the data is read or written.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null() {
            return;
        }
        let data = libc::CMSG_DATA(header);
        let length = (*header).cmsg_len;
        match ((*header).cmsg_level, (*header).cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO)
                if length >= libc::CMSG_LEN(size_of::<libc::in_pktinfo>() as u32) as usize =>
            {
                let mut info: libc::in_pktinfo = data.cast::<libc::in_pktinfo>().read_unaligned();
                info.ipi_ifindex = 0;
                info.ipi_spec_dst = info.ipi_addr;
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                if length >= libc::CMSG_LEN(size_of::<libc::in6_pktinfo>() as u32) as usize =>
            {
                let mut info: libc::in6_pktinfo = data.cast::<libc::in6_pktinfo>().read_unaligned();
                // A link-local address is valid only with its interface.
                if !Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                    info.ipi6_ifindex = 0;
                    data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                }
            }
            _ => message.msg_controllen = 0,
        }
    }
}

fn socket_address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let start: *const libc::sockaddr_storage = name;
    match libc::c_int::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: `sockaddr_storage` has size and alignment for every address; the family is that of `sockaddr_in`.
            let address = unsafe { &*start.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as for IPv4.
            let address = unsafe { &*start.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(address.sin6_port)))
        }
        _ => None,
    }
}
