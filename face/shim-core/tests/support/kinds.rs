//! Echo servers of all kinds, on plain calls of libc, so that they come by the shim. Each sends back what it
//! receives, and `bye` when its client sends no more.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::mpsc;
use std::thread;

use libc::{
    EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int, epoll_event, pollfd,
};

/// Runs the server of this kind on this address, for ever.
pub fn serve(kind: &str, address: SocketAddr) -> ! {
    let listener = TcpListener::bind(address).unwrap();
    match kind {
        "poll" => polling(&listener, |descriptors| {
            // SAFETY: the descriptors are the slice.
            unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as u64, -1) }
        }),
        "ppoll" => polling(&listener, |descriptors| {
            // SAFETY: as above; neither time nor mask.
            unsafe {
                libc::ppoll(
                    descriptors.as_mut_ptr(),
                    descriptors.len() as u64,
                    std::ptr::null(),
                    std::ptr::null(),
                )
            }
        }),
        "select" => polling(&listener, select),
        "threads" => threads(&listener),
        "prethreads" => prethreads(listener),
        "level" => epoll_loop(&[&listener], EPOLLIN as u32, false),
        "edge" => epoll_loop(&[&listener], (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32, false),
        "oneshot" => epoll_loop(&[&listener], (EPOLLIN | EPOLLONESHOT) as u32, true),
        "reuseport" => reuseport(address, listener),
        "exclusive" => exclusive(&listener),
        "two-sets" => two_sets(&listener),
        "closer" => closer(&listener),
        "hand-over" => hand_over(&listener),
        "mmsg" => mmsg(&listener),
        "sendfile" => send_file(&listener),
        "forks" => forks(&listener),
        "calls" => calls(&listener),
        "rings" => rings(&listener),
        other => panic!("no server of the kind {other}"),
    }
}

fn accept(listener: &TcpListener) -> Option<RawFd> {
    listener.accept().ok().map(|(stream, _)| stream.into_raw_fd())
}

fn read(fd: RawFd, buffer: &mut [u8]) -> isize {
    // SAFETY: the buffer is the slice.
    unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }
}

fn write(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: the bytes are the slice.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

fn close(fd: RawFd) {
    // SAFETY: the descriptor is the caller's.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn nonblocking(fd: RawFd) {
    // SAFETY: no pointers are passed.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFL), flags | libc::O_NONBLOCK);
    }
}

fn would_block() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
}

/// What a client has yet to get.
#[derive(Default)]
struct Client {
    waiting: Vec<u8>,
    ended: bool,
}

impl Client {
    /// Reads and writes until nothing more goes. `false` when the client is done with.
    fn turn(&mut self, fd: RawFd) -> bool {
        let mut buffer = [0; 16 * 1024];
        // Not without end: a client that sends and does not read must not fill our memory.
        while !self.ended && self.waiting.len() < 64 * 1024 {
            match read(fd, &mut buffer) {
                0 => {
                    self.ended = true;
                    self.waiting.extend_from_slice(b"bye");
                }
                -1 if would_block() => break,
                -1 => return false,
                length => self.waiting.extend_from_slice(&buffer[..length as usize]),
            }
        }
        while !self.waiting.is_empty() {
            match write(fd, &self.waiting) {
                -1 if would_block() => return true,
                -1 => return false,
                length => drop(self.waiting.drain(..length as usize)),
            }
        }
        !self.ended
    }
}

/// A loop over all clients with `poll` or the like.
fn polling(listener: &TcpListener, wait: impl Fn(&mut [pollfd]) -> c_int) -> ! {
    nonblocking(listener.as_raw_fd());
    let mut clients: HashMap<RawFd, Client> = HashMap::new();
    loop {
        let one = |(fd, client): (&RawFd, &Client)| {
            let input = if client.ended || client.waiting.len() >= 64 * 1024 { 0 } else { libc::POLLIN };
            let output = if client.waiting.is_empty() { 0 } else { libc::POLLOUT };
            pollfd { fd: *fd, events: input | output, revents: 0 }
        };
        let mut descriptors: Vec<pollfd> = clients.iter().map(one).collect();
        descriptors.push(pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        let ready = wait(&mut descriptors);
        assert!(ready > 0, "{}", std::io::Error::last_os_error());
        assert_eq!(ready as usize, descriptors.iter().filter(|one| one.revents != 0).count());
        if descriptors.pop().is_some_and(|listener| listener.revents != 0) {
            while let Some(fd) = accept(listener) {
                nonblocking(fd);
                clients.insert(fd, Client::default());
            }
        }
        for one in descriptors.iter().filter(|one| one.revents != 0) {
            if clients.get_mut(&one.fd).is_some_and(|client| !client.turn(one.fd)) {
                clients.remove(&one.fd);
                close(one.fd);
            }
        }
    }
}

fn select(descriptors: &mut [pollfd]) -> c_int {
    // SAFETY: all zeros is an empty set; numbers are below its size.
    unsafe {
        let mut sets: [libc::fd_set; 2] = std::mem::zeroed();
        for one in descriptors.iter() {
            assert!((one.fd as usize) < libc::FD_SETSIZE);
            for (set, bit) in sets.iter_mut().zip([libc::POLLIN, libc::POLLOUT]) {
                if one.events & bit != 0 {
                    libc::FD_SET(one.fd, set);
                }
            }
        }
        let count = descriptors.iter().map(|one| one.fd).max().unwrap() + 1;
        let mut time = libc::timeval { tv_sec: 3600, tv_usec: 0 };
        let [input, output] = &mut sets;
        let ready = libc::select(count, input, output, std::ptr::null_mut(), &raw mut time);
        assert!(ready > 0 && time.tv_sec > 0);
        for one in descriptors.iter_mut() {
            let has = |set: &libc::fd_set, bit| if libc::FD_ISSET(one.fd, set) { bit } else { 0 };
            one.revents = has(&sets[0], libc::POLLIN) | has(&sets[1], libc::POLLOUT);
        }
        descriptors.iter().filter(|one| one.revents != 0).count() as c_int
    }
}

/// Reads and writes one client on a blocking descriptor, until it has no more.
fn converse(fd: RawFd) {
    let mut buffer = vec![0; 100_000];
    loop {
        match read(fd, &mut buffer) {
            0 => {
                write(fd, b"bye");
                break;
            }
            length if length > 0 => assert_eq!(write(fd, &buffer[..length as usize]), length),
            _ => break,
        }
    }
    close(fd);
}

/// A thread for each connection; the main thread blocks in `accept`.
fn threads(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || converse(fd));
    }
}

/// Eight threads that block in `accept`, and then serve one client after the other.
fn prethreads(listener: TcpListener) -> ! {
    let listener: &'static TcpListener = Box::leak(Box::new(listener));
    for _ in 0..8 {
        thread::spawn(move || {
            loop {
                converse(accept(listener).unwrap());
            }
        });
    }
    loop {
        thread::park();
    }
}

struct Set(c_int);

impl Set {
    fn new() -> Set {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        Set(fd)
    }

    fn control(&self, operation: c_int, fd: RawFd, events: u32) -> c_int {
        let mut event = epoll_event { events, u64: fd as u64 };
        // SAFETY: the event outlives the call.
        unsafe { libc::epoll_ctl(self.0, operation, fd, &raw mut event) }
    }

    fn add(&self, fd: RawFd, events: u32) {
        assert_eq!(self.control(libc::EPOLL_CTL_ADD, fd, events), 0, "{}", std::io::Error::last_os_error());
    }

    fn wait(&self) -> Vec<(RawFd, u32)> {
        let mut events = [epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: there is room for 64.
        let count = unsafe { libc::epoll_wait(self.0, events.as_mut_ptr(), 64, -1) };
        assert!(count > 0, "{}", std::io::Error::last_os_error());
        events[..count as usize].iter().map(|event| (event.u64 as RawFd, event.events)).collect()
    }
}

/// An event loop; clients are watched for `events`, and again after each turn if they fire once.
fn epoll_loop(listeners: &[&TcpListener], events: u32, rearm: bool) -> ! {
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
            // Edge-triggered: until nothing more goes.
            let goes_on = loop {
                let goes_on = client.turn(fd);
                if !goes_on || !is_edge || !client.waiting.is_empty() {
                    break goes_on;
                }
                let mut byte = 0u8;
                // SAFETY: one byte is offered.
                let more =
                    unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
                if more < 0 {
                    break true;
                }
            };
            if !goes_on {
                clients.remove(&fd);
                close(fd);
            } else if !is_edge {
                let output = if client.waiting.is_empty() { 0 } else { EPOLLOUT as u32 };
                if rearm || output != 0 || events & EPOLLOUT as u32 == 0 {
                    assert_eq!(set.control(libc::EPOLL_CTL_MOD, fd, events | output), 0);
                }
            }
        }
    }
}

/// Four threads, each with a listener and an event loop of its own.
fn reuseport(address: SocketAddr, first: TcpListener) -> ! {
    drop(first); // it was not bound with SO_REUSEPORT
    for _ in 0..4 {
        thread::spawn(move || {
            use std::os::fd::FromRawFd;
            // SAFETY: plain calls with valid arguments; the descriptor becomes the listener's own.
            let listener = unsafe {
                let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
                let one: c_int = 1;
                let length = size_of::<c_int>() as u32;
                for option in [libc::SO_REUSEPORT, libc::SO_REUSEADDR] {
                    let set = libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const one).cast(), length);
                    assert_eq!(set, 0);
                }
                let SocketAddr::V4(v4) = address else { panic!("an IPv4 address") };
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

/// Three threads with one listener in a set of each, exclusively.
fn exclusive(listener: &TcpListener) -> ! {
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
    unreachable!("the threads never end")
}

/// Each connection is in one set for reading and in another, of another thread, for writing.
fn two_sets(listener: &TcpListener) -> ! {
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
                    if client.waiting.is_empty() {
                        assert_eq!(set.control(libc::EPOLL_CTL_MOD, fd, 0), 0);
                    }
                } else {
                    clients.remove(&fd);
                    close(fd); // and with that out of both sets
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
            // The other thread does the work: it is told by its own set.
            if clients.lock().unwrap().contains_key(&fd) {
                writers.control(libc::EPOLL_CTL_MOD, fd, EPOLLOUT as u32);
            }
        }
    }
}

/// A thread blocks in `read` for each connection; another ends those that say how: `close`, `shut` or `replace`.
fn closer(listener: &TcpListener) -> ! {
    let (sender, receiver) = mpsc::channel::<(RawFd, u8)>();
    let nothing: RawFd = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
    thread::spawn(move || {
        for (fd, how) in receiver {
            match how {
                b'c' => close(fd),
                // SAFETY: no pointers are passed.
                b's' => assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) }, 0),
                // SAFETY: as above.
                _ => assert_eq!(unsafe { libc::dup2(nothing, fd) }, fd),
            }
        }
    });
    loop {
        let fd = accept(listener).unwrap();
        let sender = sender.clone();
        thread::spawn(move || {
            let mut buffer = [0; 1000];
            loop {
                let length = read(fd, &mut buffer);
                let bytes = &buffer[..length.max(0) as usize];
                match bytes.first() {
                    // The number is another's to close, and may be another client's at once.
                    Some(b'c') => return sender.send((fd, b'c')).unwrap(),
                    Some(how @ (b's' | b'r')) => sender.send((fd, *how)).unwrap(),
                    // What came late may find the connection shut down already.
                    Some(_) if write(fd, bytes) == length => {}
                    _ => return close(fd),
                }
            }
        });
    }
}

/// The main thread blocks in `accept` and hands connections to two event loops.
fn hand_over(listener: &TcpListener) -> ! {
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
    unreachable!("there are always sets")
}

/// A thread for each connection, on `recvmmsg` and `sendmmsg`.
fn mmsg(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || {
            let mut buffers = [[0u8; 1000]; 4];
            loop {
                // SAFETY: all zeros are valid messages; buffers and vectors outlive the calls.
                unsafe {
                    let mut parts = buffers
                        .each_mut()
                        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 1000 });
                    let mut messages: [libc::mmsghdr; 4] = std::mem::zeroed();
                    for (message, part) in messages.iter_mut().zip(&mut parts) {
                        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
                    }
                    let count = libc::recvmmsg(fd, messages.as_mut_ptr(), 4, 0x10000, std::ptr::null_mut());
                    let ended = count <= 0 || messages[count as usize - 1].msg_len == 0;
                    let count = if ended { count - 1 } else { count };
                    for (message, part) in messages.iter().zip(&mut parts) {
                        part.iov_len = message.msg_len as usize;
                    }
                    if count > 0 {
                        assert_eq!(libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0), count);
                    }
                    if ended {
                        write(fd, b"bye");
                        close(fd);
                        return;
                    }
                }
            }
        });
    }
}

/// Sends back through a file: what it has received is written to one and sent from there.
fn send_file(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 300_000];
            // SAFETY: plain calls with valid arguments.
            unsafe {
                let file = libc::memfd_create(c"echo".as_ptr(), libc::MFD_CLOEXEC);
                let mut offset: libc::off_t = 0;
                loop {
                    let length = read(fd, &mut buffer);
                    if length <= 0 {
                        break;
                    }
                    assert_eq!(write(file, &buffer[..length as usize]), length);
                    assert_eq!(libc::sendfile(fd, file, &raw mut offset, length as usize), length);
                    let null = std::ptr::null_mut();
                    assert_eq!(libc::splice(fd, null, file, null, 1, 0), -1);
                    assert_eq!(*libc::__errno_location(), libc::EINVAL);
                }
                write(fd, b"bye");
                close(file);
                close(fd);
            }
        });
    }
}

/// A process for each connection: not served, and said so.
fn forks(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        // SAFETY: the child only makes system calls.
        unsafe {
            if libc::fork() == 0 {
                let mut byte = [0; 1];
                let length = libc::read(fd, byte.as_mut_ptr().cast(), 1);
                libc::_exit(if length < 0 { 0 } else { 1 });
            }
        }
        close(fd);
    }
}

/// Tries to make a ring, as libuv does, and then goes on with epoll.
fn rings(listener: &TcpListener) -> ! {
    let mut parameters = [0u64; 32];
    // SAFETY: the parameters are larger than the kernel's structure.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()), -1);
        assert_eq!(*libc::__errno_location(), libc::ENOSYS);
        // Other system calls pass.
        assert_eq!(libc::syscall(libc::SYS_getpid), i64::from(libc::getpid()));
    }
    epoll_loop(&[listener], EPOLLIN as u32, false)
}

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

/// Tries every call on each connection, and sends what went wrong.
fn calls(listener: &TcpListener) -> ! {
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

fn int(fd: RawFd, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut length): (c_int, _) = (-1, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the value has the length that is said.
    let outcome = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (outcome == 0).then_some(value)
}

fn set_int(fd: RawFd, level: c_int, name: c_int, value: c_int) -> bool {
    // SAFETY: the value has the length that is said.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<c_int>() as u32) == 0 }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The client sends ten digits, and after each `+` ten more.
unsafe fn try_calls(fd: RawFd, wrong: &mut Vec<String>) {
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
