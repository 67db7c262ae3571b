//! Every call on one connection, one after the other.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};

use libc::{EPOLLIN, EPOLLOUT, c_int, pollfd};

use super::loops::Set;
use super::{accept, close, nonblocking, write};

unsafe extern "C" {
    fn __read_chk(fd: c_int, buffer: *mut libc::c_void, count: usize, size: usize) -> isize;
    fn __recv_chk(fd: c_int, buffer: *mut libc::c_void, count: usize, size: usize, flags: c_int) -> isize;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut libc::c_void,
        count: usize,
        size: usize,
        flags: c_int,
        from: *mut libc::sockaddr,
        length: *mut libc::socklen_t,
    ) -> isize;
    fn __poll_chk(descriptors: *mut pollfd, count: libc::nfds_t, timeout: c_int, size: usize) -> c_int;
    fn __ppoll_chk(
        descriptors: *mut pollfd,
        count: libc::nfds_t,
        time: *const libc::timespec,
        mask: *const libc::sigset_t,
        size: usize,
    ) -> c_int;
}

/// Tries every call on each connection, and sends the names of the checks that failed.
pub(super) fn calls(listener: &TcpListener) -> ! {
    assert!(set_int(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1));
    loop {
        let fd = accept(listener).unwrap();
        let mut wrong = Vec::new();
        // SAFETY: plain calls with valid arguments.
        unsafe { try_calls(fd, &mut wrong) };
        write(fd, format!("wrong: {}\n", wrong.join(", ")).as_bytes());
        close(fd);
    }
}

pub(super) fn int(fd: RawFd, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut length): (c_int, _) = (-1, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: `value` has `length` bytes.
    let outcome = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (outcome == 0).then_some(value)
}

pub(super) fn set_int(fd: RawFd, level: c_int, name: c_int, value: c_int) -> bool {
    // SAFETY: `value` has as many bytes as are passed.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<c_int>() as u32) == 0 }
}

pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The client sends ten digits, and after each `+` ten more.
pub(super) unsafe fn try_calls(fd: RawFd, wrong: &mut Vec<String>) {
    use libc::{IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SOL_SOCKET};
    let mut check = |what: &str, holds: bool| {
        if !holds {
            wrong.push(what.to_string());
        }
    };
    let mut buffer = [0u8; 64];
    let base: *mut libc::c_void = buffer.as_mut_ptr().cast();
    let digits = |buffer: &[u8], count: usize| buffer[..count] == b"0123456789"[..count];
    // SAFETY: the buffer has room for all counts; other pointers are to locals that outlive the calls.
    unsafe {
        // Options.
        check("keepalive of the listener", int(fd, SOL_SOCKET, libc::SO_KEEPALIVE) == Some(1));
        check("no delay at first", int(fd, IPPROTO_TCP, libc::TCP_NODELAY) == Some(0));
        check("no delay", set_int(fd, IPPROTO_TCP, libc::TCP_NODELAY, 1));
        check("no delay is kept", int(fd, IPPROTO_TCP, libc::TCP_NODELAY) == Some(1));
        check("buffer", set_int(fd, SOL_SOCKET, libc::SO_RCVBUF, 8192));
        check("buffer as the kernel has it", int(fd, SOL_SOCKET, libc::SO_RCVBUF) == Some(16384));
        check("keep-alive time", set_int(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE, 77));
        check("keep-alive time is kept", int(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE) == Some(77));
        check("error", int(fd, SOL_SOCKET, libc::SO_ERROR) == Some(0));
        check("type", int(fd, SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM));
        check("domain", int(fd, SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET));
        check("no listener", int(fd, SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0));
        check("zero copy", !set_int(fd, SOL_SOCKET, libc::SO_ZEROCOPY, 1));
        check("unknown option", !set_int(fd, SOL_SOCKET, 9999, 1) && errno() == libc::ENOPROTOOPT);
        let mut info = [0u8; 4];
        let mut length = 4;
        let got =
            libc::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length);
        check("established", got == 0 && info[0] == 1);

        // Addresses.
        let mut name: libc::sockaddr_in = std::mem::zeroed();
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        let got = libc::getpeername(fd, (&raw mut name).cast(), &raw mut length);
        check("peer", got == 0 && name.sin_addr.s_addr.to_ne_bytes() == [127, 8, 9, 10]);
        check("peer port", u16::from_be(name.sin_port) == 4711);
        let got = libc::getsockname(fd, (&raw mut name).cast(), &raw mut length);
        check("name", got == 0 && name.sin_addr.s_addr.to_ne_bytes() == [127, 0, 0, 1]);

        // Reading.
        let mut one = [pollfd { fd, events: libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT, revents: 0 }];
        check("poll", __poll_chk(one.as_mut_ptr(), 1, -1, 8) == 1);
        let null = std::ptr::null();
        check("ppoll", __ppoll_chk(one.as_mut_ptr(), 1, null, std::ptr::null(), 8) == 1);
        check("all three", one[0].revents == one[0].events);
        check("wait for all", libc::recv(fd, base, 10, MSG_PEEK | MSG_WAITALL) > 0);
        check("two", __read_chk(fd, base, 2, 64) == 2 && digits(&buffer, 2));
        check("peek", __recv_chk(fd, base, 3, 64, MSG_PEEK) == 3 && &buffer[..3] == b"234");
        let mut waiting: c_int = 0;
        check("bytes that wait", libc::ioctl(fd, libc::FIONREAD, &raw mut waiting) == 0 && waiting == 8);
        let mut length = 99;
        let got = __recvfrom_chk(fd, base, 2, 64, 0, std::ptr::null_mut(), &raw mut length);
        check("receive from", got == 2 && &buffer[..2] == b"23" && length == 0);
        check("drop", libc::recv(fd, std::ptr::null_mut(), 2, MSG_TRUNC) == 2);
        let (head, tail) = (&mut [0u8; 1], &mut [0u8; 9]);
        let mut parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: 1 },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: 9 },
        ];
        check("parts", libc::readv(fd, parts.as_mut_ptr(), 2) == 4 && head == b"6" && tail[..3] == *b"789");
        check("nothing more", libc::recv(fd, base, 1, MSG_DONTWAIT) == -1 && errno() == libc::EAGAIN);

        // Blocking and not.
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100);
        check("a copy", copy >= 100);
        check("closed on exec", libc::fcntl(copy, libc::F_GETFD) == libc::FD_CLOEXEC);
        check("not closed on exec", libc::ioctl(copy, libc::FIONCLEX, 0) == 0);
        check("kept on exec", libc::fcntl(copy, libc::F_GETFD) == 0);
        nonblocking(fd);
        check("shared", libc::fcntl(copy, libc::F_GETFL) & libc::O_NONBLOCK != 0);
        check("would block", libc::read(copy, base, 1) == -1 && errno() == libc::EAGAIN);
        let no: c_int = 0;
        check("blocking again", libc::ioctl(copy, libc::FIONBIO, &raw const no) == 0);
        let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let length = size_of::<libc::timeval>() as u32;
        let set = libc::setsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), length);
        check("a timeout", set == 0 && libc::recv(fd, base, 1, 0) == -1 && errno() == libc::EAGAIN);
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        libc::setsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), length);
        check("more is asked for", libc::send(copy, b"+".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) == 1);
        check("all ten", libc::recv(fd, base, 10, MSG_WAITALL) == 10 && digits(&buffer, 10));
        check("closed copy", libc::close(copy) == 0 && libc::read(copy, base, 1) == -1);

        // Two descriptors for one set, and one number for another file.
        let set = Set::new();
        let second = Set(libc::dup(set.0));
        set.add(fd, (EPOLLIN | EPOLLOUT) as u32);
        check("added already", set.control(libc::EPOLL_CTL_ADD, fd, 0) == -1 && errno() == libc::EEXIST);
        check("the same set", second.wait() == [(fd, EPOLLOUT as u32)]);
        check("close one", libc::close(set.0) == 0);
        check("still the same set", second.wait() == [(fd, EPOLLOUT as u32)]);
        check("taken out", second.control(libc::EPOLL_CTL_DEL, fd, 0) == 0);
        check("not there", second.control(libc::EPOLL_CTL_MOD, fd, 0) == -1 && errno() == libc::ENOENT);
        libc::close(second.0);

        // Half-close; what is left can still be read.
        check("shut down", libc::send(fd, b"+".as_ptr().cast(), 1, 0) == 1);
        let copy = libc::dup(fd);
        check("ten more", libc::recv(copy, base, 64, 0) > 0);
        check(
            "range",
            libc::syscall(libc::SYS_getpid) > 0 && libc::close_range(copy as u32, copy as u32, 0) == 0,
        );
        check("gone", libc::read(copy, base, 1) == -1 && errno() == libc::EBADF);
    }
}
