//! Netlink sockets and the messages on them (netlink(7)).

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// Opens a socket of a netlink protocol, such as `NETLINK_ROUTE`, in the calling thread's network namespace.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

pub(crate) fn send<M>(socket: &Socket, message: M, flags: u16, sequence: u32) -> io::Result<()>
where
    M: NetlinkSerializable + Into<NetlinkPayload<M>> + Debug,
{
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, message.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// The messages of one datagram. An error is the last item: the library could not parse the message.
pub(crate) fn messages<M>(
    mut datagram: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<M>, DecodeError>> + '_
where
    M: NetlinkDeserializable + Debug + 'static,
{
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let message = NetlinkMessage::<M>::deserialize(datagram);
        let length = message.as_ref().map_or(datagram.len(), |message| message.header.length as usize);
        datagram = datagram.get(length.next_multiple_of(4).max(4)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::address::AddressMessage;

    use super::*;

    #[test]
    fn messages_of_a_datagram_end_with_the_first_unknown_one() {
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
        message.finalize();
        let mut one = vec![0; message.buffer_len()];
        message.serialize(&mut one);
        let read = |datagram: &[u8]| {
            messages::<RouteNetlinkMessage>(datagram).map(|message| message.is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(read(&[&one[..], &one].concat()), [true, true]);
        assert_eq!(read(&[&one[..], &[9; 3], &one].concat()), [true, false]);
        assert_eq!(read(&[]), []);
    }
}
