//! Conversion of socket addresses between Rust and C, and the address of the link port.

use core::mem::{size_of, zeroed};
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::ptr::copy_nonoverlapping;

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// The address of the link port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// `None` for all addresses.
    pub host: Option<IpAddr>,
    /// TCP port.
    pub port: u16,
}

impl core::fmt::Display for LinkAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.host {
            Some(host) => SocketAddr::new(host, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// The C form of an address, with its length.
pub(crate) fn to_c(address: SocketAddr) -> (sockaddr_storage, socklen_t) {
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let out = (&raw mut storage).cast::<sockaddr_in>();
            // SAFETY: a sockaddr_storage is large enough and aligned for every socket address.
            unsafe {
                (*out).sin_family = libc::AF_INET as libc::sa_family_t;
                (*out).sin_port = v4.port().to_be();
                (*out).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let out = (&raw mut storage).cast::<sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*out).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*out).sin6_port = v6.port().to_be();
                (*out).sin6_addr.s6_addr = v6.ip().octets();
                (*out).sin6_flowinfo = v6.flowinfo();
                (*out).sin6_scope_id = v6.scope_id();
            }
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// The Rust form of a C address; `None` if it is not an IP address.
pub(crate) fn from_c(storage: &sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family names the type, and a sockaddr_storage is larger than that.
            let v4 = unsafe { &*core::ptr::from_ref(storage).cast::<sockaddr_in>() };
            let ip = v4.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*core::ptr::from_ref(storage).cast::<sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// The address as a socket of this family reports it: IPv4-mapped for an IPv6 socket, plain IPv4 for an IPv4 socket.
pub(crate) fn in_family(address: SocketAddr, family: c_int) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if family == libc::AF_INET6 => {
            SocketAddr::V6(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0))
        }
        SocketAddr::V6(v6) if family == libc::AF_INET => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::V4(SocketAddrV4::new(v4, v6.port())),
            None => address,
        },
        _ => address,
    }
}

/// Fills the caller's buffer like `accept` and `getpeername`: truncates to `*length`, and stores the full length.
///
/// # Safety
/// `out` is null or has `*length` writable bytes, and `length` is then valid.
pub(crate) unsafe fn fill(address: SocketAddr, out: *mut sockaddr, length: *mut socklen_t) {
    if out.is_null() || length.is_null() {
        return;
    }
    let (storage, full) = to_c(address);
    // SAFETY: at most `*length` bytes are written, which the caller vouches for.
    unsafe {
        let count = (*length).min(full) as usize;
        copy_nonoverlapping((&raw const storage).cast::<u8>(), out.cast::<u8>(), count);
        *length = full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive_a_round_trip() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_c(&to_c(address).0), Some(address));
        }
        let mapped = in_family("192.0.2.1:80".parse().unwrap(), libc::AF_INET6);
        assert_eq!(mapped.to_string(), "[::ffff:192.0.2.1]:80");
        assert_eq!(in_family(mapped, libc::AF_INET).to_string(), "192.0.2.1:80");
    }

    #[test]
    fn address_is_truncated_to_a_short_buffer() {
        let mut bytes = [0xaau8; 16];
        let mut length: socklen_t = 4;
        // SAFETY: the buffer has sixteen bytes, of which four are offered.
        unsafe { fill("10.0.0.1:7".parse().unwrap(), bytes.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(length, 16);
        assert_eq!(&bytes[4..], [0xaa; 12]);
    }
}
