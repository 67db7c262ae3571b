//! Local sockets: TCP and UNIX, non-blocking.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};

/// Length of a listener's queue of clients; the kernel adds one.
pub(crate) const BACKLOG: i32 = 1024;
/// Silence after which the kernel sends TCP keep-alive probes to a client.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Listens on a TCP address. IPv6 sockets accept IPv6 only, so that both families can listen on one port.
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

pub(crate) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

/// Accepts a connection. The address is `None` for a UNIX socket. `WouldBlock`: the queue is empty.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, peer) = net::acceptfrom_with(listener, flags)?;
    let peer = peer.and_then(|peer: SocketAddrAny| SocketAddr::try_from(peer).ok());
    if peer.is_some() {
        // Replies are small; Nagle's algorithm would delay them.
        sockopt::set_tcp_nodelay(&socket, true)?;
        // Detects clients whose hosts have failed: their connections would count against max_connections.
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
    }
    Ok((socket, peer))
}

/// Receives the available bytes; 0: the client has finished sending.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?.0),
        }
    }
}

/// Sends as many bytes as the socket accepts. Returns their number.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

pub(crate) fn finish(socket: &OwnedFd) {
    // Fails only when the connection is already lost; the next read reports that.
    let _ = net::shutdown(socket, Shutdown::Write);
}

/// Makes closing the socket send a TCP reset. No effect on UNIX sockets, which have no reset.
pub(crate) fn reset_on_close(socket: &OwnedFd) {
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

/// Whether the call must be repeated when the socket is ready.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
