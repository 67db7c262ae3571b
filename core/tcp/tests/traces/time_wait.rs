//! TIME-WAIT (RFC 9293 §3.6.1, MUST-13; RFC 1337; RFC 6191).

use std::net::SocketAddr;

use spillway_tcp::Listener;
use spillway_transport::{Full, Transport};

use crate::trace::*;

/// A connection in TIME-WAIT: this end has closed first, then a peer with this SYN.
fn in_time_wait(syn: Seg) -> Trace {
    let mut t = Trace::open_with(|_| {}, syn);
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
    t.peer().events.clear();
    t
}

/// §3.10.7.4, eighth: the last acknowledgement was lost.
#[test]
fn a_repeated_fin_is_acknowledged() {
    let mut t = in_time_wait(syn());
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
    t.expect_nothing_sent_later();
}

/// MUST-13: TIME-WAIT lasts twice the maximum segment lifetime: 60 s, as in Linux.
#[test]
fn a_repeated_fin_restarts_the_wait_of_a_minute() {
    let mut t = in_time_wait(syn());
    t.advance(secs(59));
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.advance(secs(59));
    t.recv(fin(1).ack(2)); // the wait was restarted
    t.expect(ack(2));
    t.advance(secs(61));
    t.recv(fin(1).ack(2));
    t.expect(rst(2));
}

#[test]
fn the_wait_ends_after_a_minute() {
    let mut t = in_time_wait(syn());
    t.advance(secs(59));
    t.recv(ack(2));
    t.recv(bytes(1, "x").ack(2));
    t.expect(ack(2));
    t.advance(secs(2));
    t.recv(fin(1).ack(2));
    t.expect(rst(2));
}

/// RFC 1337 §3, hazard H1: "ignore RST segments in TIME-WAIT state".
#[test]
fn resets_do_not_shorten_the_wait() {
    let mut t = in_time_wait(syn());
    for seq in [1, 2, 3, 50] {
        t.recv(rst(seq));
        t.recv(rst(seq).ack(2));
    }
    t.expect_nothing();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

/// RFC 1337 §2.
#[test]
fn old_duplicates_are_acknowledged() {
    let mut t = in_time_wait(syn());
    t.recv(bytes(1, "old").ack(1));
    t.expect(ack(2).seq(2));
    t.recv(bytes(5000, "older").ack(1));
    t.expect(ack(2).seq(2));
}

#[test]
fn acknowledgements_are_not_answered() {
    let mut t = in_time_wait(syn());
    t.recv(ack(2));
    t.recv(ack(1));
    t.expect_nothing_sent_later();
}

/// §3.6.1, MAY-2.
#[test]
fn a_syn_with_a_greater_number_opens_a_connection() {
    let mut t = in_time_wait(syn());
    let old = t.peer().initial;
    t.peer().initial = old.wrapping_add(1000);
    t.peer().received.clear();
    let old_initial = t.peer().stack_initial();
    t.establish(syn());
    let distance = t.peer().stack_initial().wrapping_sub(old_initial);
    assert!(distance > 65_535, "our numbers should begin after the old connection's: {distance}");
}

/// §3.6.1: such a SYN is an old duplicate.
#[test]
fn a_syn_with_a_smaller_number_opens_no_connection() {
    let mut t = in_time_wait(syn());
    t.recv(syn().seq(-1000));
    t.expect(ack(2).seq(2));
    t.recv(syn().seq(0));
    t.expect(ack(2).seq(2));
    assert_eq!(t.stack.connections(), 0);
}

/// RFC 6191 §2: after a greater timestamp, the sequence number does not matter.
#[test]
fn a_syn_with_a_greater_timestamp_opens_a_connection() {
    let mut t = in_time_wait(syn().timestamp(PEER_CLOCK));
    let old = t.peer().initial;
    t.peer().initial = old.wrapping_sub(5_000_000);
    t.recv(syn().timestamp(PEER_CLOCK + 1));
    t.expect(syn_ack().ack(1));
}

/// §3.10.7.4, fourth.
#[test]
fn without_a_listener_a_syn_does_not_end_the_wait() {
    let mut t = in_time_wait(syn());
    t.stack.set_listening(0, false);
    t.recv(syn().seq(5000));
    t.expect(ack(2).seq(2));
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
}

/// A SYN without room opens nothing, so the old connection's peer must still be answered. No cookie is sent,
/// because its number might be one that the old connection used.
#[test]
fn a_syn_without_room_does_not_end_the_wait() {
    for (half_open_max, connections_max) in [(1, 10), (10, 2)] {
        let mut t = Trace::open_with(
            |settings| (settings.half_open_max, settings.connections_max) = (half_open_max, connections_max),
            syn(),
        );
        t.finish();
        t.expect(fin(1));
        t.recv(fin(1).ack(2));
        t.expect(ack(2).seq(2));
        t.select_peer(1).recv(syn());
        t.expect(syn_ack());
        t.select_peer(0).recv(syn().seq(5000));
        t.expect_nothing_sent();
        t.recv(fin(1).ack(2));
        t.expect(ack(2).seq(2));
        assert_eq!(t.counters().cookies_sent, 0);
    }
}

/// RFC 6191 §2: after an older timestamp, the sequence number does not matter.
#[test]
fn a_syn_with_an_older_timestamp_opens_no_connection() {
    let mut t = in_time_wait(syn().timestamp(PEER_CLOCK));
    t.recv(syn().seq(5_000_000).timestamp(PEER_CLOCK - 1));
    t.expect(ack(2).seq(2));
}

/// RFC 6191 §2.
#[test]
fn with_equal_timestamps_the_number_decides() {
    let mut t = in_time_wait(syn().timestamp(PEER_CLOCK));
    t.recv(syn().seq(-1).timestamp(PEER_CLOCK));
    t.expect(ack(2).seq(2));
    t.peer().initial = t.peers[0].initial.wrapping_add(77);
    t.recv(syn().timestamp(PEER_CLOCK));
    t.expect(syn_ack().ack(1));
}

/// Only two ports are free for connections that this end opens.
#[test]
fn ports_in_time_wait_are_not_used_to_connect() {
    let free_ports = [40_000, 50_000];
    let mut t = Trace::new(|settings| {
        let listener = |port| Listener { address: SocketAddr::from((STACK, port)), is_gated: false };
        settings.listeners =
            (32_768..61_000).filter(|port| !free_ports.contains(port)).map(listener).collect();
    });
    t.connect();
    let first = t.peer().stack_port;
    t.recv(syn_ack());
    t.finish();
    t.recv(fin(1).ack(2));
    t.connect();
    let second = t.peer().stack_port;
    assert!(
        free_ports.contains(&first) && free_ports.contains(&second) && first != second,
        "the free ports should be used: {first}, {second}"
    );
    assert_eq!(
        t.stack.connect(t.now, SocketAddr::from((PEER, PEER_PORT))),
        Err(Full),
        "no port should be free, because both are taken"
    );
    t.advance(secs(61));
    assert!(
        t.stack.connect(t.now, SocketAddr::from((PEER, PEER_PORT))).is_ok(),
        "a port should be free after TIME-WAIT"
    );
}

#[test]
fn the_table_is_bounded_and_forgets_the_oldest() {
    let mut t = Trace::new(|settings| settings.time_wait_max = 3);
    for index in 0..5 {
        t.select_peer(index).establish(syn());
        t.finish();
        t.recv(fin(1).ack(2));
        t.peer().segments.clear();
    }
    assert_eq!(t.counters().time_waits_forgotten, 2);
    for index in 0..5 {
        t.select_peer(index).recv(fin(1).ack(2));
        t.expect(if index < 2 { rst(2) } else { ack(2) });
    }
}

/// A repeated FIN restarts the wait of the entry that the table has already.
#[test]
fn repeated_fins_take_no_more_room() {
    let mut t = Trace::new(|settings| settings.time_wait_max = 3);
    for round in 0..20 {
        for index in 0..5 {
            t.select_peer(5 * round + index).establish(syn());
            t.finish();
            t.recv(fin(1).ack(2));
            for _ in 0..10 {
                t.advance(ms(10));
                t.recv(fin(1).ack(2));
            }
        }
        t.advance(secs(25));
    }
    t.advance(secs(61));
    assert_eq!(t.stack.poll_timeout(), None, "all entries should have expired");
}
