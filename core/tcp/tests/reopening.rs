//! Opening a connection again from another local port. The interface chooses the receive queue of a frame by a hash of
//! addresses and ports: when the SYN-ACK arrives at the queue of another stack, the stack tries another port.

mod pair;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use pair::{PORT, Pair, settings};
use spillway_transport::conformance::{Probe, Seen, pattern};
use spillway_transport::{Conn, Transport};

const LISTENER: ([u8; 4], u16) = ([10, 0, 0, 1], PORT);
/// Offset of the source port in a frame; the target port follows.
const PORTS_AT: usize = 14 + 20;
const FLAGS_AT: usize = PORTS_AT + 13;

/// A pair whose host 0 listens. Host 1 connects, grants 10,000 bytes, and sends 5,000 bytes once connected.
fn connecting(is_misdirected: fn(&[u8]) -> bool) -> (Pair<Probe>, Conn) {
    let mut pair = Pair::new([1, 2].map(settings), [Probe::new(), Probe::new()]);
    pair.is_misdirected = Some(is_misdirected);
    pair.command(0, |_, probe, stack| {
        probe.grant_on_open = 10_000;
        stack.set_listening(0, true);
    });
    let conn = pair.command(1, |now, probe, stack| {
        let conn = stack.connect(now, SocketAddr::from(LISTENER)).expect("room for a connection");
        probe.grant(conn, 10_000, stack);
        probe.react(Box::new(|_, conn, seen, _, out| {
            if matches!(seen, Seen::Opened { .. }) {
                let bytes: Vec<u8> = (0..5000).map(pattern).collect();
                assert_eq!(out.send(conn, &bytes), bytes.len());
            }
        }));
        conn
    });
    (pair, conn)
}

/// Runs the pair for 10 s.
fn settle(pair: &mut Pair<Probe>) {
    let end = pair.now + Duration::from_secs(10);
    while pair.now < end {
        pair.step(Duration::from_millis(1));
    }
}

fn port_of(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

#[test]
fn an_opening_connection_changes_its_port_until_the_syn_ack_arrives_at_its_own_queue() {
    let (mut pair, conn) = connecting(|frame| port_of(frame, PORTS_AT + 2) % 16 != 5);
    let opened = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&opened);
    pair.filter = Box::new(move |host, frame| {
        let is_syn = host == 1 && frame.get(FLAGS_AT).is_some_and(|flags| flags & 0x12 == 0x02);
        if is_syn {
            seen.borrow_mut().push(port_of(frame, PORTS_AT));
        }
        true
    });
    settle(&mut pair);
    let opened = opened.borrow();
    let changes = pair.hosts[1].stack.counters().ports_changed;
    assert!(changes > 0, "with this seed, the first SYN-ACK should arrive at another queue");
    assert_eq!(pair.hosts[1].stack.local_address(conn).unwrap().port() % 16, 5);
    let mut ports = opened.clone();
    assert_eq!(ports.len() as u64, 1 + changes, "one SYN should be sent from each port: {ports:?}");
    assert_eq!(ports.last(), pair.hosts[1].stack.local_address(conn).map(|at| at.port()).as_ref());
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len() as u64, 1 + changes, "each change should be to another port");
    // The peer's application got one connection, and the other attempts have ended.
    let [server, client] = &pair.hosts;
    assert_eq!(
        (server.stack.connections(), client.stack.connections()),
        (1, 1),
        "both ends should have one connection"
    );
    let accepted = server.application.accepted();
    assert_eq!(
        (accepted.len(), server.application.received(accepted[0])),
        (1, 5000),
        "all bytes should arrive on one connection"
    );
    assert_eq!(client.application.of(conn)[0], Seen::Opened { peer: LISTENER.into(), listener: None });
    assert_eq!(client.stack.counters().resets_sent, changes);
}

#[test]
fn after_64_port_changes_a_connection_is_opened_although_its_syn_ack_is_misdirected() {
    let (mut pair, conn) = connecting(|_| true);
    settle(&mut pair);
    let [server, client] = &pair.hosts;
    assert_eq!(
        client.stack.counters().ports_changed,
        64,
        "the port should change 64 times, the maximum for one connection"
    );
    let accepted = server.application.accepted();
    assert_eq!(
        (accepted.len(), server.application.received(accepted[0])),
        (1, 5000),
        "all bytes should arrive on one connection"
    );
    assert!(matches!(client.application.of(conn)[0], Seen::Opened { .. }), "the connection should be opened");
}

#[test]
fn ports_are_changed_although_segments_are_lost() {
    for seed in 0..20_u64 {
        let (mut pair, conn) = connecting(|frame| port_of(frame, PORTS_AT + 2) % 4 != 1);
        let mut state = seed;
        pair.filter = Box::new(move |_, _| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            !(state >> 33).is_multiple_of(5)
        });
        settle(&mut pair);
        settle(&mut pair);
        let [server, client] = &pair.hosts;
        assert_eq!(
            client.stack.local_address(conn).unwrap().port() % 4,
            1,
            "the final port should belong to the queue: seed {seed}"
        );
        let received: u64 =
            server.application.accepted().iter().map(|conn| server.application.received(*conn)).sum();
        assert_eq!(received, 5000, "all bytes should arrive: seed {seed}");
    }
}

/// Frames of the peer, whole and truncated, once the connection is open.
#[test]
fn frames_for_an_open_connection_do_not_change_its_port() {
    let (mut pair, conn) = connecting(|_| false);
    let frames = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&frames);
    pair.filter = Box::new(move |host, frame| {
        if host == 0 {
            seen.borrow_mut().push(frame.to_vec());
        }
        true
    });
    settle(&mut pair);
    let (now, stack) = (pair.now, &mut pair.hosts[1].stack);
    let before = stack.local_address(conn);
    for frame in frames.borrow().iter() {
        // No connection is opening any more, so not even the recorded SYN-ACK may cause a change of port.
        for length in 0..=frame.len() {
            assert!(
                !stack.reopen_misdirected(now, &frame[..length]),
                "the frame should not change the port: {:02x?}",
                &frame[..length]
            );
        }
    }
    assert_eq!(
        (stack.local_address(conn), stack.counters().ports_changed),
        (before, 0),
        "the port should be as before"
    );
    assert!(frames.borrow().len() >= 3, "an ARP reply, the SYN-ACK and an acknowledgement should be sent");
}
