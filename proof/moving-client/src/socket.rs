//! Non-blocking TCP sockets.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

pub(crate) fn start_connect(target: SocketAddr) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match net::connect(&socket, &target) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether a connect has succeeded. Returns the connect's error if it has failed.
pub(crate) fn is_connected(socket: &OwnedFd) -> io::Result<bool> {
    sockopt::socket_error(socket)??;
    match net::getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    Ok(net::getsockname(socket)?.try_into()?)
}

pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Receives bytes and returns their number; 0 is the end of the stream.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    receive_with(socket, buffer, RecvFlags::empty())
}

/// Receives into uninitialized memory. An empty slice is the end of the stream.
pub(crate) fn receive_into<'a>(
    socket: &OwnedFd,
    space: &'a mut [MaybeUninit<u8>],
) -> io::Result<&'a mut [u8]> {
    Ok(net::recv(socket, space, RecvFlags::empty())?.0.0)
}

fn receive_with(socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match net::recv(socket, &mut *buffer, flags) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?.0),
        }
    }
}

/// The result that `receive` would return; leaves the bytes in the socket.
pub(crate) fn peek(socket: &OwnedFd) -> io::Result<usize> {
    receive_with(socket, &mut [0], RecvFlags::PEEK)
}

pub(crate) fn finish(socket: &OwnedFd) -> io::Result<()> {
    Ok(net::shutdown(socket, Shutdown::Write)?)
}

pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
