//! All calls on one connection, one after the other.

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

/// Tries all calls on each connection, and sends the client the names of the failed checks.
pub(super) fn calls(listener: &TcpListener) -> ! {
    assert!(set_int(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1));
    loop {
        let fd = accept(listener).unwrap();
        let mut failed = Vec::new();
        // SAFETY: plain calls with valid arguments.
        unsafe { try_calls(fd, &mut failed) };
        write(fd, format!("wrong: {}\n", failed.join(", ")).as_bytes());
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
    // SAFETY: the length is that of `value`.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<c_int>() as u32) == 0 }
}

pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Tries all calls. The client sends ten digits, and ten more after each `+`.
pub(super) unsafe fn try_calls(fd: RawFd, failed: &mut Vec<String>) {
    use libc::{IPPROTO_TCP, MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, SOL_SOCKET};
    let mut check = |what: &str, has_passed: bool| {
        if !has_passed {
            failed.push(what.to_string());
        }
    };
    let mut buffer = [0u8; 64];
    let base: *mut libc::c_void = buffer.as_mut_ptr().cast();
    let digits = |buffer: &[u8], count: usize| buffer[..count] == b"0123456789"[..count];
    // SAFETY: the buffer has room for all counts; other pointers are to locals that outlive the calls.
    unsafe {
        // Options.
        check(
            "keep-alive is inherited from the listener",
            int(fd, SOL_SOCKET, libc::SO_KEEPALIVE) == Some(1),
        );
        check("no-delay is off at first", int(fd, IPPROTO_TCP, libc::TCP_NODELAY) == Some(0));
        check("no-delay is set", set_int(fd, IPPROTO_TCP, libc::TCP_NODELAY, 1));
        check("no-delay is kept", int(fd, IPPROTO_TCP, libc::TCP_NODELAY) == Some(1));
        check("buffer size is set", set_int(fd, SOL_SOCKET, libc::SO_RCVBUF, 8192));
        check(
            "buffer size is doubled, as in the kernel",
            int(fd, SOL_SOCKET, libc::SO_RCVBUF) == Some(16384),
        );
        check("keep-alive time is set", set_int(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE, 77));
        check("keep-alive time is kept", int(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE) == Some(77));
        check("no error is pending", int(fd, SOL_SOCKET, libc::SO_ERROR) == Some(0));
        check("socket type", int(fd, SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM));
        check("socket domain", int(fd, SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET));
        check("not a listener", int(fd, SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0));
        check("zero copy is refused", !set_int(fd, SOL_SOCKET, libc::SO_ZEROCOPY, 1));
        check("unknown option is refused", !set_int(fd, SOL_SOCKET, 9999, 1) && errno() == libc::ENOPROTOOPT);
        let mut info = [0u8; 4];
        let mut length = 4;
        let got =
            libc::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length);
        check("TCP state is established", got == 0 && info[0] == 1);

        // Addresses.
        let mut name: libc::sockaddr_in = std::mem::zeroed();
        let mut length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        let got = libc::getpeername(fd, (&raw mut name).cast(), &raw mut length);
        check("peer address", got == 0 && name.sin_addr.s_addr.to_ne_bytes() == [127, 8, 9, 10]);
        check("peer port", u16::from_be(name.sin_port) == 4711);
        let got = libc::getsockname(fd, (&raw mut name).cast(), &raw mut length);
        check("own address", got == 0 && name.sin_addr.s_addr.to_ne_bytes() == [127, 0, 0, 1]);

        // Reading.
        let mut one = [pollfd { fd, events: libc::POLLIN | libc::POLLRDNORM | libc::POLLOUT, revents: 0 }];
        check("poll reports one descriptor", __poll_chk(one.as_mut_ptr(), 1, -1, 8) == 1);
        let null = std::ptr::null();
        check(
            "ppoll reports one descriptor",
            __ppoll_chk(one.as_mut_ptr(), 1, null, std::ptr::null(), 8) == 1,
        );
        check("all three events", one[0].revents == one[0].events);
        check("peek with wait-all", libc::recv(fd, base, 10, MSG_PEEK | MSG_WAITALL) > 0);
        check("two digits", __read_chk(fd, base, 2, 64) == 2 && digits(&buffer, 2));
        check("peek at three digits", __recv_chk(fd, base, 3, 64, MSG_PEEK) == 3 && &buffer[..3] == b"234");
        let mut waiting: c_int = 0;
        check("eight unread bytes", libc::ioctl(fd, libc::FIONREAD, &raw mut waiting) == 0 && waiting == 8);
        let mut length = 99;
        let got = __recvfrom_chk(fd, base, 2, 64, 0, std::ptr::null_mut(), &raw mut length);
        check("recvfrom returns no address", got == 2 && &buffer[..2] == b"23" && length == 0);
        check("two bytes are dropped", libc::recv(fd, std::ptr::null_mut(), 2, MSG_TRUNC) == 2);
        let (head, tail) = (&mut [0u8; 1], &mut [0u8; 9]);
        let mut parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: 1 },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: 9 },
        ];
        check(
            "read into two parts",
            libc::readv(fd, parts.as_mut_ptr(), 2) == 4 && head == b"6" && tail[..3] == *b"789",
        );
        check("a read of 0 bytes does not wait", libc::read(fd, base.cast(), 0) == 0);
        check("no more bytes", libc::recv(fd, base, 1, MSG_DONTWAIT) == -1 && errno() == libc::EAGAIN);

        // Blocking and non-blocking.
        let duplicate = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100);
        check("duplicate at 100 or above", duplicate >= 100);
        check("closed on exec", libc::fcntl(duplicate, libc::F_GETFD) == libc::FD_CLOEXEC);
        check("not closed on exec", libc::ioctl(duplicate, libc::FIONCLEX, 0) == 0);
        check("kept on exec", libc::fcntl(duplicate, libc::F_GETFD) == 0);
        nonblocking(fd);
        check(
            "flags are shared with the duplicate",
            libc::fcntl(duplicate, libc::F_GETFL) & libc::O_NONBLOCK != 0,
        );
        check("non-blocking read", libc::read(duplicate, base, 1) == -1 && errno() == libc::EAGAIN);
        let no: c_int = 0;
        check("blocking again", libc::ioctl(duplicate, libc::FIONBIO, &raw const no) == 0);
        let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let length = size_of::<libc::timeval>() as u32;
        let set = libc::setsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), length);
        check("receive timeout", set == 0 && libc::recv(fd, base, 1, 0) == -1 && errno() == libc::EAGAIN);
        let time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        libc::setsockopt(fd, SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const time).cast(), length);
        check(
            "request for ten more",
            libc::send(duplicate, b"+".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) == 1,
        );
        check("wait for all ten", libc::recv(fd, base, 10, MSG_WAITALL) == 10 && digits(&buffer, 10));
        check("closed duplicate", libc::close(duplicate) == 0 && libc::read(duplicate, base, 1) == -1);

        // Two descriptors for one set.
        let set = Set::new();
        let second = Set(libc::dup(set.0));
        set.add(fd, (EPOLLIN | EPOLLOUT) as u32);
        check(
            "second add is refused",
            set.control(libc::EPOLL_CTL_ADD, fd, 0) == -1 && errno() == libc::EEXIST,
        );
        check("duplicate of the set", second.wait() == [(fd, EPOLLOUT as u32)]);
        check("close the first descriptor of the set", libc::close(set.0) == 0);
        check("duplicate after that close", second.wait() == [(fd, EPOLLOUT as u32)]);
        check("removed from the set", second.control(libc::EPOLL_CTL_DEL, fd, 0) == 0);
        check(
            "modify after removal",
            second.control(libc::EPOLL_CTL_MOD, fd, 0) == -1 && errno() == libc::ENOENT,
        );
        libc::close(second.0);

        // A duplicate, and close_range.
        check("request for the last ten", libc::send(fd, b"+".as_ptr().cast(), 1, 0) == 1);
        let duplicate = libc::dup(fd);
        check("read on a duplicate", libc::recv(duplicate, base, 64, 0) > 0);
        check(
            "close_range",
            libc::syscall(libc::SYS_getpid) > 0
                && libc::close_range(duplicate as u32, duplicate as u32, 0) == 0,
        );
        check("read after close_range", libc::read(duplicate, base, 1) == -1 && errno() == libc::EBADF);
    }
}
