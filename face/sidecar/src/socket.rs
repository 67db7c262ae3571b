//! Local sockets: TCP and UNIX, non-blocking.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// A client that says nothing for so long is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Listens. IPv6 addresses take IPv6 only, so that both families can be listened on at one port.
pub(crate) fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Where a socket listens.
pub(crate) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

/// A new connection, and whose it is; `None` for a UNIX socket's. `WouldBlock` when there is none.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = net::acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer: SocketAddrAny| SocketAddr::try_from(peer).ok());
    if peer.is_some() {
        // Requests are small, and each waits for its reply.
        sockopt::set_tcp_nodelay(&socket, true)?;
        // One whose host is gone does not keep its place for ever.
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
    }
    Ok((socket, peer))
}

/// Receives what has come; 0 is the end.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?.0),
        }
    }
}

/// Sends a prefix.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Sends no more.
pub(crate) fn finish(socket: &OwnedFd) {
    // It fails where the other end is gone, which reading tells as well.
    let _ = net::shutdown(socket, Shutdown::Write);
}

/// Has the closing of a TCP connection reset it. A UNIX one just closes: it has no reset.
pub(crate) fn reset_on_close(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Whether an error only means: later.
pub(crate) fn is_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
