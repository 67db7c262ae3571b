//! TCP sockets as the kernel counts them (`NETLINK_SOCK_DIAG`): what `ss -ti` shows.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) inode: u32,
    pub(super) is_listening: bool,
    pub(super) local: SocketAddr,
    pub(super) counts: Counts,
}

/// Traffic of a connection since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) segments_in: u64,
    pub(super) segments_out: u64,
    /// Segments with data.
    pub(super) data_in: u64,
    pub(super) data_out: u64,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP_FLAGS: u16 = 0x301;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// `INET_DIAG_INFO`: the attribute with the kernel's `tcp_info`.
const INFO_ATTRIBUTE: u16 = 2;

const HEADER_BYTES: usize = 16;
/// Length of `inet_diag_msg`.
const MESSAGE_BYTES: usize = 72;
const REQUEST_BYTES: usize = HEADER_BYTES + 56; // the header and `inet_diag_req_v2`

/// All listening and established TCP sockets of this network namespace, by inode.
pub(super) fn all() -> io::Result<HashMap<u32, Socket>> {
    let mut found = HashMap::new();
    for family in [libc_family(AddressFamily::INET), libc_family(AddressFamily::INET6)] {
        dump(family, &mut found)?;
    }
    Ok(found)
}

fn libc_family(family: AddressFamily) -> u8 {
    family.as_raw() as u8 // AF_INET is 2, AF_INET6 is 10
}

fn dump(family: u8, found: &mut HashMap<u32, Socket>) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    sendto(&socket, &request(family), SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::TRUNC)?;
        if length == 0 || length > buffer.len() {
            return Err(io::Error::other("the kernel's list of sockets is truncated"));
        }
        let mut rest = &buffer[..length];
        while let Some((kind, body, next)) = message(rest) {
            rest = next;
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = i32::from_ne_bytes(array(body, 0).unwrap_or_default());
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => {
                    if let Some(socket) = parse(body) {
                        found.insert(socket.inode, socket);
                    }
                }
            }
        }
    }
}

fn request(family: u8) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[0..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&DUMP_FLAGS.to_ne_bytes());
    bytes[HEADER_BYTES] = family;
    bytes[HEADER_BYTES + 1] = TCP;
    bytes[HEADER_BYTES + 2] = 1 << (INFO_ATTRIBUTE - 1);
    let states: u32 = 1 << ESTABLISHED | 1 << LISTEN;
    bytes[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// The first netlink message's type and body, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(array(bytes, 0)?) as usize;
    let kind = u16::from_ne_bytes(array(bytes, 4)?);
    let body = bytes.get(HEADER_BYTES..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, next))
}

fn parse(body: &[u8]) -> Option<Socket> {
    let (family, state) = (*body.first()?, *body.get(1)?);
    let port = u16::from_be_bytes(array(body, 4)?);
    let ip = match family {
        2 => IpAddr::V4(Ipv4Addr::from(array::<4>(body, 8)?)),
        _ => IpAddr::V6(Ipv6Addr::from(array::<16>(body, 8)?)),
    };
    let inode = u32::from_ne_bytes(array(body, 68)?);
    let mut socket = Socket {
        inode,
        is_listening: state == LISTEN,
        local: SocketAddr::new(ip, port),
        counts: Counts::default(),
    };
    let mut rest = body.get(MESSAGE_BYTES..)?;
    while let Some(length) = array(rest, 0).map(|bytes| u16::from_ne_bytes(bytes) as usize) {
        let kind = u16::from_ne_bytes(array(rest, 2)?);
        let Some(value) = rest.get(4..length) else { break };
        if kind == INFO_ATTRIBUTE {
            socket.counts = counts(value);
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(socket)
}

/// Reads the counters at their offsets in `tcp_info`, to which newer kernels only append.
fn counts(info: &[u8]) -> Counts {
    let counter_64 = |offset| array(info, offset).map_or(0, u64::from_ne_bytes);
    let counter_32 = |offset| array(info, offset).map_or(0, |bytes| u64::from(u32::from_ne_bytes(bytes)));
    Counts {
        bytes_in: counter_64(128),
        bytes_out: counter_64(120),
        segments_in: counter_32(140),
        segments_out: counter_32(136),
        data_in: counter_32(152),
        data_out: counter_32(156),
    }
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

impl Counts {
    /// Traffic since `before`; the kernel's 32-bit counters wrap.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        let difference_32 = |now: u64, then: u64| u64::from((now as u32).wrapping_sub(then as u32));
        Counts {
            bytes_in: self.bytes_in.saturating_sub(before.bytes_in),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            segments_in: difference_32(self.segments_in, before.segments_in),
            segments_out: difference_32(self.segments_out, before.segments_out),
            data_in: difference_32(self.data_in, before.data_in),
            data_out: difference_32(self.data_out, before.data_out),
        }
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.segments_in += other.segments_in;
        self.segments_out += other.segments_out;
        self.data_in += other.data_in;
        self.data_out += other.data_out;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn inode(socket: &TcpStream) -> u32 {
        let fd = std::os::fd::AsRawFd::as_raw_fd(socket);
        std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino() as u32
    }

    #[test]
    fn sockets_of_both_address_families_are_counted() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: no socket at {address}");
                continue;
            };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"12345").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
            let all = all().unwrap();
            let socket = all[&inode(&server)];
            assert_eq!(socket.local, listener.local_addr().unwrap());
            assert_eq!((socket.counts.bytes_in, socket.counts.data_in, socket.counts.bytes_out), (5, 1, 0));
            assert!(!socket.is_listening);
        }
    }

    #[test]
    fn truncated_messages_do_not_panic() {
        let body = [7; MESSAGE_BYTES + 12];
        for length in 0..body.len() {
            let _ = parse(&body[..length]);
            let _ = message(&body[..length]);
        }
    }

    #[test]
    fn differences_of_wrapped_counters_are_right() {
        let before = Counts { data_in: u64::from(u32::MAX), bytes_in: 7, ..Counts::default() };
        let now = Counts { data_in: 4, bytes_in: 9, ..Counts::default() };
        assert_eq!(now.since(&before), Counts { data_in: 5, bytes_in: 2, ..Counts::default() });
    }
}
