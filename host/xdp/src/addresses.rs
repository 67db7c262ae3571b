//! The addresses of an interface, from the kernel (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::interface::Interface;
use crate::netlink;

/// Buffer for one datagram of the kernel's answer, which may have several.
const PART_BYTES_MAX: usize = 64 * 1024;

impl Interface {
    /// The kernel's present addresses on this interface, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The system has failed.
    pub fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        Ok(self.networks()?.into_iter().map(|(address, _)| address).collect())
    }

    /// As [`addresses`](Self::addresses), each with the length of its prefix in bits.
    ///
    /// # Errors
    /// The system has failed.
    pub fn networks(&self) -> io::Result<Vec<(IpAddr, u8)>> {
        AddressReader::open()?.networks_of(self.index)
    }
}

#[derive(Debug)]
pub(crate) struct AddressReader {
    socket: Socket,
}

impl AddressReader {
    /// Opens a socket to the kernel, in the calling thread's network namespace.
    pub fn open() -> io::Result<AddressReader> {
        Ok(AddressReader { socket: netlink::connect(NETLINK_ROUTE)? })
    }

    /// The present addresses of the interface with this index, each with the length of its prefix in bits.
    pub fn networks_of(&self, interface: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        netlink::send(&self.socket, all, NLM_F_REQUEST | NLM_F_DUMP, 0)?;
        let mut addresses = Vec::new();
        let mut part = Vec::with_capacity(PART_BYTES_MAX);
        loop {
            part.clear();
            self.socket.recv(&mut part, 0)?;
            if read_part(interface, &part, &mut addresses)? {
                return Ok(addresses);
            }
        }
    }
}

/// Adds the addresses of one part of the answer. Returns whether it was the last part.
fn read_part(interface: u32, part: &[u8], addresses: &mut Vec<(IpAddr, u8)>) -> io::Result<bool> {
    for message in netlink::messages(part) {
        // A kind of address that the library does not know.
        let Ok(message) = message else { continue };
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewAddress(found))
                if found.header.index == interface =>
            {
                addresses.extend(own_address(&found));
            }
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            _ => {}
        }
    }
    Ok(false)
}

/// This end's address and the length of its prefix. On point-to-point links `Local` is this end's address;
/// `Address` and the prefix are the other end's.
fn own_address(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let of = |is_local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if is_local => Some(*address),
            AddressAttribute::Address(address) if !is_local => Some(*address),
            _ => None,
        })
    };
    let (local, address) = (of(true), of(false));
    let own = local.or(address)?;
    let is_point_to_point = address.is_some_and(|address| address != own);
    let prefix = match own {
        IpAddr::V4(_) if is_point_to_point => 32,
        IpAddr::V6(_) if is_point_to_point => 128,
        _ => message.header.prefix_len,
    };
    Some((own, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_point_to_point_link_is_not_the_own_ones() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let found = |attributes| {
            let mut message = AddressMessage::default();
            message.header.prefix_len = 16;
            message.attributes = attributes;
            own_address(&message)
        };
        let (own, other) = (ip("10.77.0.1"), ip("10.77.0.2"));
        let (local, address) = (AddressAttribute::Local(own), AddressAttribute::Address(own));
        assert_eq!(found(vec![address.clone(), local.clone()]), Some((own, 16)));
        assert_eq!(found(vec![address]), Some((own, 16)));
        assert_eq!(
            found(vec![AddressAttribute::Address(other), local]),
            Some((own, 32)),
            "the prefix of 16 bits is the other end's and should not be used"
        );
        assert_eq!(found(vec![]), None);
    }
}
