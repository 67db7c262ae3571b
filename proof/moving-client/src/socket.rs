//! Non-blocking TCP sockets of the kernel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::network::{Network, Stream};

/// The kernel's TCP, in the network namespace of the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

/// A TCP socket of the kernel.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Network for Kernel {
    type Stream = Socket;

    fn connect(&self, target: SocketAddr) -> io::Result<Socket> {
        let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match net::connect(&socket, &target) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Socket(socket)),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Socket {
    fn is_connected(&self) -> io::Result<bool> {
        sockopt::socket_error(&self.0)??;
        match net::getpeername(&self.0) {
            Ok(_) => Ok(true),
            Err(Errno::NOTCONN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(net::getsockname(&self.0)?.try_into()?)
    }

    #[inline]
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| net::send(&self.0, bytes, SendFlags::NOSIGNAL))
    }

    #[inline]
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| Ok(net::recv(&self.0, &mut *buffer, RecvFlags::empty())?.0))
    }

    fn receive_into(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        uninterrupted(|| Ok(net::recv(&self.0, spare_capacity(buffer), RecvFlags::empty())?.0))
    }

    fn peek(&self) -> io::Result<usize> {
        uninterrupted(|| Ok(net::recv(&self.0, &mut [0], RecvFlags::PEEK)?.0))
    }

    fn finish(&self) -> io::Result<()> {
        Ok(net::shutdown(&self.0, Shutdown::Write)?)
    }
}

/// Repeats a system call until no signal interrupts it.
fn uninterrupted(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}
