//! Reports of removed sockets.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_linger, socket_cookie};
use spillway_bpf::{Removal, RemovedSockets};

use crate::{connected, isolated};

/// Time after which the kernel must have reported a socket that it removes at once.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

fn is_readable(sockets: &RemovedSockets, patience: &Timespec) -> bool {
    // SAFETY: `sockets` keeps the descriptor open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(sockets.as_raw_fd()) };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(patience)).unwrap() == 1
}

fn reports(sockets: &mut RemovedSockets, count: usize) -> HashMap<u64, Removal> {
    let mut reports = HashMap::new();
    while reports.len() < count {
        match sockets.poll().unwrap() {
            Some(removal) => assert_eq!(reports.insert(removal.cookie, removal), None, "reported once"),
            None => assert!(is_readable(sockets, &PATIENCE), "{} of {count} reported", reports.len()),
        }
    }
    assert_eq!(sockets.poll().unwrap(), None);
    reports
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq)]
enum Ending {
    /// The server closes it first, then the client.
    Closed,
    /// The server resets it.
    Reset,
    /// The server ends its direction, and the client resets it.
    ResetInFinWait,
}

#[test]
fn each_way_to_end_is_reported_once_and_only_active_closers_may_be_in_time_wait() {
    let Some(mut sockets) = isolated(RemovedSockets::load(1_000)) else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let mut expected = HashMap::new();
        for ending in [Ending::Closed, Ending::Reset, Ending::ResetInFinWait].into_iter().cycle().take(300) {
            let (mut client, mut server) = connected(&listener);
            let (of_client, of_server) = (socket_cookie(&client).unwrap(), socket_cookie(&server).unwrap());
            for cookie in [of_client, of_server] {
                sockets.watch(cookie).unwrap();
            }
            match ending {
                Ending::Closed => {
                    drop(server);
                    assert_eq!(client.read(&mut [0]).unwrap(), 0);
                }
                Ending::Reset => {
                    set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
                    drop(server);
                    client.read(&mut [0]).unwrap_err();
                }
                Ending::ResetInFinWait => {
                    server.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(client.read(&mut [0]).unwrap(), 0);
                    // The byte's segment acknowledges the FIN.
                    client.write_all(&[1]).unwrap();
                    server.read_exact(&mut [0]).unwrap();
                    set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
                }
            }
            drop(client);
            expected.extend([(of_client, false), (of_server, ending == Ending::Closed)]);
        }
        for (cookie, removal) in reports(&mut sockets, expected.len()) {
            assert_eq!(expected.get(&cookie), Some(&removal.may_be_in_time_wait), "socket {cookie}");
        }
    }
}

/// Of the two places that `sockets` has. No socket has these cookies.
fn only_one_place_is_taken(sockets: &RemovedSockets) {
    sockets.watch(u64::MAX).unwrap();
    assert!(sockets.watch(u64::MAX - 1).unwrap_err().is_full());
    sockets.forget(u64::MAX).unwrap();
}

#[test]
fn sockets_that_live_or_are_not_watched_are_not_reported() {
    let Some(mut sockets) = isolated(RemovedSockets::load(2)) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (live, peer) = connected(&listener);
    let (ended, forgotten) = connected(&listener);
    let [live_cookie, ended_cookie, forgotten_cookie] =
        [&live, &ended, &forgotten].map(|socket| socket_cookie(socket).unwrap());
    sockets.watch(live_cookie).unwrap();
    sockets.watch(forgotten_cookie).unwrap();
    let error = sockets.watch(ended_cookie).unwrap_err();
    assert!(error.is_full(), "{error}");
    sockets.forget(forgotten_cookie).unwrap();
    sockets.watch(ended_cookie).unwrap();
    // An unread report keeps its place, so that reports are never lost.
    drop((ended, forgotten));
    assert!(is_readable(&sockets, &PATIENCE));
    assert!(sockets.watch(forgotten_cookie).unwrap_err().is_full());
    assert_eq!(reports(&mut sockets, 1).into_keys().collect::<Vec<_>>(), [ended_cookie]);
    assert!(!is_readable(&sockets, &Timespec::default()));
    only_one_place_is_taken(&sockets);
    // Its peer has ended the connection, but the application still has the socket.
    drop(peer);
    assert_eq!((&live).read(&mut [0]).unwrap(), 0);
    assert_eq!(sockets.poll().unwrap(), None);
    only_one_place_is_taken(&sockets);
    drop(live);
    assert_eq!(reports(&mut sockets, 1).into_keys().collect::<Vec<_>>(), [live_cookie]);
}
