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
