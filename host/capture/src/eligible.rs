//! Which sockets hold a connection that moves. All checks but the last leave the socket as it is; the last one needs repair
//! mode, and is made before the filter drops a segment.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, getpeername, getsockname, recv, sockopt};

use crate::diag;
use crate::error::{CaptureError, system};
use crate::filter;
use crate::info::{Info, KernelState};
use crate::refusal::Refusal;
use crate::system::{SO_BINDTOIFINDEX, TCP_AO_INFO, get, get_bytes};

/// A socket whose connection moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Eligible {
    /// The own address. IPv4 addresses of IPv6 sockets are converted to IPv4.
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// The application has ended the reading direction, though the peer has not finished.
    pub has_ended_reading: bool,
    /// The connection's timestamps count microseconds.
    pub has_microsecond_stamps: bool,
}

pub(crate) fn check(fd: &OwnedFd) -> Result<Eligible, CaptureError> {
    check_protocol(fd)?;
    let info = Info::read(fd)?;
    check_state(info.state)?;
    if info.has_ecn {
        return Err(Refusal::Ecn.into());
    }
    check_options(fd)?;
    filter::check(fd)?;
    check_signature(tcp_ao(fd))?;
    check_upper_layer(fd)?;
    let (local, peer) = addresses(fd)?;
    let cookie = sockopt::socket_cookie(fd).map_err(|errno| system("read SO_COOKIE")(errno.into()))?;
    if diag::has_md5(local, peer, cookie)? {
        return Err(Refusal::Signed("TCP-MD5").into());
    }
    let events = pending(fd).map_err(system("poll the socket"))?;
    if events.contains(PollFlags::PRI) {
        return Err(Refusal::Urgent.into());
    }
    let has_ended_reading = events.contains(PollFlags::RDHUP) && info.state != KernelState::CloseWait;
    let has_microsecond_stamps = info.has_microsecond_stamps;
    Ok(Eligible { local, peer, has_ended_reading, has_microsecond_stamps })
}

/// Refuses states that do not move.
pub(crate) fn check_state(state: KernelState) -> Result<(), CaptureError> {
    match state {
        KernelState::Listen => Err(Refusal::Listening.into()),
        KernelState::Other(name) => Err(Refusal::State(name).into()),
        KernelState::Established | KernelState::CloseWait | KernelState::FinWait1 | KernelState::FinWait2 => {
            Ok(())
        }
    }
}

/// Refuses members of a sockmap or sockhash. With no queue selected, the kernel's TCP rejects all reads in repair mode,
/// also of 0 bytes. The functions that such a map puts in place of TCP's return before that.
pub(crate) fn check_sockmap(fd: &OwnedFd) -> Result<(), CaptureError> {
    match recv(fd, &mut [0_u8; 0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(Errno::INVAL) => Ok(()),
        _ => Err(Refusal::SocketMap.into()),
    }
}

fn check_protocol(fd: &OwnedFd) -> Result<(), CaptureError> {
    let read = || -> io::Result<_> {
        Ok((sockopt::socket_domain(fd)?, sockopt::socket_type(fd)?, sockopt::socket_protocol(fd)?))
    };
    let (domain, kind, protocol) = match read() {
        Ok(all) => all,
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => return Err(Refusal::NotTcp.into()),
        Err(error) => return Err(CaptureError::System("read the socket's protocol", error)),
    };
    let number = protocol.map_or(0, |protocol| protocol.as_raw().get());
    if number == libc::IPPROTO_MPTCP as u32 {
        return Err(Refusal::Mptcp.into());
    }
    let is_ip = matches!(domain, AddressFamily::INET | AddressFamily::INET6);
    let is_tcp = is_ip && kind == SocketType::STREAM && number == libc::IPPROTO_TCP as u32;
    if is_tcp { Ok(()) } else { Err(Refusal::NotTcp.into()) }
}

fn check_options(fd: &OwnedFd) -> Result<(), CaptureError> {
    if sockopt::socket_reuseport(fd).map_err(|errno| system("read SO_REUSEPORT")(errno.into()))? {
        return Err(Refusal::ReusePort.into());
    }
    // Kernels before 6.9 return an offset for TCP, too, but ignore it.
    match get::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF) {
        Ok(offset) if offset >= 0 => return Err(Refusal::PeekOffset.into()),
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(CaptureError::System("read SO_PEEK_OFF", error)),
    }
    match get::<libc::c_int>(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Refusal::Interface.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        Err(error) => Err(CaptureError::System("read SO_BINDTOIFINDEX", error)),
    }
}

/// `struct tcp_ao_info_opt` of <linux/tcp.h>, with room for later fields. A kernel without TCP-AO, or a connection without
/// it, is an error.
fn tcp_ao(fd: &OwnedFd) -> io::Result<usize> {
    get_bytes(fd, libc::IPPROTO_TCP, TCP_AO_INFO, &mut [0; 128])
}

fn check_signature(ao: io::Result<usize>) -> Result<(), CaptureError> {
    match ao {
        Ok(_) => Err(Refusal::Signed("TCP-AO").into()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT)) => Ok(()),
        Err(error) => Err(CaptureError::System("read TCP_AO_INFO", error)),
    }
}

fn check_upper_layer(fd: &OwnedFd) -> Result<(), CaptureError> {
    let mut name = [0; 16];
    match get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name) {
        Ok(length) => check_upper_layer_name(name.get(..length).unwrap_or(&name)),
        // Linux before 4.13 has no upper layer protocols.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        Err(error) => Err(CaptureError::System("read TCP_ULP", error)),
    }
}

/// `name` is empty, or ends with zero bytes.
fn check_upper_layer_name(name: &[u8]) -> Result<(), CaptureError> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    if name.is_empty() {
        Ok(())
    } else {
        Err(Refusal::UpperLayer(String::from_utf8_lossy(name).into_owned()).into())
    }
}

fn addresses(fd: &OwnedFd) -> Result<(SocketAddr, SocketAddr), CaptureError> {
    let read = || -> io::Result<_> { Ok((getsockname(fd)?, getpeername(fd)?)) };
    let (local, peer) = read().map_err(system("read the socket's addresses"))?;
    let (Ok(local), Some(Ok(peer))) = (SocketAddr::try_from(local), peer.map(SocketAddr::try_from)) else {
        return Err(Refusal::NotTcp.into());
    };
    let is_link_local =
        |address: SocketAddr| matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local());
    if is_link_local(local) || is_link_local(peer) {
        return Err(Refusal::Interface.into());
    }
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Ok((canonical(local), canonical(peer)))
}

fn pending(fd: &OwnedFd) -> io::Result<PollFlags> {
    let mut polled = [PollFd::new(fd, PollFlags::PRI | PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<(), CaptureError>) -> Option<Refusal> {
        match result {
            Err(CaptureError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    /// For what this machine's kernel may lack: TCP-AO and upper layer protocols.
    #[test]
    fn answers_of_kernels_with_more_features_are_understood() {
        assert_eq!(refused(check_signature(Ok(56))), Some(Refusal::Signed("TCP-AO")));
        for absent in [libc::ENOENT, libc::ENOPROTOOPT] {
            assert!(check_signature(Err(io::Error::from_raw_os_error(absent))).is_ok());
        }
        assert!(check_signature(Err(io::Error::from_raw_os_error(libc::EINVAL))).is_err());
        let tls = check_upper_layer_name(b"tls\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(refused(tls), Some(Refusal::UpperLayer("tls".into())));
        assert!(check_upper_layer_name(b"").is_ok());
        assert!(check_upper_layer_name(&[0; 16]).is_ok());
    }
}
