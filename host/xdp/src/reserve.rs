//! Sockets that keep the kernel's programs from a port of the stack.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// Binds a socket that keeps other programs from a port, unless they run as the same user and set
/// SO_REUSEPORT. The socket sets SO_REUSEPORT because each thread binds one and [`BoundListener`](spillway_net::BoundListener) sets it. It
/// does not set SO_REUSEADDR: another program with that option could then listen at the port, and its clients
/// would get no answer. The kernel has no connections in TIME-WAIT at the stack's port, so the option is not
/// needed.
///
/// # Errors
/// Another program has the port, or the process has no file descriptors left.
pub fn reserve(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Listeners of `std` set SO_REUSEADDR, as most servers do.
    #[test]
    fn a_reserved_port_is_refused_to_servers_with_reuseaddr() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(chosen) = TcpListener::bind(any) else { continue };
            let address = chosen.local_addr().unwrap();
            drop(chosen);
            let of_threads = [reserve(address).unwrap(), reserve(address).unwrap()];
            let error = TcpListener::bind(address).expect_err("the port should be reserved");
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            drop(of_threads);
            TcpListener::bind(address).expect("the port should be free again");
        }
    }

    /// As in a helper, which first binds its listener with SO_REUSEADDR.
    #[test]
    fn a_port_is_reserved_once_its_first_socket_is_closed() {
        let config = spillway_net::Config::default();
        let bound = spillway_net::Listeners::bind(&[([127, 0, 0, 1], 0).into()], 2, &config).unwrap();
        let address = bound.addresses()[0];
        let reserved = reserve(address).unwrap();
        drop(bound);
        let error = TcpListener::bind(address).expect_err("the port should be reserved");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(reserved);
    }
}
