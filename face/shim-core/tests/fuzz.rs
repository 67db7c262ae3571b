//! Random frames on the link and random calls on descriptors, from a seed. Streams are checked byte for byte as far
//! as they are read, and a well-behaved link is served at the end.
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
use spillway_shim_core::{data, descriptors, files, names, options, poll, select, several};
use support::driver::{Driver, PATIENCE};
use support::inside::{self, Inside, LISTENER};

/// A linear congruential generator: the same on every machine.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The byte at an offset of a client's stream.
fn pattern(port: u16, offset: u64) -> u8 {
    (u64::from(port) * 31 + offset * 7 + (offset >> 8)) as u8
}

/// Drives the peer's end of a link with valid and invalid frames until `stop` is set.
fn drive(link: SocketAddr, seed: u64, which: u16, stop: &AtomicBool) {
    let mut random = Random(seed);
    // No two clients have the same port.
    let first_port = 1024 + which * 20_000;
    let mut next_port = first_port;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut driver) =
            Driver::open(link, spillway_batch::Role::Helper, spillway_auth::Key::loopback_only())
        else {
            continue;
        };
        let mut sent: HashMap<Id, (u16, u64)> = HashMap::new();
        for _ in 0..random.below(400) {
            if driver.lost.is_some() || stop.load(Ordering::Relaxed) {
                break;
            }
            let ids: Vec<Id> = sent.keys().copied().collect();
            match random.below(12) {
                0 if sent.len() < 30 => {
                    next_port = first_port + (next_port + 1 - first_port) % 20_000;
                    let client = SocketAddr::from(([127, 5, 5, 5], next_port));
                    sent.insert(driver.connect_from(client), (next_port, 0));
                }
                1..=6 if !ids.is_empty() => {
                    let mut ids = ids;
                    ids.sort_unstable();
                    let id = random.one_of(&ids);
                    let (port, offset) = sent.get_mut(&id).expect("it is one of them");
                    let length = random.one_of(&[1, 3, 40, 700, 20_000]);
                    let bytes: Vec<u8> = (0..length).map(|at| pattern(*port, *offset + at)).collect();
                    if driver.unsent() < 200_000 {
                        driver.send(id, &bytes);
                        *offset += length;
                    }
                }
                7 if !ids.is_empty() => driver.link.finish(random.one_of(&ids)),
                8 if !ids.is_empty() => {
                    let id = random.one_of(&ids);
                    driver.link.close(id, random.one_of(&[CloseReason::Normal, CloseReason::Reset]));
                    sent.remove(&id);
                }
                // Random bytes, or an invalid frame: usually the end of this link.
                9 if random.below(20) == 0 => {
                    driver.flush();
                    let length = random.below(60) + 1;
                    let mut noise: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                    if random.below(2) == 0 {
                        noise[0] = random.below(13) as u8; // a valid kind
                    }
                    let _ = driver.stream.write_all(&noise);
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

/// A virtual connection that the application holds: its descriptors, and the number of bytes read.
struct Held {
    descriptors: Vec<c_int>,
    read: u64,
    /// The bytes read are not checked any more: two reads at once, or parts that overlap.
    deaf: bool,
}

struct Application {
    inside: &'static Inside,
    random: Random,
    held: HashMap<u16, Held>,
    others: Vec<c_int>,
}

impl Application {
    /// The descriptors and their clients' ports.
    fn virtuals(&self) -> Vec<(c_int, u16)> {
        let mut all: Vec<(c_int, u16)> = self
            .held
            .iter()
            .flat_map(|(port, held)| held.descriptors.iter().map(|fd| (*fd, *port)))
            .collect();
        all.sort_unstable();
        all
    }

    fn accept(&mut self) {
        while let Some(fd) = self.inside.accept() {
            let mut name: libc::sockaddr_in = unsafe_zeroed();
            let mut length = size_of::<libc::sockaddr_in>() as u32;
            // SAFETY: `name` has `length` bytes.
            assert_eq!(unsafe { names::peer_name(fd, (&raw mut name).cast(), &raw mut length) }, 0);
            let port = u16::from_be(name.sin_port);
            // With a timeout, so that a blocking call ends soon.
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
            self.held.insert(port, Held { descriptors: vec![fd], read: 0, deaf: false });
        }
    }

    /// Checks the bytes that a read on this client's descriptor returned.
    fn check(&mut self, port: u16, bytes: &[u8], taken: usize, stays: bool) {
        let Some(held) = self.held.get_mut(&port) else { return };
        for (at, byte) in bytes.iter().enumerate() {
            assert!(
                held.deaf || *byte == pattern(port, held.read + at as u64),
                "client {port}: a wrong byte at {}",
                held.read + at as u64
            );
        }
        if !stays {
            held.read += taken as u64;
        }
    }

    fn read(&mut self, fd: c_int, port: u16) {
        let flags = self.random.one_of(&[
            0,
            0,
            libc::MSG_PEEK,
            libc::MSG_DONTWAIT,
            libc::MSG_WAITALL,
            libc::MSG_TRUNC,
        ]);
        let mut buffer = [0u8; 5000];
        let length = self.random.one_of(&[1, 10, 64, 5000]);
        let base: *mut c_void = buffer.as_mut_ptr().cast();
        let mut parts = [
            iovec { iov_base: base, iov_len: length / 3 },
            iovec { iov_base: base.wrapping_byte_add(length / 3), iov_len: length - length / 3 },
        ];
        let mut message: msghdr = unsafe_zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        // SAFETY: the buffer has room for `length`, as have the parts together.
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
            let shown = if flags & libc::MSG_TRUNC != 0 { 0 } else { got };
            let bytes = buffer[..shown].to_vec();
            self.check(port, &bytes, got, flags & libc::MSG_PEEK != 0);
        }
    }

    fn send(&mut self, fd: c_int) {
        let bytes = [b'r'; 3000];
        let length = self.random.one_of(&[0, 1, 100, 3000]);
        let part = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: length };
        let flags = self.random.one_of(&[0, libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL, libc::MSG_OOB]);
        // SAFETY: the bytes are at least as long.
        let sent = unsafe {
            match self.random.below(2) {
                0 => data::send(fd, bytes.as_ptr().cast(), length, flags),
                _ => data::send_vector(fd, &raw const part, 1),
            }
        };
        assert!(sent <= length as isize);
    }

    fn duplicate(&mut self, fd: c_int, port: u16) {
        // SAFETY: the calls have no pointers.
        let new = unsafe {
            match self.random.below(3) {
                0 => descriptors::duplicate(fd, || libc::dup(fd)),
                1 => descriptors::control(fd, libc::F_DUPFD_CLOEXEC, 0),
                _ => {
                    // Replaces another descriptor of this test.
                    let to = libc::dup(0);
                    descriptors::duplicate_to(fd, to, || libc::dup2(fd, to))
                }
            }
        };
        assert!(new >= 0);
        self.held.entry(port).and_modify(|held| held.descriptors.push(new));
    }

    fn close(&mut self, fd: c_int, port: u16) {
        // SAFETY: the descriptor belongs to this test.
        assert_eq!(unsafe { descriptors::close(fd) }, 0);
        let Some(held) = self.held.get_mut(&port) else { return };
        held.descriptors.retain(|one| *one != fd);
        if held.descriptors.is_empty() {
            self.held.remove(&port);
        }
    }

    /// A random other call, on any descriptor.
    fn anything(&mut self, fd: c_int) {
        let mut buffer = [0u8; 256];
        let base: *mut c_void = buffer.as_mut_ptr().cast();
        let mut length = self.random.below(200) as u32;
        let level = self.random.one_of(&[libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IP, 77]);
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
                2 => ignore(names::peer_name(fd, base.cast(), &raw mut length)),
                3 => ignore(names::socket_name(fd, base.cast(), &raw mut length)),
                4 => ignore(descriptors::control(fd, libc::F_GETFL, 0)),
                5 => ignore(descriptors::control(
                    fd,
                    libc::F_SETFL,
                    self.random.one_of(&[0, libc::O_NONBLOCK]) as usize,
                )),
                6 => ignore(descriptors::control(fd, libc::F_GETFD, number)),
                7 => ignore(descriptors::device_control(fd, libc::FIONREAD, base.expose_provenance())),
                8 => ignore(descriptors::device_control(fd, libc::FIONBIO, base.expose_provenance())),
                9 => ignore(descriptors::shutdown(fd, operation)),
                10 | 11 => ignore(self.inside.control(operation, fd, events, fd as u64)),
                12 => ignore(files::splice(fd, std::ptr::null_mut(), -1, std::ptr::null_mut(), 1, 0)),
                13 => ignore(files::send_file(fd, -1, std::ptr::null_mut(), number)),
                14 => {
                    let mut messages: [libc::mmsghdr; 2] = unsafe_zeroed();
                    several::send(fd, messages.as_mut_ptr(), 2, libc::MSG_DONTWAIT);
                }
                _ => ignore(descriptors::close_range(900_000, 900_100, 0)),
            }
        }
    }

    fn look(&mut self) {
        let fds: Vec<c_int> =
            self.virtuals().iter().map(|(fd, _)| *fd).chain(self.others.iter().copied()).collect();
        let mut all: Vec<pollfd> = fds
            .iter()
            .filter(|fd| (**fd as usize) < libc::FD_SETSIZE)
            .map(|fd| pollfd { fd: *fd, events: self.random.below(1 << 10) as i16, revents: 0 })
            .collect();
        // SAFETY: the descriptors are the vector; the sets have room for all numbers below their size.
        unsafe {
            if self.random.below(2) == 0 {
                assert!(poll::poll(all.as_mut_ptr(), all.len() as u64, poll::Wait::Plain(0)) >= 0);
                return;
            }
            let mut sets: [libc::fd_set; 3] = std::mem::zeroed();
            for one in all.iter().filter(|one| one.fd >= 0 && libc::fcntl(one.fd, libc::F_GETFD) >= 0) {
                libc::FD_SET(one.fd, &mut sets[one.events as usize % 3]);
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
            let Some((fd, port)) = (!virtuals.is_empty()).then(|| self.random.one_of(&virtuals)) else {
                break;
            };
            if !self.held.get(&port).is_some_and(|held| held.descriptors.contains(&fd)) {
                continue; // closed in this turn
            }
            match self.random.below(30) {
                0..=11 => self.read(fd, port),
                12..=17 => self.send(fd),
                18..=27 => self.anything(fd),
                28 => self.duplicate(fd, port),
                _ => self.close(fd, port),
            }
        }
        let other = self.random.one_of(&self.others);
        if other != self.inside.set && other != self.inside.listener.as_raw_fd() {
            self.anything(other);
        }
        if self.random.below(8) == 0 {
            self.look();
        }
    }
}

/// Ignores the outcome of a random call.
fn ignore<T>(_: T) {}

fn unsafe_zeroed<T>() -> T {
    // SAFETY: used for structures of C only, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

#[test]
fn any_frames_and_any_calls() {
    let seed = from_environment("SPILLWAY_FUZZ_SEED", 7);
    let steps = from_environment("SPILLWAY_FUZZ_STEPS", 10_000);
    println!("SPILLWAY_FUZZ_SEED={seed} SPILLWAY_FUZZ_STEPS={steps}");
    let inside = inside::start();
    let stop = Arc::new(AtomicBool::new(false));
    let drivers: Vec<_> = (0..3)
        .map(|which| {
            let (stop, link) = (stop.clone(), inside.link);
            std::thread::spawn(move || drive(link, seed * 3 + u64::from(which), which, &stop))
        })
        .collect();
    let pair = std::os::unix::net::UnixStream::pair().unwrap();
    let mut application = Application {
        inside,
        random: Random(seed),
        held: HashMap::new(),
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
        let before = application.held.len();
        application.step();
        accepted += application.held.len().saturating_sub(before);
        steps_done += 1;
        assert!(began.elapsed() < PATIENCE * 3, "{steps_done} steps done");
    }
    stop.store(true, Ordering::Relaxed);
    while drivers.iter().any(|driver| !driver.is_finished()) {
        application.step();
        assert!(began.elapsed() < PATIENCE * 4, "the drivers do not end");
    }
    drivers.into_iter().for_each(|driver| driver.join().unwrap());
    assert!(accepted > 20, "only {accepted} clients were accepted");
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
        assert!(began.elapsed() < PATIENCE * 5, "the last client is not served");
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
