//! For tests and experiments: free ports for servers that cannot report which port the kernel has chosen for them, and
//! [`SilentPeers`], which hold silent connections to a port.
//!
//! A test cannot find such a port by binding port 0 and closing the socket: before its server binds the port, another
//! test's server or an outgoing connection may get it, and the test then connects to the wrong server.

mod silent_peers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

pub use silent_peers::SilentPeers;

/// First port of the range, which lies below Linux's default range for outgoing connections (from 32,768).
const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 20_000;

/// Returns a TCP port of `address` that is free now and that this process has not returned before; `None` if no port
/// is free. Another process may still bind the port first: a test that must not fail starts its server again with
/// another port.
pub fn free_port_at(address: IpAddr) -> Option<u16> {
    static NEXT_OFFSET: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    (0..PORTS)
        .map(|_| start.wrapping_add(NEXT_OFFSET.fetch_add(1, Ordering::Relaxed)) % PORTS + FIRST_PORT)
        .map(|port| u16::try_from(port).expect("ports of the range are below 30,000"))
        .find(|port| TcpListener::bind((address, *port)).is_ok())
}

/// A free port of IPv4 loopback: see [`free_port_at`].
///
/// # Panics
///
/// If no port is free.
pub fn free_port() -> u16 {
    free_port_at(Ipv4Addr::LOCALHOST.into()).expect("a port between 10,000 and 30,000 is free on loopback")
}

/// IPv4 loopback and a [`free_port`]: for a server that starts later, or as an address at which no server listens.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_ports_differ_and_are_free() {
        let mut returned: Vec<u16> = Vec::new();
        for _ in 0..100 {
            let port = free_port();
            assert!(!returned.contains(&port));
            returned.push(port);
            // Another socket binds the next candidate.
            let next_candidate = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1));
            assert_ne!(free_port(), port + 1, "{next_candidate:?}");
        }
    }
}
