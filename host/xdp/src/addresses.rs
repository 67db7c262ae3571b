//! The addresses of an interface, from the kernel (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::interface::Interface;

/// Bytes of a part of the kernel's answer; the kernel sends as many parts as it needs.
const PART_BYTES_MAX: usize = 64 * 1024;

impl Interface {
    /// The addresses that the kernel has at this interface at present, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The system has failed.
    pub fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        AddressReader::open()?.addresses_of(self.index)
    }
}

/// Reads addresses of one network namespace.
#[derive(Debug)]
pub(crate) struct AddressReader {
    socket: Socket,
}

impl AddressReader {
    /// Opens a connection to the kernel, in the calling thread's network namespace.
    pub fn open() -> io::Result<AddressReader> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(AddressReader { socket })
    }

    /// The addresses at the interface with this number at present. Any thread may call it.
    pub fn addresses_of(&self, interface: u32) -> io::Result<Vec<IpAddr>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let mut request = NetlinkMessage::new(header, NetlinkPayload::from(all));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
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
fn read_part(interface: u32, mut messages: &[u8], addresses: &mut Vec<IpAddr>) -> io::Result<bool> {
    while !messages.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(messages) else {
            return Ok(true);
        };
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
        let length = (message.header.length as usize).next_multiple_of(4).max(4);
        messages = messages.get(length..).unwrap_or_default();
    }
    Ok(false)
}

/// The own address: on point-to-point links `Address` is the other end's, and `Local` this one's.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let of = |is_local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if is_local => Some(*address),
            AddressAttribute::Address(address) if !is_local => Some(*address),
            _ => None,
        })
    };
    of(true).or_else(|| of(false))
}
