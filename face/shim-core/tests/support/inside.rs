//! The preload library inside the test's own process, called as an application calls libc.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use libc::{c_int, epoll_event};
use spillway_shim_core::{accept, descriptors, epoll};

use spillway_ports::free_address;

/// An application with one listener in one epoll set, and a link port.
pub struct Inside {
    pub listener: TcpListener,
    pub set: c_int,
    pub link: SocketAddr,
}

/// The data of the listener's events.
pub const LISTENER: u64 = u64::MAX;

/// Starts the application, once for this process.
pub fn start() -> &'static Inside {
    static INSIDE: OnceLock<Inside> = OnceLock::new();
    INSIDE.get_or_init(|| {
        let link = free_address();
        // SAFETY: nothing else in this process reads or changes the environment at this time.
        unsafe { std::env::set_var("SPILLWAY_LINK", link.to_string()) };
        spillway_shim_core::start();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        // SAFETY: plain calls with valid arguments.
        let set = unsafe {
            assert_eq!(descriptors::listen(listener.as_raw_fd(), 128), 0);
            epoll::record_set(libc::epoll_create1(libc::EPOLL_CLOEXEC))
        };
        let inside = Inside { listener, set, link };
        assert_eq!(
            inside.control(libc::EPOLL_CTL_ADD, inside.listener.as_raw_fd(), libc::EPOLLIN as u32, LISTENER),
            0
        );
        inside
    })
}

impl Inside {
    pub fn control(&self, operation: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: the event outlives the call.
        unsafe { epoll::control(self.set, operation, fd, &raw mut event) }
    }

    pub fn wait(&self, max: usize, timeout_ms: c_int) -> Vec<(u64, u32)> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; max];
        // SAFETY: there is room for `max` events.
        let count = unsafe {
            epoll::wait(self.set, events.as_mut_ptr(), max as c_int, epoll::Wait::Plain(timeout_ms))
        };
        assert!(count >= 0, "{}", std::io::Error::last_os_error());
        events[..count as usize].iter().map(|event| (event.u64, event.events)).collect()
    }

    pub fn accept(&self) -> Option<c_int> {
        let null = std::ptr::null_mut();
        // SAFETY: null pointers request no address.
        let fd = unsafe {
            accept::accept(self.listener.as_raw_fd(), null, std::ptr::null_mut(), libc::SOCK_CLOEXEC)
        };
        (fd >= 0).then_some(fd)
    }
}
