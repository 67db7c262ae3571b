//! The user-level TCP stack with an application, on an interface and addresses that it shares with the kernel.

use std::borrow::BorrowMut;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};
use spillway_tcp::Stack;
use spillway_transport::{Application, Time};

use crate::driver::Endpoint;
use crate::hosted::Hosted;
use crate::interface::Interface;
use crate::neighbours::KernelNeighbours;

/// Bytes of an ICMP error with all that it may quote (RFC 1812 §4.3.2.3), and more.
const ICMP_BYTES_MAX: usize = 2048;
/// ICMP packets of one turn, so that a flood leaves time for frames.
const ICMP_PER_TURN: usize = 64;
/// Interval at which the kernel's messages are read while turns follow one another: each reading takes two system calls, as
/// much time as a message.
const READ_INTERVAL: Duration = Duration::from_millis(1);

/// A stack with the application that it serves. The kernel gets ARP and ICMP: next hops come from its tables, and its ICMP
/// errors also reach the stack. The stack's settings must have [`Resolver::Driver`](spillway_tcp::Resolver::Driver).
#[derive(Debug)]
pub struct Shared<A, S = Stack> {
    /// The stack and the application.
    pub hosted: Hosted<A, S>,
    neighbours: KernelNeighbours,
    /// A raw socket, which receives copies of this host's ICMP errors.
    icmp: OwnedFd,
    /// When to read the kernel's messages again.
    read_at: Time,
    /// The first error of the kernel's answers; the loop goes on without them.
    error: Option<io::Error>,
    buffer: Box<[u8]>,
}

impl<A: Application, S: BorrowMut<Stack>> Shared<A, S> {
    /// Connects a stack with the kernel of the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no CAP_NET_RAW, or no descriptors left.
    pub fn new(interface: &Interface, stack: S, application: A) -> io::Result<Shared<A, S>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let icmp = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
        receive_only_unreachable(&icmp)?;
        let neighbours = KernelNeighbours::open(interface)?;
        let buffer = vec![0; ICMP_BYTES_MAX].into_boxed_slice();
        let hosted = Hosted { stack, application };
        Ok(Shared { hosted, neighbours, icmp, read_at: Time::ZERO, error: None, buffer })
    }

    /// The first error of the system when it was asked for next hops, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Keeps the first error for [`take_error`](Self::take_error).
    pub(crate) fn keep_error(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
    }

    /// Passes the kernel's answers and ICMP errors to the stack.
    fn receive_from_kernel(&mut self, now: Time) -> io::Result<()> {
        while let Some(resolved) = self.neighbours.poll()? {
            if let IpAddr::V4(target) = resolved.target {
                self.hosted.stack.borrow_mut().set_next_hop(now, target, resolved.mac);
            }
        }
        for _ in 0..ICMP_PER_TURN {
            match recv(&self.icmp, &mut *self.buffer, RecvFlags::empty()) {
                Ok((_, length)) => {
                    let packet = &self.buffer[..length.min(ICMP_BYTES_MAX)];
                    self.hosted.stack.borrow_mut().handle_icmp_packet(now, packet);
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn ask_kernel(&mut self) -> io::Result<()> {
        while let Some(peer) = self.hosted.stack.borrow_mut().poll_next_hop_request() {
            self.neighbours.ask(peer.into())?;
            self.read_at = Time::ZERO; // the answer comes within microseconds, and a connection waits for it
        }
        Ok(())
    }
}

impl<A: Application, S: BorrowMut<Stack>> Endpoint for Shared<A, S> {
    fn begin_turn(&mut self, now: Time) {
        if now >= self.read_at {
            self.read_at = now + READ_INTERVAL;
            if let Err(error) = self.receive_from_kernel(now) {
                self.error.get_or_insert(error);
            }
        }
        self.hosted.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.hosted.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.hosted.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let length = self.hosted.poll_transmit(now, slot);
        if length.is_none()
            && let Err(error) = self.ask_kernel()
        {
            self.error.get_or_insert(error);
        }
        length
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.hosted.poll_timeout()
    }

    fn handle_wake(&mut self) {
        self.read_at = Time::ZERO;
    }

    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.neighbours.as_fd(), self.icmp.as_fd()].into_iter()
    }
}

/// `ICMP_FILTER` of <linux/icmp.h>: the types of ICMP messages that a raw socket does not receive, as bits.
const ICMP_FILTER: libc::c_int = 1;
/// The type *destination unreachable*, which is all that the stack acts on (RFC 792).
const UNREACHABLE: u32 = 3;

/// Leaves out all other ICMP messages, such as those of `ping`, so that they do not wake the thread.
fn receive_only_unreachable(icmp: &OwnedFd) -> io::Result<()> {
    let filtered: u32 = !(1 << UNREACHABLE);
    let length = size_of_val(&filtered) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the mask, which outlives the call.
    let result = unsafe {
        libc::setsockopt(icmp.as_raw_fd(), libc::SOL_RAW, ICMP_FILTER, (&raw const filtered).cast(), length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
