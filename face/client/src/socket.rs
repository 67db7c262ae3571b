//! Non-blocking TCP sockets.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// Starts to connect, from `local_port` if it is free.
pub(crate) fn start_from(target: SocketAddr, local_port: Option<u16>) -> io::Result<OwnedFd> {
    match local_port.and_then(|port| connect(target, Some(port)).ok()) {
        Some(socket) => Ok(socket),
        None => connect(target, None),
    }
}

fn connect(target: SocketAddr, local_port: Option<u16>) -> io::Result<OwnedFd> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if let Some(port) = local_port {
        let unspecified: IpAddr =
            if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        net::bind(&socket, &SocketAddr::new(unspecified, port))?;
    }
    match net::connect(&socket, &target) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether the socket has connected. `Err`: connecting has failed.
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

/// Sends a prefix of `bytes`, and returns its length.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Receives into uninitialised memory. An empty result is the end of the stream.
pub(crate) fn receive_into<'a>(
    socket: &OwnedFd,
    space: &'a mut [MaybeUninit<u8>],
) -> io::Result<&'a mut [u8]> {
    Ok(net::recv(socket, space, RecvFlags::empty())?.0.0)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn socket_uses_another_port_if_the_requested_one_is_taken() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(loopback) else {
                println!("skipped: no socket at {loopback}");
                continue;
            };
            let target = listener.local_addr().unwrap();
            // A port number that is free for UDP is nearly always free for TCP.
            let is_from_requested_port = (0..20).any(|_| {
                let port = UdpSocket::bind(loopback).unwrap().local_addr().unwrap().port();
                let socket = start_from(target, Some(port)).unwrap();
                local_address(&socket).unwrap().port() == port
            });
            assert!(is_from_requested_port, "one of 20 sockets should use the requested port");
            let other = start_from(target, Some(target.port())).unwrap();
            assert_ne!(local_address(&other).unwrap().port(), target.port());
        }
    }
}
