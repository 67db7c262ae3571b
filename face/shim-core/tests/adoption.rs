//! A link follows its connections to the epoll set that the application polls them in.

mod support;

use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Instant;

use libc::{c_int, epoll_event};
use spillway_shim_core::epoll;
use support::driver::{Driver, WAIT_MAX};
use support::inside::{self, LISTENER};

/// The data of the connection's events.
const CONNECTION: u64 = 7;

fn create_set() -> c_int {
    // SAFETY: no pointers are passed.
    epoll::record_set(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn control(set: c_int, operation: c_int, fd: c_int) -> c_int {
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: CONNECTION };
    // SAFETY: the event outlives the call.
    unsafe { epoll::control(set, operation, fd, &raw mut event) }
}

/// The data of the next event, within 20 s.
fn next_event(set: c_int) -> Option<u64> {
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for one event.
    let count = unsafe { epoll::wait(set, &raw mut event, 1, epoll::Wait::Plain(20_000)) };
    (count == 1).then_some(event.u64)
}

#[test]
fn a_link_that_a_set_could_not_adopt_is_adopted_by_the_next_set() {
    let inside = inside::start();
    let link = inside.link;
    let (sender, is_polled) = mpsc::channel();
    let client = std::thread::spawn(move || {
        let mut driver = Driver::loopback(link);
        let id = driver.connect();
        driver.flush();
        is_polled.recv_timeout(WAIT_MAX).unwrap();
        driver.send(id, b"request");
        driver.flush();
        // Keeps the link open until the application has the event.
        let _ = is_polled.recv_timeout(WAIT_MAX);
    });
    let deadline = Instant::now() + WAIT_MAX;
    let connection = loop {
        assert!(Instant::now() < deadline, "a connection should arrive within {WAIT_MAX:?}");
        if inside.wait(8, 100).iter().any(|(data, _)| *data == LISTENER)
            && let Some(fd) = inside.accept()
        {
            break fd;
        }
    };
    // The library handles this set, because the listener is in it. Then another file replaces the kernel's set, so the
    // kernel adds nothing.
    let broken = create_set();
    assert_eq!(control(broken, libc::EPOLL_CTL_ADD, inside.listener.as_raw_fd()), 0);
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: both descriptors belong to this test.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), broken) }, broken);
    assert_eq!(control(broken, libc::EPOLL_CTL_ADD, connection), 0);
    assert_eq!(control(broken, libc::EPOLL_CTL_DEL, connection), 0);
    let set = create_set();
    assert_eq!(control(set, libc::EPOLL_CTL_ADD, connection), 0);
    sender.send(()).unwrap();
    assert_eq!(
        next_event(set),
        Some(CONNECTION),
        "the set in which the application waits should report the event"
    );
    drop(sender);
    client.join().unwrap();
}
