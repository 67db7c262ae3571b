//! What the kernel says about a socket.

use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were not sent.
pub fn unsent(fd: &impl AsFd) -> u32 {
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queued(fd, SIOCOUTQNSD)
}

/// Bytes that the peer has not acknowledged.
pub fn unacknowledged(fd: &impl AsFd) -> u32 {
    queued(fd, libc::TIOCOUTQ)
}

fn queued(fd: &impl AsFd, request: libc::Ioctl) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int to the argument's address.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut bytes) };
    assert_eq!(result, 0);
    bytes.try_into().unwrap()
}

pub fn info(fd: &impl AsFd) -> libc::tcp_info {
    // SAFETY: `tcp_info` consists of integers, for which all-zero bytes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    info
}

/// Sets an option to the bytes of a value.
pub fn set_option<T: Copy>(fd: &impl AsFd, level: libc::c_int, name: libc::c_int, value: &T) -> libc::c_int {
    // SAFETY: the kernel reads the bytes of `value`, which outlives the call.
    unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    }
}

pub fn get_int(fd: &impl AsFd, level: libc::c_int, name: libc::c_int) -> libc::c_int {
    let (mut value, mut length): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    assert_eq!(result, 0);
    value
}

/// Number of instructions of the socket's filter.
pub fn filter_length(fd: &impl AsFd) -> libc::c_int {
    let mut length: libc::socklen_t = 0;
    // SAFETY: with a length of 0 the kernel writes only the length.
    let result = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::null_mut(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    length.try_into().unwrap()
}

pub fn attach_accepting_filter(fd: &impl AsFd) {
    attach_filter(fd, u32::MAX);
}

pub fn attach_dropping_filter(fd: &impl AsFd) {
    attach_filter(fd, 0);
}

/// Attaches a filter that accepts a number of bytes of each segment.
fn attach_filter(fd: &impl AsFd, accepted_bytes: u32) {
    /// `BPF_RET | BPF_K`.
    const RETURN: u16 = 0x06;
    let mut instruction = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: accepted_bytes };
    let program = libc::sock_fprog { len: 1, filter: &raw mut instruction };
    assert_eq!(set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program), 0);
}

pub fn interface_index(name: &std::ffi::CStr) -> u32 {
    // SAFETY: the name ends with a zero byte.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Makes the kernel answer ENOPROTOOPT to TCP_REPAIR, for the calling thread only.
pub fn deny_repair_mode_to_this_thread() {
    /// `BPF_LD | BPF_W | BPF_ABS`.
    const LOAD: u16 = 0x20;
    /// `BPF_JMP | BPF_JEQ | BPF_K`.
    const JUMP_IF_EQUAL: u16 = 0x15;
    /// `BPF_RET | BPF_K`.
    const RETURN: u16 = 0x06;
    /// Offset of an argument's lower half in `struct seccomp_data`, in machines with this order of bytes.
    const fn argument(index: u32) -> u32 {
        16 + 8 * index
    }
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // A comparison that fails skips to the instruction that allows the call.
    let equal = |k, to_allow| libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: to_allow, k };
    let mut program = [
        step(LOAD, 0),
        equal(libc::SYS_setsockopt as u32, 5),
        step(LOAD, argument(1)),
        equal(libc::IPPROTO_TCP as u32, 3),
        step(LOAD, argument(2)),
        equal(libc::TCP_REPAIR as u32, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which outlives the calls, and applies it to the calling thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// A counter of the calling thread's network namespace, of those that the kernel calls TcpExt.
pub fn network_counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    both.find(|(candidate, _)| *candidate == name).unwrap().1.parse().unwrap()
}
