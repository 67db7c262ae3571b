//! System calls of AF_XDP sockets (Documentation/networking/af_xdp.rst).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::mapping::Mapping;

/// A packet in the receive or transmit ring: offset in the shared memory, and length in bytes.
pub(super) type Descriptor = libc::xdp_desc;

/// The kernel's counters of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Received packets dropped for reasons other than those below, for example too long for a frame.
    pub dropped: u64,
    /// Received packets dropped because the receive ring was full.
    pub ring_full: u64,
    /// Times at which the kernel found no free frame in the fill ring for a packet.
    pub fill_ring_empty: u64,
    /// Descriptors in the fill ring that the kernel refused.
    pub invalid_receive: u64,
    /// Descriptors in the transmit ring that the kernel refused.
    pub invalid_transmit: u64,
    /// Times at which the kernel found the transmit ring empty.
    pub transmit_ring_empty: u64,
}

impl std::ops::Add for Statistics {
    type Output = Statistics;

    fn add(self, other: Statistics) -> Statistics {
        Statistics {
            dropped: self.dropped + other.dropped,
            ring_full: self.ring_full + other.ring_full,
            fill_ring_empty: self.fill_ring_empty + other.fill_ring_empty,
            invalid_receive: self.invalid_receive + other.invalid_receive,
            invalid_transmit: self.invalid_transmit + other.invalid_transmit,
            transmit_ring_empty: self.transmit_ring_empty + other.transmit_ring_empty,
        }
    }
}

pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the call has no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Registers the socket's memory (UMEM), which must outlive the socket.
pub(super) fn register_memory(fd: &OwnedFd, memory: &Mapping, frame_bytes: usize) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: memory.start().as_ptr().addr() as u64,
        len: memory.len() as u64,
        chunk_size: frame_bytes as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(fd, libc::XDP_UMEM_REG, &registration)
}

pub(super) fn set_ring_sizes(fd: &OwnedFd, entries: u32) -> io::Result<()> {
    [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_TX_RING]
        .into_iter()
        .try_for_each(|ring| set_option(fd, ring, &entries))?;
    set_receive_ring_size(fd, entries)
}

pub(super) fn set_receive_ring_size(fd: &OwnedFd, entries: u32) -> io::Result<()> {
    set_option(fd, libc::XDP_RX_RING, &entries)
}

/// Offsets of the indices and entries of each ring in its mapping.
pub(super) fn ring_offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    option(fd, libc::XDP_MMAP_OFFSETS)
}

/// Binds the socket to a queue: zero-copy if the driver supports it, otherwise with copies.
pub(super) fn bind(fd: &OwnedFd, interface_index: u32, queue: u32) -> io::Result<()> {
    bind_to(fd, interface_index, queue, (libc::XDP_USE_NEED_WAKEUP, 0))
}

/// Binds the socket to a queue, with the memory, fill ring and completion ring of the socket `other`.
pub(super) fn bind_shared(fd: &OwnedFd, interface_index: u32, queue: u32, other: &OwnedFd) -> io::Result<()> {
    let other = u32::try_from(other.as_raw_fd()).map_err(io::Error::other)?;
    bind_to(fd, interface_index, queue, (libc::XDP_SHARED_UMEM, other))
}

fn bind_to(fd: &OwnedFd, interface_index: u32, queue: u32, (flags, shared): (u16, u32)) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface_index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the address, which outlives the call.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(super) fn is_zero_copy(fd: &OwnedFd) -> io::Result<bool> {
    let options: libc::xdp_options = option(fd, libc::XDP_OPTIONS)?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

pub(super) fn statistics(fd: &OwnedFd) -> io::Result<Statistics> {
    let statistics: libc::xdp_statistics = option(fd, libc::XDP_STATISTICS)?;
    Ok(Statistics {
        dropped: statistics.rx_dropped,
        ring_full: statistics.rx_ring_full,
        fill_ring_empty: statistics.rx_fill_ring_empty_descs,
        invalid_receive: statistics.rx_invalid_descs,
        invalid_transmit: statistics.tx_invalid_descs,
        transmit_ring_empty: statistics.tx_ring_empty_descs,
    })
}

/// Makes the kernel send packets of the transmit ring.
pub(super) fn wake_transmit(fd: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: an empty message without an address has no bytes to read.
    let result = unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

fn set_option<T>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the value, which outlives the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, ptr::from_ref(value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option. `T` must be a structure of integers.
fn option<T>(fd: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the value.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes are initialised, and `T` consists of integers.
    Ok(unsafe { value.assume_init() })
}
