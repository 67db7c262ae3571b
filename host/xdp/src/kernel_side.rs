//! What a stack needs from the kernel whose interface and addresses it shares: next hops, and copies of ICMP errors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrV6, SocketFlags, SocketType, ipproto, recv, recvfrom, socket_with,
};
use spillway_tcp::Stack;
use spillway_transport::Time;

use crate::interface::Interface;
use crate::neighbours::KernelNeighbours;

/// More than the longest ICMP error: 576 bytes for IPv4 (RFC 1812 §4.3.2.3), 1,280 for IPv6 (RFC 4443 §2.4).
const ICMP_BYTES_MAX: usize = 2048;
/// Maximum ICMP packets of each family in a turn, so that a flood leaves time for frames.
const ICMP_PER_TURN: usize = 64;
/// Interval at which the kernel's messages are read while turns follow one another. The system calls of a
/// read cost as much time as a message.
const READ_INTERVAL: Duration = Duration::from_millis(1);

/// The sockets to the kernel of a stack with [`Resolver::Driver`](spillway_tcp::Resolver::Driver). The kernel handles ARP,
/// neighbour discovery and ICMP: next hops come from its tables, and the stack gets copies of ICMP errors.
#[derive(Debug)]
pub struct KernelSide {
    neighbours: KernelNeighbours,
    icmp: IcmpSockets,
    read_at: Time,
    /// The first error of the sockets. The stack goes on without them.
    error: Option<io::Error>,
    buffer: Box<[u8]>,
}

impl KernelSide {
    /// Opens the sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no CAP_NET_RAW, or no file descriptors left.
    pub fn open(interface: &Interface) -> io::Result<KernelSide> {
        let (icmp, neighbours) = (IcmpSockets::open()?, KernelNeighbours::open(interface)?);
        let buffer = vec![0; ICMP_BYTES_MAX].into_boxed_slice();
        Ok(KernelSide { neighbours, icmp, read_at: Time::ZERO, error: None, buffer })
    }

    /// Returns the first error of the sockets, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    pub(crate) fn keep_error(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
    }

    /// Passes what the kernel has sent to the stack, at most once in a millisecond. Call it at the begin of each turn.
    pub fn receive(&mut self, now: Time, stack: &mut Stack) {
        if now >= self.read_at {
            self.read_at = now + READ_INTERVAL;
            if let Err(error) = self.try_receive(now, stack) {
                self.keep_error(error);
            }
        }
    }

    fn try_receive(&mut self, now: Time, stack: &mut Stack) -> io::Result<()> {
        while let Some(resolved) = self.neighbours.poll()? {
            stack.set_next_hop(now, resolved.target, resolved.mac);
        }
        self.icmp.receive(now, &mut self.buffer, stack)
    }

    /// Asks the kernel for next hops that the stack needs. Call it when the stack has no more frames to send.
    pub fn ask(&mut self, stack: &mut Stack) {
        while let Some(peer) = stack.poll_next_hop_request() {
            if let Err(error) = self.neighbours.ask(peer) {
                self.keep_error(error);
            }
            self.read_at = Time::ZERO; // a connection waits for the answer, which comes within microseconds
        }
    }

    /// One of [`wakes`](Self::wakes) is readable: the next [`receive`](Self::receive) reads at once.
    pub fn handle_wake(&mut self) {
        self.read_at = Time::ZERO;
    }

    /// Descriptors that are readable when the kernel has sent something.
    pub fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let icmp = [Some(&self.icmp.v4), self.icmp.v6.as_ref()].into_iter().flatten();
        std::iter::once(self.neighbours.as_fd()).chain(icmp.map(AsFd::as_fd))
    }
}

/// Raw sockets, which receive copies of the ICMP errors that arrive at this host.
#[derive(Debug)]
struct IcmpSockets {
    v4: OwnedFd,
    /// `None` on a kernel without IPv6.
    v6: Option<OwnedFd>,
}

impl IcmpSockets {
    fn open() -> io::Result<IcmpSockets> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let v4 = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        receive_only_unreachable(&v4)?;
        let v6 = match socket_with(AddressFamily::INET6, SocketType::RAW, flags, Some(ipproto::ICMPV6)) {
            Ok(socket) => Some(socket),
            Err(Errno::AFNOSUPPORT) => None,
            Err(errno) => return Err(errno.into()),
        };
        v6.as_ref().map_or(Ok(()), receive_only_errors)?;
        Ok(IcmpSockets { v4, v6 })
    }

    fn receive(&self, now: Time, buffer: &mut [u8], stack: &mut Stack) -> io::Result<()> {
        for _ in 0..ICMP_PER_TURN {
            match recv(&self.v4, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length)) => stack.handle_icmp_packet(now, &buffer[..length.min(buffer.len())]),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        let Some(v6) = &self.v6 else { return Ok(()) };
        for _ in 0..ICMP_PER_TURN {
            match recvfrom(v6, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length, source)) => {
                    let source = source.and_then(|address| SocketAddrV6::try_from(address).ok());
                    let Some(source) = source else { continue }; // cannot occur: an IPv6 socket has IPv6 peers
                    let message = &buffer[..length.min(buffer.len())];
                    stack.handle_icmpv6_message(now, *source.ip(), message);
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// `ICMP_FILTER` of <linux/icmp.h>: a bit for each type of ICMP message that a raw socket does not receive.
const ICMP_FILTER: libc::c_int = 1;
/// The type *destination unreachable* (RFC 792), the only one that the stack handles.
const UNREACHABLE: u32 = 3;

/// Filters out all other ICMP messages, such as those of `ping`, so that they do not wake the thread.
fn receive_only_unreachable(icmp: &OwnedFd) -> io::Result<()> {
    let filtered: u32 = !(1 << UNREACHABLE);
    set_filter(icmp, libc::SOL_RAW, ICMP_FILTER, &filtered)
}

/// `ICMPV6_FILTER` of <linux/icmpv6.h> (RFC 3542 §3.2): a bit for each of the 256 types.
const ICMPV6_FILTER: libc::c_int = 1;
/// *Destination unreachable* and *packet too big* (RFC 4443 §3), the only types that the stack handles.
const V6_UNREACHABLE: u32 = 1;
const V6_PACKET_TOO_BIG: u32 = 2;

/// Filters out all other ICMPv6 messages, such as those of neighbour discovery.
fn receive_only_errors(icmpv6: &OwnedFd) -> io::Result<()> {
    let mut filtered = [u32::MAX; 8];
    filtered[0] = !(1 << V6_UNREACHABLE | 1 << V6_PACKET_TOO_BIG);
    set_filter(icmpv6, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &filtered)
}

/// Sets a filter. `T` must be the kernel's structure: an integer or an array of integers.
fn set_filter<T: Copy>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    filter: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let filter: *const T = filter;
    // SAFETY: the kernel reads `length` bytes of the filter, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, filter.cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
