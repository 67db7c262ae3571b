//! Socket addresses: one byte for the family (0 for none, 4 or 6), then port and address in network order.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::cursor::Cursor;
use crate::error::ControlError;

pub(crate) fn emit(address: Option<SocketAddr>, out: &mut Vec<u8>) {
    let Some(address) = address else {
        out.push(0);
        return;
    };
    out.push(if address.is_ipv4() { 4 } else { 6 });
    out.extend_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
}

pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Option<SocketAddr>, ControlError> {
    let ip_of = |family, cursor: &mut Cursor<'_>| -> Result<IpAddr, ControlError> {
        match family {
            4 => Ok(IpAddr::V4(Ipv4Addr::from(cursor.array::<4>()?))),
            6 => Ok(IpAddr::V6(Ipv6Addr::from(cursor.array::<16>()?))),
            other => Err(ControlError::AddressFamily(other)),
        }
    };
    match cursor.u8()? {
        0 => Ok(None),
        family => {
            let port = cursor.u16()?;
            Ok(Some(SocketAddr::new(ip_of(family, cursor)?, port)))
        }
    }
}
