//! Random frames on links and random calls on descriptors, from a seed. The bytes that the application reads are
//! checked, and a well-behaved link is served at the end.
//!
//! `SPILLWAY_FUZZ_SEED` and `SPILLWAY_FUZZ_STEPS` set the seed and the number of steps.

mod support;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, iovec, msghdr, pollfd};
use spillway_batch::{CloseReason, Id};
use spillway_shim_core::{
    connection_addresses, data, descriptors, kernel_copies, multiple_messages, options, poll, select,
};
use support::driver::{Driver, WAIT_MAX};
use support::inside::{self, Inside, LISTENER};

/// A linear congruential generator, with the same sequence on every machine.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The byte at this offset of the stream that the client with this port sends.
fn byte_at(port: u16, offset: u64) -> u8 {
    (u64::from(port) * 31 + offset * 7 + (offset >> 8)) as u8
}

/// Opens links and sends valid and invalid frames on them until `stop` is set. `number` distinguishes the drivers.
fn send_random_frames(link: SocketAddr, seed: u64, number: u16, stop: &AtomicBool) {
    let mut random = Random(seed);
    // Each driver has its own range of client ports.
    let first_port = 1024 + number * 20_000;
    let mut next_port = first_port;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut driver) =
            Driver::open(link, spillway_batch::Role::Helper, spillway_auth::Key::loopback_only())
        else {
            continue;
        };
        // The port of each client, and the number of bytes sent.
        let mut clients: HashMap<Id, (u16, u64)> = HashMap::new();
        for _ in 0..random.below(400) {
            if driver.lost.is_some() || stop.load(Ordering::Relaxed) {
                break;
            }
            let ids: Vec<Id> = clients.keys().copied().collect();
            match random.below(12) {
                0 if clients.len() < 30 => {
                    next_port = first_port + (next_port + 1 - first_port) % 20_000;
                    let client = SocketAddr::from(([127, 5, 5, 5], next_port));
                    clients.insert(driver.connect_from(client), (next_port, 0));
                }
                1..=6 if !ids.is_empty() => {
                    let mut ids = ids;
                    ids.sort_unstable();
                    let id = random.choose(&ids);
                    let (port, offset) = clients.get_mut(&id).unwrap();
                    let length = random.choose(&[1, 3, 40, 700, 20_000]);
                    let bytes: Vec<u8> = (0..length).map(|at| byte_at(*port, *offset + at)).collect();
                    if driver.unsent_bytes() < 200_000 {
                        driver.send(id, &bytes);
                        *offset += length;
                    }
                }
                7 if !ids.is_empty() => driver.link.finish(random.choose(&ids)),
                8 if !ids.is_empty() => {
                    let id = random.choose(&ids);
                    driver.link.close(id, random.choose(&[CloseReason::Normal, CloseReason::Reset]));
                    clients.remove(&id);
                }
                // Random bytes, which usually end the link.
                9 if random.below(20) == 0 => {
                    driver.flush();
                    let length = random.below(60) + 1;
                    let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                    if random.below(2) == 0 {
                        bytes[0] = random.below(13) as u8; // a valid frame kind
                    }
                    let _ = driver.stream.write_all(&bytes);
                }
                _ => {
                    driver.flush();
                    driver.receive(Duration::from_millis(1));
                }
            }
        }
        driver.flush();
    }
}

/// A virtual connection of the application.
struct OpenConnection {
    descriptors: Vec<c_int>,
    bytes_read: u64,
}

struct Application {
    inside: &'static Inside,
    random: Random,
    /// Open connections by their clients' ports.
    open: HashMap<u16, OpenConnection>,
    /// Real descriptors and invalid numbers.
    others: Vec<c_int>,
}

impl Application {
    /// The descriptors and their clients' ports.
    fn virtuals(&self) -> Vec<(c_int, u16)> {
        let mut all: Vec<(c_int, u16)> = self
            .open
            .iter()
            .flat_map(|(port, connection)| connection.descriptors.iter().map(|fd| (*fd, *port)))
            .collect();
        all.sort_unstable();
        all
    }

    fn accept(&mut self) {
        while let Some(fd) = self.inside.accept() {
            let port = peer_port(fd).expect("an accepted connection should have a client");
            // Short timeouts, so that blocking calls end soon.
            let time = libc::timeval { tv_sec: 0, tv_usec: 1000 };
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                let length = size_of::<libc::timeval>() as u32;
                // SAFETY: `time` has `length` bytes.
                let set = unsafe {
                    options::set_option(fd, libc::SOL_SOCKET, option, (&raw const time).cast(), length)
                };
                assert_eq!(set, 0);
            }
            self.inside.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64);
            self.open.insert(port, OpenConnection { descriptors: vec![fd], bytes_read: 0 });
        }
    }

    /// Checks the bytes that a read has copied. `length` is the read's result; with MSG_TRUNC, a read copies nothing.
    fn check(&mut self, port: u16, bytes: &[u8], length: usize, is_peek: bool) {
        let Some(connection) = self.open.get_mut(&port) else { return };
        for (offset, byte) in (connection.bytes_read..).zip(bytes) {
            assert_eq!(
                *byte,
                byte_at(port, offset),
                "client {port}: the byte at offset {offset} should arrive as it was sent"
            );
        }
        if !is_peek {
            connection.bytes_read += length as u64;
        }
    }

    fn read(&mut self, fd: c_int, port: u16) {
        let flags = self.random.choose(&[
            0,
            0,
            libc::MSG_PEEK,
            libc::MSG_DONTWAIT,
            libc::MSG_WAITALL,
            libc::MSG_TRUNC,
        ]);
        let mut buffer = [0u8; 5000];
        let length = self.random.choose(&[1, 10, 64, 5000]);
        let base: *mut c_void = buffer.as_mut_ptr().cast();
        let mut parts = [
            iovec { iov_base: base, iov_len: length / 3 },
            iovec { iov_base: base.wrapping_byte_add(length / 3), iov_len: length - length / 3 },
        ];
        let mut message: msghdr = unsafe_zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        // SAFETY: the buffer, and the parts together, have room for `length` bytes.
        let (got, flags) = unsafe {
            match self.random.below(4) {
                0 => (data::receive(fd, base, length, flags), flags),
                1 => (data::receive_vector(fd, parts.as_ptr(), 2), 0),
                2 => (data::receive_message(fd, &raw mut message, flags), flags),
                _ => {
                    let (from, size) = (std::ptr::null_mut(), std::ptr::null_mut());
                    (data::receive_from(fd, base, length, flags, from, size), flags)
                }
            }
        };
        if let Ok(got) = usize::try_from(got) {
            assert!(got <= length);
            let copied = if flags & libc::MSG_TRUNC != 0 { 0 } else { got };
            let bytes = buffer[..copied].to_vec();
            self.check(port, &bytes, got, flags & libc::MSG_PEEK != 0);
        }
    }

    fn send(&mut self, fd: c_int) {
        let bytes = [b'r'; 3000];
        let length = self.random.choose(&[0, 1, 100, 3000]);
        let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length };
        let flags = self.random.choose(&[0, libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL, libc::MSG_OOB]);
        // SAFETY: `bytes` has at least `length` bytes.
        let sent = unsafe {
            match self.random.below(2) {
                0 => data::send(fd, bytes.as_ptr().cast(), length, flags),
                _ => data::send_vector(fd, &raw const part, 1),
            }
        };
        assert!(sent <= length as isize);
    }

    fn duplicate(&mut self, fd: c_int, port: u16) {
        // SAFETY: no pointers are passed.
        let new = unsafe {
            match self.random.below(4) {
                // An invalid flag: the call fails, and the connection stays open.
                0 => {
                    let invalid = libc::O_NONBLOCK;
                    let failed = descriptors::duplicate_to(0, fd, invalid, || libc::dup3(0, fd, invalid));
                    assert_eq!((failed, peer_port(fd)), (-1, Some(port)));
                    return;
                }
                1 => descriptors::duplicate(fd, || libc::dup(fd)),
                2 => descriptors::control(fd, libc::F_DUPFD_CLOEXEC, 0),
                _ => {
                    // Replaces a new descriptor.
                    let to = libc::dup(0);
                    descriptors::duplicate_to(fd, to, 0, || libc::dup2(fd, to))
                }
            }
        };
        assert!(new >= 0);
        self.open.entry(port).and_modify(|connection| connection.descriptors.push(new));
    }

    fn close(&mut self, fd: c_int, port: u16) {
        // SAFETY: the descriptor belongs to this test.
        assert_eq!(unsafe { descriptors::close(fd) }, 0);
        let Some(connection) = self.open.get_mut(&port) else { return };
        connection.descriptors.retain(|other| *other != fd);
        if connection.descriptors.is_empty() {
            self.open.remove(&port);
        }
    }

    /// A random other call on a virtual connection or another descriptor.
    fn other_call(&mut self, fd: c_int) {
        let mut buffer = [0u8; 256];
        let base: *mut c_void = buffer.as_mut_ptr().cast();
        let mut length = self.random.below(200) as u32;
        let level = self.random.choose(&[libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IP, 77]);
        let name = loop {
            let name = self.random.below(80) as c_int;
            if ![libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].contains(&name) {
                break name;
            }
        };
        let (number, operation) = (self.random.below(100_000), self.random.below(5) as c_int);
        let events = (self.random.below(1 << 30) as u32) << 2 | self.random.below(4) as u32;
        // SAFETY: buffers are at least as long as the lengths passed; other pointers are null or to locals.
        unsafe {
            match self.random.below(16) {
                0 => ignore(options::option(fd, level, name, base, &raw mut length)),
                1 => ignore(options::set_option(fd, level, name, base, length)),
                2 => ignore(connection_addresses::peer_name(fd, base.cast(), &raw mut length)),
                3 => ignore(connection_addresses::socket_name(fd, base.cast(), &raw mut length)),
                4 => ignore(descriptors::control(fd, libc::F_GETFL, 0)),
                5 => ignore(descriptors::control(
                    fd,
                    libc::F_SETFL,
                    self.random.choose(&[0, libc::O_NONBLOCK]) as usize,
                )),
                6 => ignore(descriptors::control(fd, libc::F_GETFD, number)),
                7 => ignore(descriptors::device_control(fd, libc::FIONREAD, base.expose_provenance())),
                8 => ignore(descriptors::device_control(fd, libc::FIONBIO, base.expose_provenance())),
                9 => ignore(descriptors::shutdown(fd, operation)),
                10 | 11 => ignore(self.inside.control(operation, fd, events, fd as u64)),
                12 => ignore(kernel_copies::splice(fd, std::ptr::null_mut(), -1, std::ptr::null_mut(), 1, 0)),
                13 => ignore(kernel_copies::send_file(fd, -1, std::ptr::null_mut(), number)),
                14 => {
                    let mut messages: [libc::mmsghdr; 2] = unsafe_zeroed();
                    multiple_messages::send(fd, messages.as_mut_ptr(), 2, libc::MSG_DONTWAIT);
                }
                _ => ignore(descriptors::close_range(900_000, 900_100, 0)),
            }
        }
    }

    fn poll_or_select(&mut self) {
        let fds: Vec<c_int> =
            self.virtuals().iter().map(|(fd, _)| *fd).chain(self.others.iter().copied()).collect();
        let mut all: Vec<pollfd> = fds
            .iter()
            .filter(|fd| (**fd as usize) < libc::FD_SETSIZE)
            .map(|fd| pollfd { fd: *fd, events: self.random.below(1 << 10) as i16, revents: 0 })
            .collect();
        // SAFETY: `all` holds the descriptors; the sets have room for the numbers, which were filtered above.
        unsafe {
            if self.random.below(2) == 0 {
                assert!(poll::poll(all.as_mut_ptr(), all.len() as u64, poll::Wait::Plain(0)) >= 0);
                return;
            }
            let mut sets: [libc::fd_set; 3] = std::mem::zeroed();
            for polled in
                all.iter().filter(|polled| polled.fd >= 0 && libc::fcntl(polled.fd, libc::F_GETFD) >= 0)
            {
                libc::FD_SET(polled.fd, &mut sets[polled.events as usize % 3]);
            }
            let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let pointers = sets.each_mut().map(std::ptr::from_mut);
            let ready =
                select::select(libc::FD_SETSIZE as c_int, pointers, select::Wait::Plain(&raw mut time));
            assert!(ready >= 0, "{}", std::io::Error::last_os_error());
        }
    }

    fn step(&mut self) {
        let events = self.inside.wait(self.random.clone().below(60) + 1, 1);
        if events.iter().any(|(data, _)| *data == LISTENER) {
            self.accept();
        }
        let virtuals = self.virtuals();
        for _ in 0..self.random.below(12) {
            let Some((fd, port)) = (!virtuals.is_empty()).then(|| self.random.choose(&virtuals)) else {
                break;
            };
            if !self.open.get(&port).is_some_and(|connection| connection.descriptors.contains(&fd)) {
                continue; // closed in this step
            }
            match self.random.below(30) {
                0..=11 => self.read(fd, port),
                12..=17 => self.send(fd),
                18..=27 => self.other_call(fd),
                28 => self.duplicate(fd, port),
                _ => self.close(fd, port),
            }
        }
        let other = self.random.choose(&self.others);
        if other != self.inside.set && other != self.inside.listener.as_raw_fd() {
            self.other_call(other);
        }
        if self.random.below(8) == 0 {
            self.poll_or_select();
        }
    }
}

fn ignore<T>(_: T) {}

/// The port of the connection's client; `None` if this is not a connection.
fn peer_port(fd: c_int) -> Option<u16> {
    let mut name: libc::sockaddr_in = unsafe_zeroed();
    let mut length = size_of::<libc::sockaddr_in>() as u32;
    // SAFETY: `name` has `length` bytes.
    let outcome = unsafe { connection_addresses::peer_name(fd, (&raw mut name).cast(), &raw mut length) };
    (outcome == 0).then_some(u16::from_be(name.sin_port))
}

fn unsafe_zeroed<T>() -> T {
    // SAFETY: used for structures of C only, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

#[test]
fn random_frames_and_calls_keep_streams_correct_and_the_server_running() {
    let seed = from_environment("SPILLWAY_FUZZ_SEED", 7);
    let steps = from_environment("SPILLWAY_FUZZ_STEPS", 10_000);
    println!("SPILLWAY_FUZZ_SEED={seed} SPILLWAY_FUZZ_STEPS={steps}");
    let inside = inside::start();
    let stop = Arc::new(AtomicBool::new(false));
    let drivers: Vec<_> = (0..3)
        .map(|number| {
            let (stop, link) = (stop.clone(), inside.link);
            std::thread::spawn(move || send_random_frames(link, seed * 3 + u64::from(number), number, &stop))
        })
        .collect();
    let pair = std::os::unix::net::UnixStream::pair().unwrap();
    let mut application = Application {
        inside,
        random: Random(seed),
        open: HashMap::new(),
        others: vec![
            pair.0.as_raw_fd(),
            pair.1.as_raw_fd(),
            inside.set,
            inside.listener.as_raw_fd(),
            -1,
            900_050,
            c_int::MAX,
        ],
    };
    let mut steps_done = 0;
    let (mut accepted, began) = (0, Instant::now());
    while steps_done < steps {
        let before = application.open.len();
        application.step();
        accepted += application.open.len().saturating_sub(before);
        steps_done += 1;
        assert!(
            began.elapsed() < WAIT_MAX * 3,
            "all {steps} steps should be done within {:?}, not only {steps_done}",
            WAIT_MAX * 3
        );
    }
    stop.store(true, Ordering::Relaxed);
    while drivers.iter().any(|driver| !driver.is_finished()) {
        application.step();
        assert!(began.elapsed() < WAIT_MAX * 4, "the drivers should end within {:?}", WAIT_MAX * 4);
    }
    drivers.into_iter().for_each(|driver| driver.join().unwrap());
    assert!(accepted > 20, "more than 20 clients should be accepted: {accepted}");
    for (fd, port) in application.virtuals() {
        application.close(fd, port);
    }
    // A well-behaved client on a link of its own is still served.
    let link = inside.link;
    let client = std::thread::spawn(move || {
        let mut driver = Driver::loopback(link);
        let id = driver.connect();
        driver.ask(id, b"hello", b"hello")
    });
    while !client.is_finished() {
        assert!(
            began.elapsed() < WAIT_MAX * 5,
            "the well-behaved client should be served within {:?}",
            WAIT_MAX * 5
        );
        for (data, _) in inside.wait(16, 10) {
            if data == LISTENER {
                while let Some(fd) = inside.accept() {
                    inside.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64);
                }
                continue;
            }
            let mut buffer = [0u8; 64];
            // SAFETY: the buffer has 64 bytes.
            unsafe {
                let got = data::receive(data as c_int, buffer.as_mut_ptr().cast(), 64, libc::MSG_DONTWAIT);
                if got > 0 {
                    data::send(data as c_int, buffer.as_ptr().cast(), got as usize, 0);
                }
            }
        }
    }
    assert_eq!(client.join().unwrap(), b"hello");
}
