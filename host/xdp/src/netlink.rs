//! Netlink sockets and the messages on them (netlink(7)).

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of `nlmsghdr` of <linux/netlink.h>.
const HEADER_BYTES: usize = 16;

/// Opens a socket of a netlink protocol, such as `NETLINK_ROUTE`, in the calling thread's network namespace.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel answers at once. If an answer were not understood, the program would wait for the next one for ever.
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
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

/// The messages of one datagram. An error stands for a message that the library cannot parse; it is the last item if the
/// message's length is wrong, too.
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
        let length = message_length(datagram).unwrap_or(datagram.len());
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The length in bytes of the first message of a datagram, as its header states it.
fn message_length(datagram: &[u8]) -> Option<usize> {
    let length = usize::try_from(u32::from_ne_bytes(*datagram.first_chunk()?)).ok()?;
    (HEADER_BYTES..=datagram.len()).contains(&length).then_some(length)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::address::AddressMessage;

    use super::*;

    #[test]
    fn messages_that_cannot_be_parsed_are_skipped_by_their_length() {
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetAddress(AddressMessage::default()));
        message.finalize();
        let mut one = vec![0; message.buffer_len()];
        message.serialize(&mut one);
        let read = |datagram: &[u8]| {
            messages::<RouteNetlinkMessage>(datagram).map(|message| message.is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(read(&[&one[..], &one].concat()), [true, true]);
        assert_eq!(read(&[&one[..], &[9; 3], &one].concat()), [true, false]);
        // A message about an address, without its body.
        let mut short = one.clone();
        short.truncate(HEADER_BYTES);
        short[..4].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
        assert_eq!(read(&[&one[..], &short, &one].concat()), [true, false, true]);
        assert_eq!(read(&[]), []);
    }
}
