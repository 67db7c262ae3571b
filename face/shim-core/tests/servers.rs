//! Servers of all kinds, as processes with the preload library: their calls on sockets work, or are refused and logged.

#[path = "support/kinds/mod.rs"]
mod kinds;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use spillway_batch::{CloseReason, Id};
use support::driver::{Driver, WAIT_MAX};
use support::process::{self, Server};

#[test]
#[ignore = "the server of the tests below, which start it as a process with the preload library"]
fn server() {
    let (Ok(kind), Ok(address)) = (std::env::var("SERVER_KIND"), std::env::var("SERVER_ADDRESS")) else {
        return;
    };
    kinds::serve(&kind, address.parse().unwrap())
}

/// Checks the echo that a direct client receives.
fn check_plain_echo(server: &Server, text: &str) {
    let mut stream = TcpStream::connect(server.plain).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut echo = vec![0; text.len()];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(echo, text.as_bytes());
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye");
}

/// Checks the echoes that many clients receive: small and large ones, beside direct clients, and after a half-close.
fn check_echoes(kind: &str, clients: usize) {
    let server = Server::of_kind(kind);
    let mut links = [Driver::loopback(server.link), Driver::loopback(server.link)];
    let ids: Vec<Vec<Id>> =
        links.iter_mut().map(|link| (0..clients / 2).map(|_| link.connect()).collect()).collect();
    for round in 0..15 {
        let text = |id: &Id| format!("round {round} of {id}\n").into_bytes();
        for (link, ids) in links.iter_mut().zip(&ids) {
            for id in ids {
                link.send(*id, &text(id));
            }
            link.flush();
        }
        check_plain_echo(&server, &format!("plain {round}"));
        for (link, ids) in links.iter_mut().zip(&ids) {
            link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= text(id).len()));
            for id in ids {
                assert_eq!(link.take(*id), text(id));
            }
        }
    }
    let [link, other] = &mut links;
    // More than all buffers and credit together, in both directions at once.
    let large: Vec<u8> = (0..1_500_000u32).map(|at| (at % 251) as u8).collect();
    link.send(ids[0][0], &large);
    link.run(|link| link.connections[&ids[0][0]].received.len() >= large.len());
    assert!(link.take(ids[0][0]) == large);
    // After the client's end, the server sends `bye` and closes the connection.
    for (link, ids) in [link, other].into_iter().zip(&ids) {
        for id in ids {
            link.link.finish(*id);
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        for id in ids {
            assert_eq!(link.take(*id), b"bye");
        }
    }
    check_plain_echo(&server, "last");
}

#[test]
fn poll_loop_is_served() {
    check_echoes("poll", 100);
}

#[test]
fn ppoll_loop_is_served() {
    check_echoes("ppoll", 20);
}

#[test]
fn select_loop_is_served() {
    check_echoes("select", 100);
}

#[test]
fn thread_for_each_connection_is_served() {
    check_echoes("threads", 60);
}

#[test]
fn threads_that_wait_in_accept_are_served() {
    check_echoes("prethreads", 6);
}

#[test]
fn level_triggered_loop_is_served() {
    check_echoes("level", 100);
}

#[test]
fn edge_triggered_loop_is_served() {
    check_echoes("edge", 100);
}

#[test]
fn one_shot_loop_is_served() {
    check_echoes("oneshot", 100);
}

#[test]
fn thread_with_its_own_loop_and_listener_is_served() {
    check_echoes("reuseport", 100);
}

#[test]
fn listener_in_several_sets_is_served() {
    check_echoes("exclusive", 100);
}

#[test]
fn connection_in_two_sets_is_served() {
    check_echoes("two-sets", 40);
}

#[test]
fn connections_in_loops_of_other_threads_are_served() {
    check_echoes("hand-over", 100);
}

#[test]
fn several_messages_in_one_call_are_served() {
    check_echoes("mmsg", 10);
}

#[test]
fn sendfile_is_served_and_splice_is_refused() {
    check_echoes("sendfile", 10);
}

/// One batch has an event for each thread. A thread that takes one event must wake another thread for the next event.
#[test]
fn threads_that_share_a_set_each_get_an_event() {
    let server = Server::of_kind("pool");
    let mut link = Driver::loopback(server.link);
    let ids: Vec<Id> = (0..6).map(|_| link.connect()).collect();
    for round in 0..50 {
        let text = format!("round {round}");
        ids.iter().for_each(|id| link.send(*id, text.as_bytes()));
        link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= text.len()));
        ids.iter().for_each(|id| assert_eq!(link.take(*id), text.as_bytes()));
    }
}

/// After a server closes standard error, a client may get that descriptor, and must not receive log lines.
#[test]
fn client_on_the_descriptor_of_standard_error_receives_no_log_lines() {
    let server = Server::of_kind("standard-error");
    let cause_log_line = || {
        let mut stream = TcpStream::connect(server.link).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new()); // the server refuses the link and logs that
    };
    let mut plain = TcpStream::connect(server.plain).unwrap();
    plain.set_read_timeout(Some(WAIT_MAX)).unwrap();
    plain.write_all(b"2").unwrap();
    let mut echo = |text: &[u8; 5]| {
        plain.write_all(text).unwrap();
        let mut echo = [0; 5];
        plain.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, text);
    };
    echo(b"first");
    cause_log_line();
    echo(b"again");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    link.send(id, b"2");
    assert_eq!(link.ask(id, b"first", b"first"), b"first");
    cause_log_line();
    assert_eq!(link.ask(id, b"again", b"again"), b"again");
}

/// Another thread closes a connection: the blocked thread returns, the client sees the end, other clients are served.
#[test]
fn only_the_connection_that_another_thread_closes_ends() {
    let server = Server::of_kind("closer");
    let mut link = Driver::loopback(server.link);
    let kept = link.connect();
    assert_eq!(link.ask(kept, b"a", b"a"), b"a");
    for round in 0..50 {
        let ids: Vec<Id> = (0..10).map(|_| link.connect()).collect();
        for id in &ids {
            link.send(*id, b"hello");
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].received == b"hello"));
        for (number, id) in ids.iter().enumerate() {
            let how_to_end: [&[u8]; 3] = [b"close", b"shut", b"replace"];
            link.send(*id, how_to_end[(number + round) % 3]);
        }
        link.flush();
        for id in &ids {
            link.send(*id, b"bytes after the close");
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        link.connections.retain(|id, _| *id == kept);
        assert_eq!(link.ask(kept, b"b", b"b"), b"b");
    }
}

#[test]
fn process_for_each_connection_is_refused_and_logged() {
    let server = Server::of_kind("forks");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    link.send(id, b"a");
    link.run(|link| link.connections[&id].closed.is_some());
    assert_eq!(link.connections[&id].closed, Some(CloseReason::Normal));
    server.wait_for_log("a forked child uses a helped connection");
    server.wait_for_log("the library opens no descriptor in the child");
}

/// Between `vfork` and `exec` a child has descriptors of its own, and the parent's memory.
#[test]
fn descriptors_of_a_vfork_child_have_no_effect_in_its_parent() {
    let server = Server::of_kind("vforks");
    let mut link = Driver::loopback(server.link);
    for _ in 0..3 {
        let id = link.connect();
        // More than the server reads: a number that the library still took for this connection would return the rest.
        link.send(id, b"begin: bytes of the client");
        link.run(|link| link.connections[&id].closed.is_some());
        assert_eq!(String::from_utf8(link.take(id)).unwrap(), "wrong: \n");
    }
}

/// A child that was created without handlers of `fork` has copies of all sockets. Links still end for their peers.
#[test]
fn link_ends_although_a_child_has_a_copy_of_its_socket() {
    let server = Server::of_kind("raw-fork");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"x", b"x"), b"x");
    // An invalid frame.
    link.stream.write_all(&[0xff; 64]).unwrap();
    while link.lost.is_none() {
        link.receive(WAIT_MAX);
    }
    let [child] = server.children()[..] else { panic!("the server should have one running child") };
    process::kill(child);
}

#[test]
fn calls_behave_on_helped_connections_as_on_real_ones() {
    let server = Server::of_kind("calls");
    let mut link = Driver::loopback(server.link);
    for _ in 0..3 {
        let id = link.connect_from("127.8.9.10:4711".parse().unwrap());
        link.send(id, b"0123456789");
        let mut answered_requests = 0;
        while link.connections[&id].closed.is_none() {
            link.flush();
            link.receive(Duration::from_millis(100));
            let requests = link.connections[&id].received.iter().filter(|byte| **byte == b'+').count();
            while answered_requests < requests {
                // Ten digits for each `+` of the server, in two batches.
                link.send(id, b"01234");
                link.flush();
                link.send(id, b"56789");
                answered_requests += 1;
            }
        }
        let text = String::from_utf8(link.take(id)).unwrap();
        assert_eq!(text, "++wrong: \n");
    }
}

#[test]
fn io_uring_is_refused_and_epoll_serves() {
    let server = Server::of_kind("rings");
    server.wait_for_log("io_uring is not supported");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"a", b"a"), b"a");
}

/// After 3,500 clients of each kind of server, their descriptors and memory are free again.
#[test]
fn clients_that_come_and_go_leave_no_descriptor_and_no_memory() {
    for kind in ["level", "threads", "poll"] {
        let server = Server::of_kind(kind);
        let mut link = Driver::loopback(server.link);
        let mut connect_and_leave = |count: usize| {
            let ids: Vec<Id> = (0..count).map(|_| link.connect()).collect();
            for id in &ids {
                link.send(*id, b"x");
            }
            link.run(|link| ids.iter().all(|id| link.connections[id].received == b"x"));
            for (number, id) in ids.iter().enumerate() {
                if number % 2 == 0 {
                    link.link.finish(*id);
                } else {
                    link.link.close(*id, CloseReason::Reset);
                    link.of(*id).closed = Some(CloseReason::Reset);
                }
            }
            link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
            link.connections.clear();
        };
        let wait_for_descriptors = |server: &Server, max: usize| {
            let deadline = std::time::Instant::now() + WAIT_MAX;
            while server.descriptors() > max {
                assert!(
                    std::time::Instant::now() < deadline,
                    "at most {max} descriptors should be open, not {}",
                    server.descriptors()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        for _ in 0..10 {
            connect_and_leave(50);
        }
        // The library keeps the event counters of threads that were blocked at the same time, at most 64 here.
        wait_for_descriptors(&server, 20 + 64);
        let (descriptors, memory) = (server.descriptors(), server.resident_bytes());
        for _ in 0..60 {
            connect_and_leave(50);
        }
        wait_for_descriptors(&server, descriptors.max(84));
        let grown = server.resident_bytes().saturating_sub(memory);
        assert!(grown < 4 * 1024 * 1024, "{kind}: memory should grow by less than 4 MiB: {grown} bytes");
    }
}
