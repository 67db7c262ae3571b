//! Free ports for servers that tests and experiments start and that cannot report a port which the kernel chose for
//! them; and [`SilentPeers`], which hold silent connections to a port.
//!
//! Port 0 does not work for such servers: between the kernel's choice and the server's `bind`, another test's server
//! or an outgoing connection may get the same port, and the first test then connects to the wrong server.

mod strangers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

pub use strangers::SilentPeers;

/// The range lies below Linux's default range of ports for outgoing connections (from 32,768).
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Returns a TCP port of `address` that is free now and that this process has not returned before; `None` if no port
/// is free. Another process may still bind the port first: a test that must not fail starts its server again with
/// another port.
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
/// If no port is free.
pub fn free_port() -> u16 {
    free_port_at(Ipv4Addr::LOCALHOST.into()).expect("a port is free")
}

/// [`free_port`] at IPv4 loopback: for a server that starts later, or as an address at which no server listens.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let mut given: Vec<u16> = Vec::new();
        for _ in 0..100 {
            let port = free_port();
            assert!(!given.contains(&port));
            given.push(port);
            // Another socket takes the next candidate.
            let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1));
            assert_ne!(free_port(), port + 1, "{taken:?}");
        }
    }
}
