//! Which sockets hold a connection that moves. Most checks leave the socket as it is; that for sockmaps needs repair
//! mode, and is made, with the one that depends on it, before the filter drops a segment.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketType, getpeername, getsockname, recv, sockopt};

use crate::diag::{Diagnosed, Diagnosis};
use crate::error::{CaptureError, system};
use crate::filter;
use crate::info::{Info, KernelState};
use crate::movable::{check_length, check_state, check_urgent};
use crate::refusal::Refusal;
use crate::system::{SO_BINDTOIFINDEX, TCP_AO_INFO, UNREAD, get, get_bytes, queued};

/// A socket whose connection moves.
#[derive(Clone, Debug)]
pub(crate) struct Eligible {
    /// The own address. IPv4 addresses of IPv6 sockets are converted to IPv4.
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub cookie: u64,
    pub diagnosed: Diagnosed,
}

pub(crate) fn check(diagnosis: &mut Diagnosis, fd: &OwnedFd) -> Result<Eligible, CaptureError> {
    check_protocol(fd)?;
    let (local, peer) = addresses(fd)?;
    let cookie = sockopt::socket_cookie(fd).map_err(|errno| system("read SO_COOKIE")(errno.into()))?;
    let diagnosed = diagnosis.of(local, peer, cookie).map_err(|error| explain_missing(error, fd))?;
    check_diagnosed(&diagnosed)?;
    check_options(fd)?;
    filter::check(fd)?;
    check_signature(tcp_ao(fd))?;
    check_upper_layer(fd)?;
    check_urgent(fd)?;
    Ok(Eligible { local, peer, cookie, diagnosed })
}

impl Eligible {
    /// The application has ended the reading direction, though the peer has not finished.
    pub(crate) fn has_ended_reading(&self) -> bool {
        self.diagnosed.has_ended_reading && self.diagnosed.info.state() != KernelState::CloseWait
    }
}

/// The kernel's diagnosis finds sockets that are bound to an interface only by the interface's number.
fn explain_missing(error: CaptureError, fd: &OwnedFd) -> CaptureError {
    let is_bound =
        || get::<libc::c_int>(fd, libc::SOL_SOCKET, SO_BINDTOIFINDEX).is_ok_and(|index| index != 0);
    if matches!(error, CaptureError::Refused(Refusal::NotFound)) && is_bound() {
        Refusal::Interface.into()
    } else {
        error
    }
}

fn check_diagnosed(diagnosed: &Diagnosed) -> Result<(), CaptureError> {
    check_state(diagnosed.info.state())?;
    if diagnosed.info.has_ecn {
        return Err(Refusal::Ecn.into());
    }
    if diagnosed.has_md5 {
        return Err(Refusal::Signed("TCP-MD5").into());
    }
    check_length(diagnosed.longest_queue)
}

/// Refuses members of a sockmap or sockhash. With no queue selected, the kernel's TCP rejects all reads in repair mode,
/// also of 0 bytes. The functions that such a map puts in place of TCP's return before that.
pub(crate) fn check_sockmap(fd: &OwnedFd) -> Result<(), CaptureError> {
    match recv(fd, &mut [0_u8; 0][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(Errno::INVAL) => Ok(()),
        _ => Err(Refusal::SocketMap.into()),
    }
}

/// Refuses a connection whose urgent byte was read by MSG_OOB, while the bytes before it were not: POLLPRI is clear then, and
/// the byte's place in the queue still ends every read, so the bytes behind it could not be exported. Follows
/// [`check_sockmap`]: SIOCINQ of a sockmap's member counts the map's own bytes.
pub(crate) fn check_urgent_mark(fd: &OwnedFd, diagnosed: &Diagnosed) -> Result<(), CaptureError> {
    let readable = queued(fd, UNREAD).map_err(system("read the length of the receive queue"))?;
    check_hidden(diagnosed, readable)
}

/// `readable`: SIOCINQ, which ends at the place of an urgent byte, too, and leaves out a FIN.
fn check_hidden(diagnosed: &Diagnosed, readable: u32) -> Result<(), CaptureError> {
    // Bytes that arrive between the two readings make `readable` larger.
    let hidden = diagnosed.receive_queue.saturating_sub(readable);
    let fin = u32::from(diagnosed.info.state() == KernelState::CloseWait);
    if hidden > fin { Err(Refusal::Urgent.into()) } else { Ok(()) }
}

/// The socket's family is that of its addresses, and is checked there.
fn check_protocol(fd: &OwnedFd) -> Result<(), CaptureError> {
    let read = || -> io::Result<_> { Ok((sockopt::socket_type(fd)?, sockopt::socket_protocol(fd)?)) };
    let (kind, protocol) = match read() {
        Ok(both) => both,
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => return Err(Refusal::NotTcp.into()),
        Err(error) => return Err(CaptureError::System("read the socket's protocol", error)),
    };
    let number = protocol.map_or(0, |protocol| protocol.as_raw().get());
    if number == libc::IPPROTO_MPTCP as u32 {
        return Err(Refusal::Mptcp.into());
    }
    let is_tcp = kind == SocketType::STREAM && number == libc::IPPROTO_TCP as u32;
    if is_tcp { Ok(()) } else { Err(Refusal::NotTcp.into()) }
}

fn check_options(fd: &OwnedFd) -> Result<(), CaptureError> {
    if sockopt::socket_reuseport(fd).map_err(|errno| system("read SO_REUSEPORT")(errno.into()))? {
        return Err(Refusal::ReusePort.into());
    }
    // Kernels before 6.9 return an offset for TCP, too, but ignore it.
    match get::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF) {
        Ok(offset) if offset >= 0 => Err(Refusal::PeekOffset.into()),
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        Err(error) => Err(CaptureError::System("read SO_PEEK_OFF", error)),
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
    let unread = system("read the socket's addresses");
    let local = match getsockname(fd) {
        Ok(local) => local,
        Err(errno) => return Err(unread(errno.into())),
    };
    let peer = match getpeername(fd) {
        Ok(peer) => peer,
        Err(Errno::NOTCONN) => {
            check_state(Info::read(fd)?.state())?;
            return Err(unread(Errno::NOTCONN.into()));
        }
        Err(errno) => return Err(unread(errno.into())),
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(result: Result<(), CaptureError>) -> Option<Refusal> {
        match result {
            Err(CaptureError::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }

    #[test]
    fn bytes_that_no_read_reaches_are_refused() {
        let mut diagnosed = Diagnosed {
            info: Info::default(),
            has_md5: false,
            congestion_control: None,
            send_buffer: 0,
            receive_buffer: 0,
            has_ended_reading: false,
            longest_queue: 7,
            receive_queue: 7,
        };
        let urgent = Some(Refusal::Urgent);
        assert_eq!(refused(check_hidden(&diagnosed, 7)), None);
        assert_eq!(refused(check_hidden(&diagnosed, 8)), None, "a byte has arrived meanwhile");
        assert_eq!(refused(check_hidden(&diagnosed, 3)), urgent);
        assert_eq!(refused(check_hidden(&diagnosed, 6)), urgent);
        diagnosed.info.progress.state = KernelState::CloseWait;
        assert_eq!(refused(check_hidden(&diagnosed, 6)), None, "the FIN is not readable");
        assert_eq!(refused(check_hidden(&diagnosed, 5)), urgent);
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
