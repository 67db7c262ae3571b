//! Raw system calls for the library's own I/O. They preserve errno, which only the application's calls may change.

use core::mem::{MaybeUninit, size_of};
use core::time::Duration;

use libc::{c_int, c_long, c_void};
use spillway_transport::Time;

pub(crate) use crate::errno::{Errno, errno, errno_address, set_errno};

/// The result of a system call; restores errno to `before`.
pub(crate) fn outcome(before: Errno, result: c_long) -> Result<usize, Errno> {
    if result >= 0 {
        return Ok(result as usize);
    }
    let error = errno();
    set_errno(before);
    Err(error)
}

/// The C return value of an outcome. Sets errno to `before`, or to the error if the call failed.
pub(crate) fn result(before: Errno, outcome: Result<c_int, Errno>) -> c_int {
    match outcome {
        Ok(value) => {
            set_errno(before);
            value
        }
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        let before = $crate::sys::errno();
        // SAFETY: each caller passes pointers that are valid for what this system call does with them.
        $crate::sys::outcome(before, unsafe { $crate::sys::raw($number, &[$($argument as usize),*]) })
    }};
}
pub(crate) use call;

/// libc's `syscall`, not the one that this library defines.
///
/// # Safety
/// The arguments are valid for this system call; there are six at most.
pub(crate) unsafe fn raw(number: c_long, arguments: &[usize]) -> c_long {
    let argument = |position: usize| arguments.get(position).copied().unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        crate::real::syscall(
            number,
            argument(0),
            argument(1),
            argument(2),
            argument(3),
            argument(4),
            argument(5),
        )
    }
}

pub(crate) fn close(fd: c_int) {
    let _ = call!(libc::SYS_close, fd);
}

/// Shuts down a socket of this library and closes its descriptor. A forked child may have another descriptor of the
/// same socket: without `shutdown` the peer would not see the end while that child runs.
pub(crate) fn end_socket(fd: c_int) {
    shut_down(fd, libc::SHUT_RDWR);
    close(fd);
}

pub(crate) fn shut_down(fd: c_int, how: c_int) {
    let _ = call!(libc::SYS_shutdown, fd, how);
}

/// Receives without blocking. 0 is the end of the stream.
pub(crate) fn receive(fd: c_int, buffer: &mut [u8]) -> Result<usize, Errno> {
    let null = core::ptr::null::<c_void>();
    call!(libc::SYS_recvfrom, fd, buffer.as_mut_ptr(), buffer.len(), libc::MSG_DONTWAIT, null, null)
}

/// Sends without blocking and without SIGPIPE.
pub(crate) fn send(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    let (null, flags) = (core::ptr::null::<c_void>(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    call!(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, null, 0)
}

/// Writes to a descriptor that is not a socket.
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len())
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        match call!(libc::SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) {
            Ok(more) => filled += more,
            Err(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A stream socket of this family, non-blocking, closed on exec.
pub(crate) fn stream_socket(family: c_int) -> Result<c_int, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    call!(libc::SYS_socket, family, kind, 0).map(|fd| fd as c_int)
}

pub(crate) fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
    let size = size_of::<c_int>();
    call!(libc::SYS_setsockopt, fd, level, name, &raw const value, size).map(drop)
}

pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let (mut value, mut size): (c_int, libc::socklen_t) = (0, size_of::<c_int>() as libc::socklen_t);
    call!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut size)?;
    Ok(value)
}

pub(crate) fn bind(fd: c_int, address: &libc::sockaddr_storage, length: u32) -> Result<(), Errno> {
    call!(libc::SYS_bind, fd, core::ptr::from_ref(address), length).map(drop)
}

pub(crate) fn listen(fd: c_int, backlog: c_int) -> Result<(), Errno> {
    call!(libc::SYS_listen, fd, backlog).map(drop)
}

/// Accepts a connection, non-blocking and closed on exec, with the peer's address.
pub(crate) fn accept(fd: c_int, peer: &mut libc::sockaddr_storage) -> Result<c_int, Errno> {
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let peer = core::ptr::from_mut(peer);
    call!(libc::SYS_accept4, fd, peer, &raw mut length, flags).map(|fd| fd as c_int)
}

/// The socket's own address.
pub(crate) fn socket_name(fd: c_int, name: &mut libc::sockaddr_storage) -> Result<(), Errno> {
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    call!(libc::SYS_getsockname, fd, core::ptr::from_mut(name), &raw mut length).map(drop)
}

/// Duplicates a descriptor to the lowest free number at or above `lowest`.
pub(crate) fn duplicate(fd: c_int, lowest: c_int, close_on_exec: bool) -> Result<c_int, Errno> {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    call!(libc::SYS_fcntl, fd, command, lowest).map(|fd| fd as c_int)
}

/// The number that every new descriptor of this process must be below.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit has room for the result.
    let outcome = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    debug_assert_eq!(outcome, 0, "getrlimit should succeed: the resource and the pointer are valid");
    limit.rlim_cur
}

/// An event counter, non-blocking and closed on exec.
pub(crate) fn eventfd() -> Result<c_int, Errno> {
    let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
    call!(libc::SYS_eventfd2, 0, flags).map(|fd| fd as c_int)
}

/// An epoll set, closed on exec.
pub(crate) fn epoll_create() -> Result<c_int, Errno> {
    call!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as c_int)
}

/// The events that are ready in a set; does not wait.
pub(crate) fn epoll_ready(set: c_int, events: &mut [libc::epoll_event]) -> Result<usize, Errno> {
    let null = core::ptr::null::<c_void>();
    call!(libc::SYS_epoll_pwait, set, events.as_mut_ptr(), events.len(), 0, null, 8)
}

pub(crate) fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    events: u32,
    data: u64,
) -> Result<(), Errno> {
    let event = libc::epoll_event { events, u64: data };
    call!(libc::SYS_epoll_ctl, set, operation, fd, &raw const event).map(drop)
}

/// Waits for one of the descriptors for at most `timeout` (`None`: without limit). `mask` is the signal mask meanwhile,
/// unless it is null.
pub(crate) fn poll(
    descriptors: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // A copy, because the kernel writes the remaining time into it.
    let mut time = timeout.map(timespec);
    let time = time.as_mut().map_or(core::ptr::null_mut(), core::ptr::from_mut);
    call!(libc::SYS_ppoll, descriptors.as_mut_ptr(), descriptors.len(), time, mask, 8)
}

/// Empties an event counter.
pub(crate) fn drain(fd: c_int) {
    let mut count = 0u64;
    let _ = call!(libc::SYS_read, fd, &raw mut count, size_of::<u64>());
}

/// Reads a file at an offset.
pub(crate) fn read_at(fd: c_int, bytes: &mut [u8], offset: libc::off_t) -> Result<usize, Errno> {
    call!(libc::SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), offset)
}

/// The offset at which a file is read next.
pub(crate) fn position(fd: c_int) -> Result<libc::off_t, Errno> {
    call!(libc::SYS_lseek, fd, 0, libc::SEEK_CUR).map(|position| position as libc::off_t)
}

pub(crate) fn set_position(fd: c_int, position: libc::off_t) -> Result<(), Errno> {
    call!(libc::SYS_lseek, fd, position, libc::SEEK_SET).map(drop)
}

/// A descriptor's status flags.
pub(crate) fn status(fd: c_int) -> Result<c_int, Errno> {
    call!(libc::SYS_fcntl, fd, libc::F_GETFL).map(|flags| flags as c_int)
}

/// The id of the calling process, also between `vfork` and `exec`.
pub(crate) fn process_id() -> c_int {
    call!(libc::SYS_getpid).map_or(0, |id| id as c_int)
}

/// Whether this process has children, or had children that it has waited for.
pub(crate) fn had_children() -> bool {
    // WNOWAIT leaves the children to the application's own waits. Without children the call fails with ECHILD.
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let nothing = core::ptr::null_mut::<libc::c_void>();
    if call!(libc::SYS_waitid, libc::P_ALL, 0, nothing, options, nothing).is_ok() {
        return true;
    }
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, of which any bytes are a value.
    unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init().ru_maxrss > 0
    }
}

/// Ends the process at once.
pub(crate) fn exit(code: c_int) -> ! {
    loop {
        let _ = call!(libc::SYS_exit_group, code);
    }
}

/// Converts a time that the application gave; negative fields count as 0.
pub(crate) fn duration(time: &libc::timespec) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds.saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0)))
}

/// Converts a duration to the kernel's form.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> Time {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` has room for the result. The monotonic clock always exists, so the call succeeds and fills it.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    Time((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}
