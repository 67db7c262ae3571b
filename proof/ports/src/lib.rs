//! Free ports for the servers that tests and experiments start, where a server cannot choose its own and tell it; and
//! [`Strangers`], who keep such servers busy.
//!
//! Port 0 will not do for them: between the kernel's choice and the server's `bind`, another test's server or
//! outgoing connection may get the same port, and the first test then talks to the other's server.

mod strangers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

pub use strangers::Strangers;

/// Below the ports that Linux gives to outgoing connections by default (from 32,768).
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// A TCP port of an address of this host that nobody uses at this moment, and that this process has not been given
/// before; `None` when none is free. Another process may still be faster: a server that must not fail is started again
/// with another.
pub fn free_port_at(address: IpAddr) -> Option<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    (0..COUNT)
        .map(|_| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST)
        .map(|port| u16::try_from(port).expect("below 30,000"))
        .find(|port| TcpListener::bind((address, *port)).is_ok())
}

/// [`free_port_at`] IPv4 loopback.
///
/// # Panics
///
/// When none is free.
pub fn free_port() -> u16 {
    free_port_at(Ipv4Addr::LOCALHOST.into()).expect("a port is free")
}

/// [`free_port`] at IPv4 loopback: for a server to come, or for nobody ever to listen there.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_none_that_is_taken_is_given() {
        let mut given: Vec<u16> = Vec::new();
        for _ in 0..100 {
            let port = free_port();
            assert!(!given.contains(&port));
            given.push(port);
            // The next one in line is taken by a stranger.
            let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1));
            assert_ne!(free_port(), port + 1, "{stranger:?}");
        }
    }
}
