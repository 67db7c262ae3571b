//! TIME-WAIT (RFC 9293 §3.6.1, MUST-13; RFC 1337; RFC 6191).

use std::net::{SocketAddr, SocketAddrV4};

use spillway_tcp::Listener;
use spillway_transport::{Full, Transport};

use crate::trace::*;

/// We have closed first, a peer with this SYN second.
fn waiting(syn: Seg) -> Trace {
    let mut t = Trace::opened_by(|_| {}, syn);
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
    t.peer().events.clear();
    t
}

/// §3.10.7.4, eighth: our last acknowledgement was lost.
#[test]
fn an_end_that_comes_again_is_acknowledged() {
    let mut t = waiting(syn());
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
    t.nothing_sent_later();
}

/// MUST-13: for twice the maximum segment lifetime. 60 s here, as in Linux.
#[test]
fn it_is_over_after_a_minute() {
    let mut t = waiting(syn());
    t.pass(secs(59));
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.pass(secs(59));
    t.recv(fin(1).ack(2)); // the wait was restarted
    t.expect(ack(2));
    t.pass(secs(61));
    t.recv(fin(1).ack(2));
    t.expect(rst(2));
}

#[test]
fn without_an_end_that_comes_again_it_is_over_after_a_minute() {
    let mut t = waiting(syn());
    t.pass(secs(59));
    t.recv(ack(2));
    t.recv(bytes(1, "x").ack(2));
    t.expect(ack(2));
    t.pass(secs(2));
    t.recv(fin(1).ack(2));
    t.expect(rst(2));
}

/// RFC 1337 §3, hazard H1: "ignore RST segments in TIME-WAIT state".
#[test]
fn resets_do_not_shorten_the_wait() {
    let mut t = waiting(syn());
    for seq in [1, 2, 3, 50] {
        t.recv(rst(seq));
        t.recv(rst(seq).ack(2));
    }
    t.nothing();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

/// RFC 1337 §2: old duplicates are acknowledged, and not taken for segments of another connection.
#[test]
fn old_bytes_are_acknowledged() {
    let mut t = waiting(syn());
    t.recv(bytes(1, "old").ack(1));
    t.expect(ack(2).seq(2));
    t.recv(bytes(5000, "older").ack(1));
    t.expect(ack(2).seq(2));
}

#[test]
fn acknowledgements_are_not_answered() {
    let mut t = waiting(syn());
    t.recv(ack(2));
    t.recv(ack(1));
    t.nothing_sent_later();
}

/// §3.6.1, MAY-2: a SYN with a greater number opens a new connection.
#[test]
fn a_new_connection_may_begin_with_a_greater_number() {
    let mut t = waiting(syn());
    let old = t.peer().initial;
    t.peer().initial = old.wrapping_add(1000);
    t.peer().heard.clear();
    let ours = t.peer().stack_initial();
    t.establish(syn());
    let distance = t.peer().stack_initial().wrapping_sub(ours);
    assert!(distance > 65_535, "our numbers begin after those of the old one as well: {distance}");
}

/// §3.6.1: a SYN with a smaller number is an old duplicate.
#[test]
fn an_old_syn_begins_nothing() {
    let mut t = waiting(syn());
    t.recv(syn().seq(-1000));
    t.expect(ack(2).seq(2));
    t.recv(syn().seq(0));
    t.expect(ack(2).seq(2));
    assert_eq!(t.stack.connections(), 0);
}

/// RFC 6191 §2: a greater timestamp is enough, whatever the number.
#[test]
fn a_new_connection_may_begin_with_a_greater_timestamp() {
    let mut t = waiting(syn().stamp(PEER_CLOCK));
    let old = t.peer().initial;
    t.peer().initial = old.wrapping_sub(5_000_000);
    t.recv(syn().stamp(PEER_CLOCK + 1));
    t.expect(syn_ack().ack(1));
}

/// §3.10.7.4, fourth: without a listener a SYN is a blind guess like any other, and does not cut the wait short.
#[test]
fn where_nobody_listens_a_syn_begins_nothing() {
    let mut t = waiting(syn());
    t.stack.set_listening(0, false);
    t.recv(syn().seq(5000));
    t.expect(ack(2).seq(2));
    t.recv(fin(1).ack(2));
    t.expect(ack(2).seq(2));
}

/// RFC 6191 §2: a SYN with an older timestamp is refused, whatever its number.
#[test]
fn an_old_timestamp_begins_nothing() {
    let mut t = waiting(syn().stamp(PEER_CLOCK));
    t.recv(syn().seq(5_000_000).stamp(PEER_CLOCK - 1));
    t.expect(ack(2).seq(2));
}

/// RFC 6191 §2: with the same timestamp a greater number is needed.
#[test]
fn with_the_same_timestamp_the_number_decides() {
    let mut t = waiting(syn().stamp(PEER_CLOCK));
    t.recv(syn().seq(-1).stamp(PEER_CLOCK));
    t.expect(ack(2).seq(2));
    t.peer().initial = t.peers[0].initial.wrapping_add(77);
    t.recv(syn().stamp(PEER_CLOCK));
    t.expect(syn_ack().ack(1));
}

/// Connections that this end opens avoid ports in TIME-WAIT: here only two ports are free.
#[test]
fn a_port_that_waits_is_not_used() {
    let two = [40_000, 50_000];
    let mut t = Trace::new(|settings| {
        let listener = |port| Listener { address: SocketAddrV4::new(STACK_IP, port), is_gated: false };
        settings.listeners = (32_768..61_000).filter(|port| !two.contains(port)).map(listener).collect();
    });
    t.connect();
    let first = t.peer().stack_port;
    t.recv(syn_ack());
    t.finish();
    t.recv(fin(1).ack(2));
    t.connect();
    let second = t.peer().stack_port;
    assert!(two.contains(&first) && two.contains(&second) && first != second, "{first}, {second}");
    assert_eq!(t.stack.connect(t.now, SocketAddr::from((PEER_IP, PEER_PORT))), Err(Full), "none is left");
    t.pass(secs(61));
    assert!(t.stack.connect(t.now, SocketAddr::from((PEER_IP, PEER_PORT))).is_ok());
}

/// The table is bounded: the oldest entries are forgotten first.
#[test]
fn only_so_many_wait() {
    let mut t = Trace::new(|settings| settings.time_wait_max = 3);
    for index in 0..5 {
        t.at(index).establish(syn());
        t.finish();
        t.recv(fin(1).ack(2));
        t.peer().segments.clear();
    }
    assert_eq!(t.counters().time_waits_forgotten, 2);
    for index in 0..5 {
        t.at(index).recv(fin(1).ack(2));
        t.expect(if index < 2 { rst(2) } else { ack(2) });
    }
}

/// Repeated FINs restart the wait, and take no more room.
#[test]
fn renewed_waits_are_bounded_as_well() {
    let mut t = Trace::new(|settings| settings.time_wait_max = 3);
    for round in 0..20 {
        for index in 0..5 {
            t.at(5 * round + index).establish(syn());
            t.finish();
            t.recv(fin(1).ack(2));
            for _ in 0..10 {
                t.pass(ms(10));
                t.recv(fin(1).ack(2));
            }
        }
        t.pass(secs(25));
    }
    t.pass(secs(61));
    assert_eq!(t.stack.poll_timeout(), None, "all is forgotten in the end");
}
