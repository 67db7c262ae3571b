//! The kernel's TCP sockets at local ports that the stack also uses (proc_net_tcp).

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

/// Tables of the calling thread's network namespace; `/proc/net` has those of the process's first thread.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

// States of a socket, from <net/tcp_states.h>.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

/// A TCP socket of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSocket {
    /// The local address; IPv4-mapped ones are converted to IPv4.
    pub local: SocketAddr,
    /// The peer's address; `None` for a listening socket.
    pub peer: Option<SocketAddr>,
}

impl fmt::Display for KernelSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{} connected to {peer}", self.local),
            None => write!(f, "{} listening", self.local),
        }
    }
}

/// The sockets whose packets a stack with these local ports and addresses would receive: listening and
/// connected ones on one of the addresses or on a wildcard address. Connections in TIME-WAIT are left out:
/// their process has closed them, and all their bytes have arrived. The kernel's tables do not contain
/// sockets that are only bound.
///
/// # Errors
/// The tables cannot be read.
pub(crate) fn sockets_at(ports: &RangeInclusive<u16>, addresses: &[IpAddr]) -> io::Result<Vec<KernelSocket>> {
    let mut found = Vec::new();
    for table in TABLES {
        match fs::read_to_string(table) {
            Ok(table) => found.extend(table.lines().filter_map(read_line)),
            // A kernel without IPv6 has no table of IPv6 sockets.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table == TABLES[1] => {}
            Err(error) => return Err(error),
        }
    }
    found.retain(|socket| is_in_the_way(socket, ports, addresses));
    found.sort_by_key(|socket| (socket.peer.is_some(), socket.local));
    Ok(found)
}

fn is_in_the_way(socket: &KernelSocket, ports: &RangeInclusive<u16>, addresses: &[IpAddr]) -> bool {
    let ip = socket.local.ip();
    ports.contains(&socket.local.port()) && (ip.is_unspecified() || addresses.contains(&ip))
}

/// Parses a line such as `0: 0100007F:1F90 00000000:0000 0A …`. `None` for the header and for TIME-WAIT.
fn read_line(line: &str) -> Option<KernelSocket> {
    let mut words = line.split_whitespace().skip(1);
    let (local, peer) = (read_address(words.next()?)?, read_address(words.next()?)?);
    match u8::from_str_radix(words.next()?, 16).ok()? {
        TIME_WAIT => None,
        LISTEN => Some(KernelSocket { local, peer: None }),
        _ => Some(KernelSocket { local, peer: Some(peer) }),
    }
}

/// Parses an address such as `0100007F:1F90`: IP address in 32-bit words of the host's byte order, and port.
fn read_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_of_the_kernels_tables_are_found_by_address_and_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let peer = TcpStream::connect(local).unwrap();
        let (_accepted, from) = listener.accept().unwrap();
        assert_eq!(from, peer.local_addr().unwrap());
        let at = |ip: &str| sockets_at(&(local.port()..=local.port()), &[ip.parse().unwrap()]).unwrap();
        let expected = [KernelSocket { local, peer: None }, KernelSocket { local, peer: Some(from) }];
        assert_eq!(at("127.0.0.1"), expected);
        assert_eq!(expected[0].to_string(), format!("{local} listening"));
        assert_eq!(expected[1].to_string(), format!("{local} connected to {from}"));
        assert_eq!(at("127.0.0.2"), [], "sockets at another address should not count");
        let elsewhere = sockets_at(&(1..=local.port() - 1), &["127.0.0.1".parse().unwrap()]).unwrap();
        assert!(elsewhere.iter().all(|socket| socket.local.port() != local.port()), "{elsewhere:?}");
    }

    #[test]
    fn wildcard_listeners_of_both_families_count() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let local = listener.local_addr().unwrap();
            let found = sockets_at(&(local.port()..=local.port()), &["192.0.2.1".parse().unwrap()]).unwrap();
            assert!(found.contains(&KernelSocket { local, peer: None }), "{found:?}");
        }
    }

    #[test]
    fn a_connection_in_time_wait_does_not_count() {
        if cfg!(target_endian = "big") {
            return;
        }
        let line = |state| format!("   3: 0200000A:F230 0900000A:0050 {state} 00000000:00000000 00:00000000");
        let socket = read_line(&line("01")).expect("a connection should count");
        assert_eq!(socket.to_string(), "10.0.0.2:62000 connected to 10.0.0.9:80");
        assert_eq!(read_line(&line("06")), None);
        assert_eq!(read_line("  sl  local_address rem_address   st tx_queue rx_queue"), None);
        let mapped = "0: 0000000000000000FFFF00000200000A:F230 00000000000000000000000000000000:0000 0A 0";
        assert_eq!(read_line(mapped).unwrap().to_string(), "10.0.0.2:62000 listening");
    }
}
