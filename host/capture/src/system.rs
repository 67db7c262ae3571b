//! System calls for which no safe wrapper exists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// `TCP_INFO`, as far as the C library knows it. Newer kernels have more fields, older ones fewer: these stay 0.
pub(crate) type TcpInfo = libc::tcp_info;

// Numbers of <linux/tcp.h> and <asm-generic/socket.h> that the C library's bindings do not have.
pub(crate) const TCP_AO_INFO: libc::c_int = 40;
pub(crate) const SO_BUF_LOCK: libc::c_int = 72;
pub(crate) const SO_BINDTOIFINDEX: libc::c_int = 62;

/// A type whose values the kernel may read and write as bytes.
///
/// # Safety
/// All bit patterns must be valid, and the type must have no padding.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: integers.
unsafe impl Plain for libc::c_int {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: two integers of the same size.
unsafe impl Plain for RepairOption {}
// SAFETY: five integers of the same size.
unsafe impl Plain for RepairWindow {}

/// `struct tcp_repair_opt` of <linux/tcp.h>: an option of the SYNs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepairOption {
    pub code: u32,
    pub value: u32,
}

/// `struct tcp_repair_window` of <linux/tcp.h>.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepairWindow {
    /// Sequence number of the segment that set `snd_wnd`.
    pub snd_wl1: u32,
    /// The peer's window, in bytes.
    pub snd_wnd: u32,
    /// The largest window of the peer so far, in bytes.
    pub max_window: u32,
    /// This end's window when it was advertised last, in bytes.
    pub rcv_wnd: u32,
    /// The acknowledgement that was sent with this window.
    pub rcv_wup: u32,
}

pub(crate) fn set<T: Plain>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: T) -> io::Result<()> {
    set_slice(fd, level, name, &[value])
}

pub(crate) fn set_slice<T: Plain>(
    fd: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    values: &[T],
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(values)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes, the size of `values`, which outlives the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, values.as_ptr().cast(), length) };
    check(result)
}

/// Reads an option that the kernel writes in full.
pub(crate) fn get<T: Plain>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`, any of which are valid for the type.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    check(result)?;
    if length as usize == size_of::<T>() {
        Ok(value)
    } else {
        Err(io::Error::other(format!("option {name} of level {level} has {length} bytes")))
    }
}

/// Reads an option of variable length into `buffer`, and returns the length that the kernel reports.
pub(crate) fn get_bytes(
    fd: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, the size of `buffer`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, buffer.as_mut_ptr().cast(), &raw mut length) };
    check(result)?;
    Ok(length as usize)
}

pub(crate) fn tcp_info(fd: &OwnedFd) -> io::Result<TcpInfo> {
    // SAFETY: `tcp_info` consists of integers, for which all-zero bytes are valid.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<TcpInfo>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    check(result)?;
    Ok(info)
}

/// `TCP_INFO` from bytes of the kernel, which may be fewer or more than the C library knows.
pub(crate) fn tcp_info_of(bytes: &[u8]) -> TcpInfo {
    // SAFETY: `tcp_info` consists of integers, for which all-zero bytes are valid.
    let mut info: TcpInfo = unsafe { std::mem::zeroed() };
    let length = bytes.len().min(size_of::<TcpInfo>());
    // SAFETY: `length` bytes are readable in `bytes` and writable in `info`, and any bytes are valid for integers.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut info).cast(), length) };
    info
}

/// Number of instructions of the socket's classic filter; 0 without a filter. EACCES for an eBPF filter.
pub(crate) fn filter_length(fd: &OwnedFd) -> io::Result<usize> {
    let mut length: libc::socklen_t = 0;
    // SAFETY: with a length of 0 the kernel writes only the length. SO_GET_FILTER has the number of SO_ATTACH_FILTER.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::null_mut(),
            &raw mut length,
        )
    };
    check(result)?;
    Ok(length as usize)
}

/// Attaches a filter that drops all packets, in place of the socket's filter.
pub(crate) fn attach_dropping_filter(fd: &OwnedFd) -> io::Result<()> {
    /// `BPF_RET | BPF_K`: accept `k` bytes.
    const RETURN: u16 = 0x06;
    let mut program = [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    let length = libc::socklen_t::try_from(size_of_val(&program)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of `program` and the one instruction behind its pointer; both outlive the
    // call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    check(result)
}

/// Attaches an eBPF program in place of the socket's filter.
pub(crate) fn attach_program(fd: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    set::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program.as_raw_fd())
}

/// A count of bytes: SIOCINQ or SIOCOUTQ.
pub(crate) fn queued(fd: &OwnedFd, request: libc::Ioctl) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: each of these requests writes one int to the argument's address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut bytes) };
    check(result)?;
    u32::try_from(bytes).map_err(io::Error::other)
}

/// SIOCINQ.
pub(crate) const UNREAD: libc::Ioctl = libc::FIONREAD;
/// SIOCOUTQ.
pub(crate) const UNACKNOWLEDGED: libc::Ioctl = libc::TIOCOUTQ;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
