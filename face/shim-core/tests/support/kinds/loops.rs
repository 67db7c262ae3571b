//! Servers with an event loop: `poll`, `select`, and the usual ways to use epoll.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Barrier;
use std::thread;

use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, c_int, epoll_event, pollfd};

use super::{Client, accept, close, nonblocking, read, write};

/// A loop over all clients with `poll`, or another `wait` with the same interface.
pub(super) fn polling(listener: &TcpListener, wait: impl Fn(&mut [pollfd]) -> c_int) -> ! {
    nonblocking(listener.as_raw_fd());
    let mut clients: HashMap<RawFd, Client> = HashMap::new();
    loop {
        let to_poll = |(fd, client): (&RawFd, &Client)| {
            let input = if client.ended || client.unsent.len() >= 64 * 1024 { 0 } else { libc::POLLIN };
            let output = if client.unsent.is_empty() { 0 } else { libc::POLLOUT };
            pollfd { fd: *fd, events: input | output, revents: 0 }
        };
        let mut descriptors: Vec<pollfd> = clients.iter().map(to_poll).collect();
        descriptors.push(pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        let ready = wait(&mut descriptors);
        assert!(ready > 0, "{}", std::io::Error::last_os_error());
        assert_eq!(ready as usize, descriptors.iter().filter(|polled| polled.revents != 0).count());
        if descriptors.pop().is_some_and(|listener| listener.revents != 0) {
            while let Some(fd) = accept(listener) {
                nonblocking(fd);
                clients.insert(fd, Client::default());
            }
        }
        for polled in descriptors.iter().filter(|polled| polled.revents != 0) {
            if clients.get_mut(&polled.fd).is_some_and(|client| !client.turn(polled.fd)) {
                clients.remove(&polled.fd);
                close(polled.fd);
            }
        }
    }
}

pub(super) fn select(descriptors: &mut [pollfd]) -> c_int {
    // SAFETY: all zeros is an empty set; numbers are below its size.
    unsafe {
        let mut sets: [libc::fd_set; 2] = std::mem::zeroed();
        for polled in descriptors.iter() {
            assert!((polled.fd as usize) < libc::FD_SETSIZE);
            for (set, bit) in sets.iter_mut().zip([libc::POLLIN, libc::POLLOUT]) {
                if polled.events & bit != 0 {
                    libc::FD_SET(polled.fd, set);
                }
            }
        }
        let count = descriptors.iter().map(|polled| polled.fd).max().unwrap() + 1;
        let mut time = libc::timeval { tv_sec: 3600, tv_usec: 0 };
        let [input, output] = &mut sets;
        let ready = libc::select(count, input, output, std::ptr::null_mut(), &raw mut time);
        assert!(ready > 0 && time.tv_sec > 0);
        for polled in descriptors.iter_mut() {
            let has = |set: &libc::fd_set, bit| if libc::FD_ISSET(polled.fd, set) { bit } else { 0 };
            polled.revents = has(&sets[0], libc::POLLIN) | has(&sets[1], libc::POLLOUT);
        }
        descriptors.iter().filter(|polled| polled.revents != 0).count() as c_int
    }
}

pub(super) struct Set(pub(super) c_int);

impl Set {
    pub(super) fn new() -> Set {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        Set(fd)
    }

    pub(super) fn control(&self, operation: c_int, fd: RawFd, events: u32) -> c_int {
        let mut event = epoll_event { events, u64: fd as u64 };
        // SAFETY: the event outlives the call.
        unsafe { libc::epoll_ctl(self.0, operation, fd, &raw mut event) }
    }

    pub(super) fn add(&self, fd: RawFd, events: u32) {
        assert_eq!(self.control(libc::EPOLL_CTL_ADD, fd, events), 0, "{}", std::io::Error::last_os_error());
    }

    pub(super) fn wait(&self) -> Vec<(RawFd, u32)> {
        self.wait_for(64)
    }

    fn wait_for(&self, max: usize) -> Vec<(RawFd, u32)> {
        let mut events = vec![epoll_event { events: 0, u64: 0 }; max];
        // SAFETY: there is room for `max` events.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), max as c_int, -1) };
        assert!(count > 0, "{}", std::io::Error::last_os_error());
        events[..count as usize].iter().map(|event| (event.u64 as RawFd, event.events)).collect()
    }
}

/// An event loop. Clients are watched for `events`; with `is_one_shot`, they are watched again after each turn.
pub(super) fn epoll_loop(listeners: &[&TcpListener], events: u32, is_one_shot: bool) -> ! {
    let set = Set::new();
    for listener in listeners {
        nonblocking(listener.as_raw_fd());
        set.add(listener.as_raw_fd(), EPOLLIN as u32);
    }
    let mut clients: HashMap<RawFd, Client> = HashMap::new();
    loop {
        for (fd, _) in set.wait() {
            if let Some(listener) = listeners.iter().find(|listener| listener.as_raw_fd() == fd) {
                while let Some(fd) = accept(listener) {
                    nonblocking(fd);
                    clients.insert(fd, Client::default());
                    set.add(fd, events);
                }
                continue;
            }
            let Some(client) = clients.get_mut(&fd) else { continue };
            let is_edge = events & EPOLLET as u32 != 0;
            // Edge-triggered: reads and writes until both would block.
            let stays_open = loop {
                let stays_open = client.turn(fd);
                if !stays_open || !is_edge || !client.unsent.is_empty() {
                    break stays_open;
                }
                let mut byte = 0u8;
                // SAFETY: the buffer has one byte.
                let more =
                    unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
                if more < 0 {
                    break true;
                }
            };
            if !stays_open {
                clients.remove(&fd);
                close(fd);
            } else if !is_edge {
                let output = if client.unsent.is_empty() { 0 } else { EPOLLOUT as u32 };
                if is_one_shot || output != 0 || events & EPOLLOUT as u32 == 0 {
                    assert_eq!(set.control(libc::EPOLL_CTL_MOD, fd, events | output), 0);
                }
            }
        }
    }
}

/// Four threads, each with a listener and an event loop of its own.
pub(super) fn reuseport(address: SocketAddr, first: TcpListener) -> ! {
    drop(first); // this listener is bound without SO_REUSEPORT
    for _ in 0..4 {
        thread::spawn(move || {
            use std::os::fd::FromRawFd;
            // SAFETY: plain calls with valid arguments; the listener takes over the descriptor.
            let listener = unsafe {
                let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
                let enabled: c_int = 1;
                let length = size_of::<c_int>() as u32;
                for option in [libc::SO_REUSEPORT, libc::SO_REUSEADDR] {
                    let set =
                        libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const enabled).cast(), length);
                    assert_eq!(set, 0);
                }
                let SocketAddr::V4(v4) = address else { panic!("the test's address should be IPv4") };
                let mut name: libc::sockaddr_in = std::mem::zeroed();
                name.sin_family = libc::AF_INET as u16;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                let length = size_of::<libc::sockaddr_in>() as u32;
                assert_eq!(libc::bind(fd, (&raw const name).cast(), length), 0);
                assert_eq!(libc::listen(fd, 1024), 0);
                TcpListener::from_raw_fd(fd)
            };
            epoll_loop(&[&listener], EPOLLIN as u32, false)
        });
    }
    loop {
        thread::park();
    }
}

/// Three threads, each with the same listener in a set of its own, with EPOLLEXCLUSIVE.
pub(super) fn exclusive(listener: &TcpListener) -> ! {
    nonblocking(listener.as_raw_fd());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let set = Set::new();
                set.add(listener.as_raw_fd(), (EPOLLIN | EPOLLEXCLUSIVE) as u32);
                let mut clients: HashMap<RawFd, Client> = HashMap::new();
                loop {
                    for (fd, _) in set.wait() {
                        if fd == listener.as_raw_fd() {
                            if let Some(fd) = accept(listener) {
                                nonblocking(fd);
                                clients.insert(fd, Client::default());
                                set.add(fd, (EPOLLIN | EPOLLOUT | EPOLLET) as u32);
                            }
                        } else if clients.get_mut(&fd).is_some_and(|client| !client.turn(fd)) {
                            clients.remove(&fd);
                            close(fd);
                        }
                    }
                }
            });
        }
    });
    unreachable!("a thread of the server has ended")
}

/// Each connection is in one set for reading and in another, of another thread, for writing.
pub(super) fn two_sets(listener: &TcpListener) -> ! {
    use std::sync::{Arc, Mutex};
    nonblocking(listener.as_raw_fd());
    let clients: Arc<Mutex<HashMap<RawFd, Client>>> = Arc::default();
    let (readers, writers) = (Set::new(), Arc::new(Set::new()));
    let (shared, set) = (clients.clone(), writers.clone());
    thread::spawn(move || {
        loop {
            for (fd, _) in set.wait() {
                let mut clients = shared.lock().unwrap();
                let Some(client) = clients.get_mut(&fd) else { continue };
                if client.turn(fd) {
                    if client.unsent.is_empty() {
                        assert_eq!(set.control(libc::EPOLL_CTL_MOD, fd, 0), 0);
                    }
                } else {
                    clients.remove(&fd);
                    close(fd); // removes the connection from both sets
                }
            }
        }
    });
    readers.add(listener.as_raw_fd(), EPOLLIN as u32);
    loop {
        for (fd, _) in readers.wait() {
            if fd == listener.as_raw_fd() {
                while let Some(fd) = accept(listener) {
                    nonblocking(fd);
                    clients.lock().unwrap().insert(fd, Client::default());
                    writers.add(fd, 0);
                    readers.add(fd, (EPOLLIN | EPOLLET) as u32);
                }
                continue;
            }
            // Wakes the other thread, which does the work.
            if clients.lock().unwrap().contains_key(&fd) {
                writers.control(libc::EPOLL_CTL_MOD, fd, EPOLLOUT as u32);
            }
        }
    }
}

/// Number of threads of [`pool`], and of the test's clients.
const POOL_THREADS: usize = 6;

/// [`POOL_THREADS`] threads wait in one set, for one event each. No thread answers before each thread has a client.
pub(super) fn pool(listener: &TcpListener) -> ! {
    nonblocking(listener.as_raw_fd());
    let set: &'static Set = Box::leak(Box::new(Set::new()));
    set.add(listener.as_raw_fd(), EPOLLIN as u32);
    let all_have_a_client: &'static Barrier = Box::leak(Box::new(Barrier::new(POOL_THREADS)));
    thread::scope(|scope| {
        for _ in 0..POOL_THREADS {
            scope.spawn(|| {
                loop {
                    let (fd, _) = set.wait_for(1)[0];
                    if fd == listener.as_raw_fd() {
                        while let Some(fd) = accept(listener) {
                            nonblocking(fd);
                            set.add(fd, (EPOLLIN | EPOLLONESHOT) as u32);
                        }
                        continue;
                    }
                    let mut buffer = [0; 100];
                    let length = read(fd, &mut buffer);
                    if length <= 0 {
                        close(fd);
                        continue;
                    }
                    all_have_a_client.wait();
                    assert_eq!(write(fd, &buffer[..length as usize]), length);
                    assert_eq!(set.control(libc::EPOLL_CTL_MOD, fd, (EPOLLIN | EPOLLONESHOT) as u32), 0);
                }
            });
        }
    });
    unreachable!("a thread of the server has ended")
}

/// The main thread blocks in `accept` and hands connections to two event loops.
pub(super) fn hand_over(listener: &TcpListener) -> ! {
    let sets: Vec<&'static Set> = (0..2)
        .map(|_| {
            let set: &'static Set = Box::leak(Box::new(Set::new()));
            thread::spawn(move || {
                let mut clients: HashMap<RawFd, Client> = HashMap::new();
                loop {
                    for (fd, _) in set.wait() {
                        if !clients.entry(fd).or_default().turn(fd) {
                            clients.remove(&fd);
                            close(fd);
                        }
                    }
                }
            });
            set
        })
        .collect();
    for set in sets.iter().cycle() {
        let fd = accept(listener).unwrap();
        nonblocking(fd);
        set.add(fd, (EPOLLIN | EPOLLOUT | EPOLLET) as u32);
    }
    unreachable!("a cycle over two sets has ended")
}

/// Tries to set up io_uring, as libuv does, and then uses epoll.
pub(super) fn rings(listener: &TcpListener) -> ! {
    let mut parameters = [0u64; 32];
    // SAFETY: the parameters are larger than the kernel's structure.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()), -1);
        assert_eq!(*libc::__errno_location(), libc::ENOSYS);
        // Other system calls still work.
        assert_eq!(libc::syscall(libc::SYS_getpid), i64::from(libc::getpid()));
    }
    epoll_loop(&[listener], EPOLLIN as u32, false)
}
