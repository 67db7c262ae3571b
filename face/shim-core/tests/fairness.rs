//! Direct connections stay prompt while helped ones are always ready. The test counts events and does not measure time.

mod support;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_batch::Id;
use spillway_shim_core::turns::{CALLS_PER_LOOK, EVENTS_PER_CALL_MAX, EVENTS_PER_CALL_MIN};
use support::driver::{Driver, PATIENCE};
use support::inside::{self, LISTENER};

const CLIENTS: usize = 500;
const DIRECT: u64 = 1 << 40;

/// Accepts all clients and leaves their requests unread, so that every one is ready at every call.
fn always_ready() {
    let inside = inside::start();
    let link = inside.link;
    static STOP: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(move || {
        let mut driver = Driver::loopback(link);
        let ids: Vec<Id> = (0..CLIENTS).map(|_| driver.connect()).collect();
        ids.iter().for_each(|id| driver.send(*id, b"never read"));
        driver.flush();
        while !STOP.load(Ordering::Relaxed) {
            driver.receive(Duration::from_millis(50));
        }
    });
    let (mut accepted, mut ready) = (0, std::collections::HashSet::new());
    let deadline = Instant::now() + PATIENCE;
    while ready.len() < CLIENTS {
        assert!(Instant::now() < deadline, "{accepted} accepted, {} ready", ready.len());
        for (data, _) in inside.wait(64, 1000) {
            if data == LISTENER {
                while let Some(fd) = inside.accept() {
                    accepted += 1;
                    assert_eq!(inside.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64), 0);
                }
            } else {
                ready.insert(data);
            }
        }
    }
}

/// The number of virtual events before a direct connection's, and of calls. The application takes `each` for an event.
fn before_the_direct_one(max: usize, each: Duration) -> (usize, u32) {
    let inside = inside::start();
    let (mut client, direct) = UnixStream::pair().unwrap();
    assert_eq!(inside.control(libc::EPOLL_CTL_ADD, direct.as_raw_fd(), libc::EPOLLIN as u32, DIRECT), 0);
    let work = |count: usize| {
        let until = Instant::now() + each * count as u32;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    };
    // The application's speed becomes known.
    for _ in 0..20 {
        work(inside.wait(max, -1).len());
    }
    client.write_all(b"x").unwrap();
    let (mut events, mut calls) = (0, 0);
    loop {
        let got = inside.wait(max, -1);
        assert!(got.len() <= EVENTS_PER_CALL_MAX + 1);
        if let Some(position) = got.iter().position(|(data, _)| *data == DIRECT) {
            assert_eq!(position, 0, "real ones come first");
            break;
        }
        assert!(!got.is_empty());
        events += got.len();
        calls += 1;
        work(got.len());
    }
    assert_eq!(inside.control(libc::EPOLL_CTL_DEL, direct.as_raw_fd(), 0, 0), 0);
    (events, calls)
}

#[test]
fn a_direct_connection_is_seen_after_few_virtual_events() {
    always_ready();
    for _ in 0..10 {
        // However fast the application is, the number of calls is bounded.
        let (events, calls) = before_the_direct_one(EVENTS_PER_CALL_MAX * 2, Duration::ZERO);
        assert!(calls < CALLS_PER_LOOK, "{calls} calls");
        assert!(events <= EVENTS_PER_CALL_MAX * CALLS_PER_LOOK as usize, "{events} events");
        // An application that asks for single events does not starve direct connections, either.
        let (events, _) = before_the_direct_one(1, Duration::ZERO);
        assert!(events <= CALLS_PER_LOOK as usize, "{events} events");
        // An application that takes 100 µs for each event gets no more events than fit the promised time, or the
        // least number. If this process loses the processor meanwhile, it gets fewer.
        let (events, _) = before_the_direct_one(EVENTS_PER_CALL_MAX, Duration::from_micros(100));
        assert!(events <= 2 * EVENTS_PER_CALL_MIN, "{events} events of 100 us");
    }
    // Virtual connections have their turn, too, when real ones are always ready.
    let inside = inside::start();
    let (mut client, direct) = UnixStream::pair().unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(inside.control(libc::EPOLL_CTL_ADD, direct.as_raw_fd(), libc::EPOLLIN as u32, DIRECT), 0);
    let seen: Vec<(u64, u32)> = (0..100).flat_map(|_| inside.wait(1, -1)).collect();
    assert!(seen.iter().filter(|(data, _)| *data != DIRECT).count() >= 50);
}
