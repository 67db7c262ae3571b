//! Servers of all kinds, each as a process with the preload library: their calls on sockets are served, or clearly refused.

#[path = "support/kinds/mod.rs"]
mod kinds;
mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use spillway_batch::{CloseReason, Id};
use support::driver::{Driver, PATIENCE};
use support::process::{self, Server};

#[test]
#[ignore = "the server of the tests below, which start it as a process with the shim"]
fn server() {
    let (Ok(kind), Ok(address)) = (std::env::var("SERVER_KIND"), std::env::var("SERVER_ADDRESS")) else {
        return;
    };
    kinds::serve(&kind, address.parse().unwrap())
}

/// Checks a direct client's echo.
fn plain_echo(server: &Server, text: &str) {
    let mut stream = TcpStream::connect(server.plain).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut echo = vec![0; text.len()];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(echo, text.as_bytes());
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye");
}

/// Checks echoes of many clients, large ones both ways, with direct clients among them, and half-closes.
fn echoes(kind: &str, clients: usize) {
    let server = Server::own(kind);
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
        plain_echo(&server, &format!("plain {round}"));
        for (link, ids) in links.iter_mut().zip(&ids) {
            link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= text(id).len()));
            for id in ids {
                assert_eq!(link.take(*id), text(id));
            }
        }
    }
    let [link, other] = &mut links;
    // More than all windows together, both ways at once.
    let large: Vec<u8> = (0..1_500_000u32).map(|at| (at % 251) as u8).collect();
    link.send(ids[0][0], &large);
    link.run(|link| link.connections[&ids[0][0]].received.len() >= large.len());
    assert!(link.take(ids[0][0]) == large);
    // The client's end is received and answered, and closes the connection.
    for (link, ids) in [link, other].into_iter().zip(&ids) {
        for id in ids {
            link.link.finish(*id);
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        for id in ids {
            assert_eq!(link.take(*id), b"bye");
        }
    }
    plain_echo(&server, "still there");
}

#[test]
fn a_poll_loop_is_served() {
    echoes("poll", 100);
}

#[test]
fn a_ppoll_loop_is_served() {
    echoes("ppoll", 20);
}

#[test]
fn a_select_loop_is_served() {
    echoes("select", 100);
}

#[test]
fn a_thread_for_each_connection_is_served() {
    echoes("threads", 60);
}

#[test]
fn threads_that_wait_in_accept_are_served() {
    echoes("prethreads", 6);
}

#[test]
fn a_level_triggered_loop_is_served() {
    echoes("level", 100);
}

#[test]
fn an_edge_triggered_loop_is_served() {
    echoes("edge", 100);
}

#[test]
fn a_one_shot_loop_is_served() {
    echoes("oneshot", 100);
}

#[test]
fn a_loop_and_a_listener_for_each_thread_are_served() {
    echoes("reuseport", 100);
}

#[test]
fn a_listener_in_several_sets_is_served() {
    echoes("exclusive", 100);
}

#[test]
fn a_connection_in_two_sets_is_served() {
    echoes("two-sets", 40);
}

#[test]
fn connections_handed_to_other_threads_loops_are_served() {
    echoes("hand-over", 100);
}

#[test]
fn several_messages_at_once_are_served() {
    echoes("mmsg", 10);
}

#[test]
fn files_are_sent_and_splice_is_refused() {
    echoes("sendfile", 10);
}

/// One batch has an event for each thread: a thread that takes one leaves the others to threads that sleep.
#[test]
fn threads_that_share_a_set_all_get_work() {
    let server = Server::own("pool");
    let mut link = Driver::loopback(server.link);
    let ids: Vec<Id> = (0..6).map(|_| link.connect()).collect();
    for round in 0..50 {
        let text = format!("round {round}");
        ids.iter().for_each(|id| link.send(*id, text.as_bytes()));
        link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= text.len()));
        ids.iter().for_each(|id| assert_eq!(link.take(*id), text.as_bytes()));
    }
}

/// A server that closes standard error has clients with that number, which must not receive log lines.
#[test]
fn a_client_with_the_number_of_standard_error_reads_no_log() {
    let server = Server::own("standard-error");
    let knock = || {
        let mut stream = TcpStream::connect(server.link).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new()); // refused, which is logged
    };
    let mut plain = TcpStream::connect(server.plain).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"2").unwrap();
    let mut echo = |text: &[u8; 5]| {
        plain.write_all(text).unwrap();
        let mut echo = [0; 5];
        plain.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, text);
    };
    echo(b"first");
    knock();
    echo(b"again");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    link.send(id, b"2");
    assert_eq!(link.ask(id, b"first", b"first"), b"first");
    knock();
    assert_eq!(link.ask(id, b"again", b"again"), b"again");
}

/// A connection is closed by another thread: the blocked thread returns, the client is told, others are not harmed.
#[test]
fn a_connection_closed_or_shut_down_by_another_thread() {
    let server = Server::own("closer");
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
            let ways: [&[u8]; 3] = [b"close", b"shut", b"replace"];
            link.send(*id, ways[(number + round) % 3]);
        }
        link.flush();
        for id in &ids {
            link.send(*id, b"more that meets the end");
        }
        link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
        link.connections.retain(|id, _| *id == kept);
        assert_eq!(link.ask(kept, b"b", b"b"), b"b");
    }
}

#[test]
fn a_process_for_each_connection_is_refused_and_said_so() {
    let server = Server::own("forks");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    link.send(id, b"a");
    link.run(|link| link.connections[&id].closed.is_some());
    assert_eq!(link.connections[&id].closed, Some(CloseReason::Normal));
    server.wait_for_log("a forked child uses a helped connection");
    server.wait_for_log("the child is left alone");
}

/// Between `vfork` and `exec` a child has descriptors of its own, and the parent's memory.
#[test]
fn what_a_vfork_child_makes_means_nothing_in_its_parent() {
    let server = Server::own("vforks");
    let mut link = Driver::loopback(server.link);
    for _ in 0..3 {
        let id = link.connect();
        // More than the server reads: a read on a number that is still taken for this connection would return the rest.
        link.send(id, b"begin: bytes of the client");
        link.run(|link| link.connections[&id].closed.is_some());
        assert_eq!(String::from_utf8(link.take(id)).unwrap(), "wrong: \n");
    }
}

/// A child for which no handler of `fork` ran has copies of all sockets. Links still end for their peers.
#[test]
fn a_link_ends_although_a_child_has_copies_of_its_socket() {
    let server = Server::own("raw-fork");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"x", b"x"), b"x");
    // An invalid frame.
    link.stream.write_all(&[0xff; 64]).unwrap();
    while link.lost.is_none() {
        link.receive(PATIENCE);
    }
    let [child] = server.children()[..] else { panic!("the child lives") };
    process::kill(child);
}

#[test]
fn every_call_does_on_a_helped_connection_what_it_does_on_another() {
    let server = Server::own("calls");
    let mut link = Driver::loopback(server.link);
    for _ in 0..3 {
        let id = link.connect_from("127.8.9.10:4711".parse().unwrap());
        link.send(id, b"0123456789");
        let mut answered = 0;
        while link.connections[&id].closed.is_none() {
            link.flush();
            link.receive(Duration::from_millis(100));
            let asked = link.connections[&id].received.iter().filter(|byte| **byte == b'+').count();
            while answered < asked {
                // In two pieces.
                link.send(id, b"01234");
                link.flush();
                link.send(id, b"56789");
                answered += 1;
            }
        }
        let text = String::from_utf8(link.take(id)).unwrap();
        assert_eq!(text, "++wrong: \n");
    }
}

#[test]
fn rings_are_refused_and_epoll_serves() {
    let server = Server::own("rings");
    server.wait_for_log("io_uring cannot be helped");
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    assert_eq!(link.ask(id, b"a", b"a"), b"a");
}

/// Ten thousand clients come and go; none of their descriptors and memory is left.
#[test]
fn descriptors_and_memory_stay_flat() {
    for kind in ["level", "threads", "poll"] {
        let server = Server::own(kind);
        let mut link = Driver::loopback(server.link);
        let mut come_and_go = |count: usize| {
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
        let settled = |server: &Server, most: usize| {
            let deadline = std::time::Instant::now() + PATIENCE;
            while server.descriptors() > most {
                assert!(std::time::Instant::now() < deadline, "{} descriptors stay", server.descriptors());
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        for _ in 0..10 {
            come_and_go(50);
        }
        // Event counters of threads that were blocked at the same time are kept for later ones.
        settled(&server, 20 + 64);
        let (descriptors, memory) = (server.descriptors(), server.resident_bytes());
        for _ in 0..60 {
            come_and_go(50);
        }
        settled(&server, descriptors.max(84));
        let grown = server.resident_bytes().saturating_sub(memory);
        assert!(grown < 4 * 1024 * 1024, "{kind}: memory grew by {grown} bytes");
    }
}
