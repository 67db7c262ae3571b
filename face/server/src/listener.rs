//! The listening socket of the link port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::watch::Interest;

/// Maximum of connected links that wait in the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// Time without accepting after the process or the system ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// TCP keep-alive of links (RFC 9293, 3.8.4): a peer that lost power sends no FIN or RST, and sessions on its link would
/// never be detached.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;

#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    paused_until: Option<Instant>,
    pub(crate) watched: Option<Interest>,
}

pub(crate) struct Accepted {
    pub(crate) socket: OwnedFd,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Listener> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if reuse_port {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        // Accepted sockets inherit these options.
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE_AFTER)?;
        sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE_EVERY)?;
        sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_PROBES)?;
        net::bind(&socket, &address)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Listener { socket, paused_until: None, watched: None })
    }

    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(net::getsockname(&self.socket)?.try_into()?)
    }

    /// Accepts the next link; `None` if no link waits, or after a lack of descriptors or memory.
    pub(crate) fn accept(&mut self, now: Instant) -> Option<Accepted> {
        while self.paused_until.is_none() {
            match self.try_accept() {
                Ok(accepted) => return Some(accepted),
                Err(Errno::AGAIN) => return None,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.paused_until = Some(now + PAUSE);
                }
                // The connection failed before it was accepted, see accept(2): try the next one.
                Err(_) => {}
            }
        }
        None
    }

    fn try_accept(&self) -> Result<Accepted, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = net::acceptfrom_with(&self.socket, flags)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let peer = peer.ok_or(Errno::NOTCONN)?.try_into()?;
        let local = net::getsockname(&socket)?.try_into()?;
        Ok(Accepted { socket, peer, local })
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest { readable: self.paused_until.is_none(), writable: false }
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.paused_until
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn accepted_links_use_tcp_keep_alive() {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let _client = TcpStream::connect(listener.local_address().unwrap()).unwrap();
        let accepted = listener.accept(Instant::now()).unwrap();
        assert!(sockopt::socket_keepalive(&accepted.socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted.socket).unwrap(), KEEP_ALIVE_AFTER);
    }
}
