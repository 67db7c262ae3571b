//! libc's own functions, for real descriptors.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_ulong, c_void, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use libc::{c_long, c_uint, epoll_event, fd_set, loff_t, mmsghdr, off_t, sigset_t, timespec, timeval};

use crate::errno::set_errno;

macro_rules! real_functions {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        struct Addresses { $($name: AtomicUsize),* }

        static ADDRESSES: Addresses = Addresses { $($name: AtomicUsize::new(0)),* };

        /// Finds all functions now, because a later call may be inside a signal handler.
        pub fn resolve_all() {
            $(resolve(&ADDRESSES.$name, name(concat!(stringify!($name), "\0")));)*
        }

        $(
            /// libc's function of this name; fails with ENOSYS where libc has none.
            ///
            /// # Safety
            /// Same as for the C function.
            #[inline]
            pub unsafe fn $name($($argument: $kind),*) -> $result {
                let mut address = ADDRESSES.$name.load(Ordering::Relaxed);
                if address == 0 {
                    // A constructor of another library has called this function before this library was started.
                    address = resolve(&ADDRESSES.$name, name(concat!(stringify!($name), "\0")));
                }
                if address == 0 {
                    set_errno(libc::ENOSYS);
                    return -1;
                }
                // SAFETY: the dynamic linker gave this address for the name, whose C signature this is.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($kind),*) -> $result =
                        core::mem::transmute(address);
                    function($($argument),*)
                }
            }
        )*
    };
}

fn name(text: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or(c"")
}

#[cold]
fn resolve(slot: &AtomicUsize, name: &CStr) -> usize {
    // SAFETY: the name is a C string; RTLD_NEXT searches the libraries after the one that this code is linked into.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    slot.store(address, Ordering::Relaxed);
    address
}

real_functions! {
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, from: *mut sockaddr,
        from_length: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, to: *const sockaddr,
        to_length: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, count: size_t,
        flags: c_uint) -> ssize_t;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}
