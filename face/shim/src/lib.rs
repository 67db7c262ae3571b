//! The preload library: redefines libc's functions. Calls on real descriptors are passed on to libc.
//!
//! `spillway run` loads the library into the server; `spillway-shim-core` handles the calls on all other descriptors.

use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t,
    off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use spillway_shim_core::{
    accept as accepting, allocator, connection_addresses, data, descriptors, epoll, is_listener_awaited,
    kernel_copies, multiple_messages, options, poll as polling, real, select as selecting, system_call,
    table,
};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

extern "C" fn start() {
    spillway_shim_core::start();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments, which the dynamic linker calls.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn finish() {
    spillway_shim_core::finish();
}

#[used]
// SAFETY: as above; the linker calls this function when the process ends in order.
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

/// Defines C functions. Callers vouch for the arguments as for libc's functions.
macro_rules! names {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty $body:block)*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// Same as for the C function.
        // SAFETY: this function replaces libc's function of the same name and signature.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: passes the caller's arguments on unchanged.
            unsafe { $body }
        }
    )*};
}

names! {
    /// `read(2)`.
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        if table::is_real(fd) { real::read(fd, buffer, count) } else { data::receive(fd, buffer, count, 0) }
    }

    /// `read(2)` where the compiler knows the buffer's size.
    __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t) -> ssize_t {
        read(fd, buffer, count.min(size))
    }

    /// `recv(2)`.
    recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t {
        if table::is_real(fd) {
            real::recv(fd, buffer, count, flags)
        } else {
            data::receive(fd, buffer, count, flags)
        }
    }

    /// `recv(2)` where the compiler knows the buffer's size.
    __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int) -> ssize_t {
        recv(fd, buffer, count.min(size), flags)
    }

    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t
    ) -> ssize_t {
        if table::is_real(fd) {
            real::recvfrom(fd, buffer, count, flags, from, length)
        } else {
            data::receive_from(fd, buffer, count, flags, from, length)
        }
    }

    /// `recvfrom(2)` where the compiler knows the buffer's size.
    __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, count: size_t, size: size_t, flags: c_int, from: *mut sockaddr,
        length: *mut socklen_t
    ) -> ssize_t {
        recvfrom(fd, buffer, count.min(size), flags, from, length)
    }

    /// `readv(2)`.
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if table::is_real(fd) { real::readv(fd, parts, count) } else { data::receive_vector(fd, parts, count) }
    }

    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if table::is_real(fd) {
            real::recvmsg(fd, message, flags)
        } else {
            data::receive_message(fd, message, flags)
        }
    }

    /// `write(2)`.
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
        if table::is_real(fd) { real::write(fd, buffer, count) } else { data::send(fd, buffer, count, 0) }
    }

    /// `send(2)`.
    send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t {
        if table::is_real(fd) {
            real::send(fd, buffer, count, flags)
        } else {
            data::send(fd, buffer, count, flags)
        }
    }

    /// `sendto(2)`.
    sendto(
        fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, to: *const sockaddr, length: socklen_t
    ) -> ssize_t {
        if table::is_real(fd) {
            real::sendto(fd, buffer, count, flags, to, length)
        } else {
            data::send_to(fd, buffer, count, flags, to, length)
        }
    }

    /// `writev(2)`.
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if table::is_real(fd) { real::writev(fd, parts, count) } else { data::send_vector(fd, parts, count) }
    }

    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if table::is_real(fd) {
            real::sendmsg(fd, message, flags)
        } else {
            data::send_message(fd, message, flags)
        }
    }

    /// `recvmmsg(2)`.
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int {
        if table::is_real(fd) {
            real::recvmmsg(fd, messages, count, flags, timeout)
        } else {
            multiple_messages::receive(fd, messages, count, flags, timeout)
        }
    }

    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if table::is_real(fd) {
            real::sendmmsg(fd, messages, count, flags)
        } else {
            multiple_messages::send(fd, messages, count, flags)
        }
    }

    /// `sendfile(2)`.
    sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::is_real(out) {
            real::sendfile(out, file, offset, count)
        } else {
            kernel_copies::send_file(out, file, offset, count)
        }
    }

    /// `sendfile(2)` with 64-bit offsets.
    sendfile64(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(out, file, offset, count)
    }

    /// `splice(2)`.
    splice(
        from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, count: size_t, flags: c_uint
    ) -> ssize_t {
        if table::is_real(from) && table::is_real(to) {
            real::splice(from, from_offset, to, to_offset, count, flags)
        } else {
            kernel_copies::splice(from, from_offset, to, to_offset, count, flags)
        }
    }

    /// `listen(2)`.
    listen(fd: c_int, backlog: c_int) -> c_int {
        descriptors::listen(fd, backlog)
    }

    /// `accept(2)`.
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        if table::is_real(fd) && !is_listener_awaited() {
            real::accept(fd, address, length)
        } else {
            accepting::accept(fd, address, length, 0)
        }
    }

    /// `accept4(2)`.
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        if table::is_real(fd) && !is_listener_awaited() {
            real::accept4(fd, address, length, flags)
        } else {
            accepting::accept(fd, address, length, flags)
        }
    }

    /// `close(2)`.
    close(fd: c_int) -> c_int {
        if table::is_real(fd) { real::close(fd) } else { descriptors::close(fd) }
    }

    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        descriptors::close_range(first, last, flags)
    }

    /// `closefrom(3)`.
    closefrom(first: c_int) -> () {
        descriptors::close_range(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    /// `syscall(2)`. Optional arguments are passed in the same registers as fixed ones.
    syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long {
        system_call::call(number, [a, b, c, d, e, f])
    }

    /// `shutdown(2)`.
    shutdown(fd: c_int, how: c_int) -> c_int {
        if table::is_real(fd) { real::shutdown(fd, how) } else { descriptors::shutdown(fd, how) }
    }

    /// `dup(2)`.
    dup(fd: c_int) -> c_int {
        if table::is_real(fd) { real::dup(fd) } else { descriptors::duplicate(fd, || real::dup(fd)) }
    }

    /// `dup2(2)`.
    dup2(fd: c_int, to: c_int) -> c_int {
        if table::is_real(fd) && table::is_real(to) {
            real::dup2(fd, to)
        } else {
            descriptors::duplicate_to(fd, to, 0, || real::dup2(fd, to))
        }
    }

    /// `dup3(2)`.
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if table::is_real(fd) && table::is_real(to) {
            real::dup3(fd, to, flags)
        } else {
            descriptors::duplicate_to(fd, to, flags, || real::dup3(fd, to, flags))
        }
    }

    /// `fcntl(2)`. The optional argument is passed in the same register as a fixed one.
    fcntl(fd: c_int, command: c_int, argument: size_t) -> c_int {
        if table::is_real(fd) {
            real::fcntl(fd, command, argument)
        } else {
            descriptors::control(fd, command, argument)
        }
    }

    /// `fcntl(2)` with 64-bit offsets.
    fcntl64(fd: c_int, command: c_int, argument: size_t) -> c_int {
        if table::is_real(fd) {
            real::fcntl64(fd, command, argument)
        } else {
            descriptors::control(fd, command, argument)
        }
    }

    /// `ioctl(2)`. The optional argument is passed as in `fcntl`.
    ioctl(fd: c_int, request: c_ulong, argument: size_t) -> c_int {
        if table::is_real(fd) {
            real::ioctl(fd, request, argument)
        } else {
            descriptors::device_control(fd, request, argument)
        }
    }

    /// `getpeername(2)`.
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        if table::is_real(fd) {
            real::getpeername(fd, address, length)
        } else {
            connection_addresses::peer_name(fd, address, length)
        }
    }

    /// `getsockname(2)`.
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        if table::is_real(fd) {
            real::getsockname(fd, address, length)
        } else {
            connection_addresses::socket_name(fd, address, length)
        }
    }

    /// `getsockopt(2)`.
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        if table::is_real(fd) {
            real::getsockopt(fd, level, name, value, length)
        } else {
            options::option(fd, level, name, value, length)
        }
    }

    /// `setsockopt(2)`.
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        if table::is_real(fd) {
            real::setsockopt(fd, level, name, value, length)
        } else {
            options::set_option(fd, level, name, value, length)
        }
    }

    /// `epoll_create(2)`.
    epoll_create(size: c_int) -> c_int {
        epoll::record_set(real::epoll_create(size))
    }

    /// `epoll_create1(2)`.
    epoll_create1(flags: c_int) -> c_int {
        epoll::record_set(real::epoll_create1(flags))
    }

    /// `epoll_ctl(2)`.
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if table::is_real(set) {
            real::epoll_ctl(set, operation, fd, event)
        } else {
            epoll::control(set, operation, fd, event)
        }
    }

    /// `epoll_wait(2)`.
    epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        if table::is_real(set) {
            real::epoll_wait(set, events, max, timeout)
        } else {
            epoll::wait(set, events, max, epoll::Wait::Plain(timeout))
        }
    }

    /// `epoll_pwait(2)`.
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        if table::is_real(set) {
            real::epoll_pwait(set, events, max, timeout, mask)
        } else {
            epoll::wait(set, events, max, epoll::Wait::Masked(timeout, mask))
        }
    }

    /// `epoll_pwait2(2)`.
    epoll_pwait2(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int {
        if table::is_real(set) {
            real::epoll_pwait2(set, events, max, timeout, mask)
        } else {
            epoll::wait(set, events, max, epoll::Wait::Precise(timeout, mask))
        }
    }

    /// `poll(2)`.
    poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        polling::poll(descriptors, count, polling::Wait::Plain(timeout))
    }

    /// `poll(2)` where the compiler knows the array's size, which glibc checks against the count.
    __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, _size: size_t) -> c_int {
        poll(descriptors, count, timeout)
    }

    /// `ppoll(2)`.
    ppoll(descriptors: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int {
        polling::poll(descriptors, count, polling::Wait::Masked(time, mask))
    }

    /// `ppoll(2)` where the compiler knows the array's size.
    __ppoll_chk(
        descriptors: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t, _size: size_t
    ) -> c_int {
        ppoll(descriptors, count, time, mask)
    }

    /// `select(2)`.
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *mut timeval
    ) -> c_int {
        selecting::select(count, [read, write, except], selecting::Wait::Plain(time))
    }

    /// `pselect(2)`.
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, time: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        selecting::select(count, [read, write, except], selecting::Wait::Masked(time, mask))
    }
}
