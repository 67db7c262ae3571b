//! The memory of sessions that the application does not read stays within `SPILLWAY_SESSIONS_MEMORY` at any time.

mod support;

use std::time::{Duration, Instant};

use libc::c_int;
use spillway_client::session::SessionSettings;
use spillway_client::{Key, LinkTarget, Session};
use spillway_shim_core::descriptors;
use support::driver::WAIT_MAX;
use support::inside::{self, Inside, LISTENER};

const MEMORY_BYTES: usize = 16 << 20;
/// Each session sends 64 KiB that are not read: together about 1.5 times the bound.
const SESSIONS: usize = 400;
const SENT_BYTES: usize = 64 * 1024;

/// Raises the limit: clients and the server are in this process, so each session has four descriptors here.
fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(8 * SESSIONS as u64);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

fn open(inside: &Inside) -> Session {
    let target = LinkTarget {
        address: inside.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    Session::open(Instant::now(), vec![target], SessionSettings::default()).unwrap()
}

/// The application waits once, and accepts the queued clients.
fn wait_and_accept(inside: &Inside, accepted: &mut Vec<c_int>) {
    if inside.wait(64, 1).iter().any(|(data, _)| *data == LISTENER) {
        while let Some(fd) = inside.accept() {
            assert_eq!(inside.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64), 0);
            accepted.push(fd);
        }
    }
}

/// The number of unread bytes of a connection.
fn unread_bytes(fd: c_int) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes an int.
    let outcome =
        unsafe { descriptors::device_control(fd, libc::FIONREAD, (&raw mut bytes).expose_provenance()) };
    assert_eq!(outcome, 0);
    usize::try_from(bytes).unwrap()
}

#[test]
fn unread_bytes_that_arrive_at_once_stay_within_the_bound() {
    allow_descriptors();
    // SAFETY: nothing else in this process reads or changes the environment at this time.
    unsafe { std::env::set_var("SPILLWAY_SESSIONS_MEMORY", MEMORY_BYTES.to_string()) };
    let inside = inside::start();
    let (mut sessions, mut accepted) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + WAIT_MAX;
    while accepted.len() < SESSIONS {
        assert!(
            Instant::now() < deadline,
            "all clients should be accepted within {WAIT_MAX:?}, not only {}",
            accepted.len()
        );
        // At most 32 at a time, so that none is refused.
        if sessions.len() < SESSIONS && sessions.len() - accepted.len() < 32 {
            sessions.push(open(inside));
        }
        wait_and_accept(inside, &mut accepted);
        let now = Instant::now();
        sessions.iter_mut().skip(accepted.len().saturating_sub(8)).for_each(|session: &mut Session| {
            session.handle_ready(now);
            session.handle_timeout(now);
        });
    }
    // The server receives these bytes in its next wait, all sessions at once.
    let bytes = vec![b'x'; SENT_BYTES];
    for session in &mut sessions {
        session.handle_ready(Instant::now());
        assert!(session.send(Instant::now(), &bytes).is_ok());
    }
    let (mut held, mut peak) = (0, 0);
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(500) {
        wait_and_accept(inside, &mut accepted);
        let before = std::mem::replace(&mut held, accepted.iter().map(|fd| unread_bytes(*fd)).sum());
        peak = peak.max(held);
        let now = Instant::now();
        if held != before {
            quiet_since = now;
        }
        sessions.iter_mut().for_each(|session| session.handle_ready(now));
    }
    let ended = accepted.iter().filter(|fd| unread_bytes(**fd) == 0).count();
    println!("{} KiB at most, {} KiB now, {ended} sessions ended", peak >> 10, held >> 10);
    assert!(peak <= MEMORY_BYTES, "at most {MEMORY_BYTES} bytes should be held: {peak}");
    assert!(
        held > MEMORY_BYTES / 2 && ended < SESSIONS / 2,
        "only as many sessions should end as the bound requires: {held} bytes held, {ended} ended"
    );
}
