//! Direct connections are served soon while helped ones are always ready. The test counts events, and measures no time.

mod support;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_batch::Id;
use spillway_shim_core::fairness::{CALLS_PER_POLL, EVENTS_PER_CALL_MAX, EVENTS_PER_CALL_MIN};
use support::driver::{Driver, WAIT_MAX};
use support::inside::{self, LISTENER};

const CLIENTS: usize = 500;
/// The data of the direct connection's events.
const DIRECT: u64 = 1 << 40;

/// Accepts all clients and leaves their requests unread, so that all are ready at every call.
fn make_all_clients_ready() {
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
    let deadline = Instant::now() + WAIT_MAX;
    while ready.len() < CLIENTS {
        assert!(
            Instant::now() < deadline,
            "all {CLIENTS} clients should be ready within {WAIT_MAX:?}: {accepted} accepted, {} ready",
            ready.len()
        );
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

/// The numbers of virtual events and calls before a direct event. The application takes `per_event` for each event.
fn wait_for_direct(max: usize, per_event: Duration) -> (usize, u32) {
    let inside = inside::start();
    let (mut client, direct) = UnixStream::pair().unwrap();
    assert_eq!(inside.control(libc::EPOLL_CTL_ADD, direct.as_raw_fd(), libc::EPOLLIN as u32, DIRECT), 0);
    let work = |count: usize| {
        let until = Instant::now() + per_event * count as u32;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    };
    // The library measures the application's time for each event.
    for _ in 0..20 {
        work(inside.wait(max, -1).len());
    }
    client.write_all(b"x").unwrap();
    let (mut events, mut calls) = (0, 0);
    loop {
        let got = inside.wait(max, -1);
        assert!(got.len() <= EVENTS_PER_CALL_MAX + 1);
        if let Some(position) = got.iter().position(|(data, _)| *data == DIRECT) {
            assert_eq!(position, 0, "real events should come before virtual ones");
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
    make_all_clients_ready();
    for _ in 0..10 {
        // Even for a fast application, the number of calls is bounded.
        let (events, calls) = wait_for_direct(EVENTS_PER_CALL_MAX * 2, Duration::ZERO);
        assert!(
            calls < CALLS_PER_POLL,
            "fewer than {CALLS_PER_POLL} calls should precede the direct event: {calls}"
        );
        assert!(
            events <= EVENTS_PER_CALL_MAX * CALLS_PER_POLL as usize,
            "at most {EVENTS_PER_CALL_MAX} events should precede the direct event in each call: {events}"
        );
        // An application that takes single events also polls the kernel in time.
        let (events, _) = wait_for_direct(1, Duration::ZERO);
        assert!(
            events <= CALLS_PER_POLL as usize,
            "at most {CALLS_PER_POLL} events should precede the direct event: {events}"
        );
        // At 100 µs for each event, a call returns the events that fit DIRECT_WAIT, or EVENTS_PER_CALL_MIN. It returns
        // fewer if this process loses the processor meanwhile.
        let (events, _) = wait_for_direct(EVENTS_PER_CALL_MAX, Duration::from_micros(100));
        assert!(
            events <= 2 * EVENTS_PER_CALL_MIN,
            "at most {} events of 100 us should precede the direct event: {events}",
            2 * EVENTS_PER_CALL_MIN
        );
    }
    // Virtual connections are also reported when a real one is always ready.
    let inside = inside::start();
    let (mut client, direct) = UnixStream::pair().unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(inside.control(libc::EPOLL_CTL_ADD, direct.as_raw_fd(), libc::EPOLLIN as u32, DIRECT), 0);
    let seen: Vec<(u64, u32)> = (0..100).flat_map(|_| inside.wait(1, -1)).collect();
    assert!(seen.iter().filter(|(data, _)| *data != DIRECT).count() >= 50);
}
