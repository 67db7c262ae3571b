//! Connections that move while they close (Capybara §3.3): only segments that are owed are sent.

use std::net::{Ipv4Addr, SocketAddrV4};

use spillway_tcp::{ImportError, Listener, Settings, Stack};
use spillway_transport::{LostReason, Transport};
use spillway_wire::packet::icmp::v4::{CODE_FRAGMENTATION_NEEDED, Message};
use spillway_wire::packet::{arp, ethernet, ipv4};
use spillway_wire::state::{ConnectionState, Finish, Stage};

use crate::trace::*;

/// Behind a gate: the peer's bytes and its FIN have arrived, and our FIN is acknowledged.
fn ended_behind_the_gate(we_finish_first: bool) -> Trace {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.say(10);
    t.expect(many(1, 10));
    if we_finish_first {
        t.finish();
        t.expect(fin(11).ack(1));
        t.recv(bytes(1, "abc").fin().ack(11));
    } else {
        t.recv(bytes(1, "abc").fin().ack(11));
        t.last();
        t.finish();
        t.expect(fin(11).ack(1));
    }
    t.recv(ack(12).seq(5));
    t.forget();
    t
}

/// LAST-ACK and CLOSING with our FIN acknowledged: the FIN is not repeated, and released bytes are acknowledged.
#[test]
fn an_end_that_was_acknowledged_is_not_said_again() {
    for we_finish_first in [false, true] {
        let mut t = ended_behind_the_gate(we_finish_first);
        t.moves(|_| {});
        t.pass(secs(10));
        t.forget();
        t.moves(|_| {});
        while let Some(seg) = t.peer().segments.pop_front() {
            assert!(ack(1).seq(12).agrees_with(&seg), "no other than that: {seg}");
        }
        t.release(4);
        t.expect(ack(5).seq(12));
        t.lost(LostReason::Closed);
    }
}

/// FIN-WAIT-2, and then the peer's FIN arrives behind the gate: the connection must not end.
#[test]
fn an_end_that_came_last_may_wait_behind_the_gate_elsewhere() {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.finish();
    t.expect(fin(1));
    t.recv(ack(2));
    t.recv(bytes(1, "abc").fin().ack(2));
    t.forget();
    t.moves(|_| {});
    t.release(4);
    t.last();
    t.lost(LostReason::Closed);
}

/// A peer that answers may keep its window closed for ever (MUST-37), also after a move.
#[test]
fn bytes_at_a_shut_window_are_no_sign_of_death_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(2000);
    t.forget();
    t.recv(ack(1001).window(0));
    for _ in 0..20 {
        t.until_sent();
        t.expect(many(1001, 1000));
        t.recv(ack(1001).window(0));
        t.moves(|_| {});
    }
    t.recv(ack(2001).window(5000));
    t.say(10);
    t.expect(many(2001, 10));
}

/// The same for a window that was closed before anything was sent.
#[test]
fn a_shut_window_is_asked_about_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(0));
    t.say(1000);
    for _ in 0..20 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
        t.moves(|_| {});
    }
    t.recv(ack(1).window(1000));
    t.expect(many(1, 1000));
}

/// An acknowledgement that is owed is sent at once, because the state does not tell how long it was delayed.
#[test]
fn what_is_owed_is_acknowledged_elsewhere() {
    let mut t = Trace::open();
    t.moves(|_| {});
    t.quiet();
    t.recv(bytes(1, "abc"));
    t.quiet();
    t.moves(|_| {});
    t.expect(ack(4).seq(1));
}

/// A peer that does not answer is given up at the same time as without moves.
#[test]
fn a_dead_peer_is_dead_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(1000);
    for _ in 0..12 {
        t.pass(secs(10));
        t.moves(|_| {});
    }
    t.pass(secs(60));
    t.lost(LostReason::TimedOut);
}

type Change = fn(&mut ConnectionState);

/// A state is not trusted: each contradiction is refused.
#[test]
fn states_that_contradict_themselves_are_refused() {
    const FAR: u64 = 1 << 61;
    let changes: [(&str, Change); 25] = [
        ("a port of 0", |state| state.peer.set_port(0)),
        ("a port of 0", |state| state.local.set_port(0)),
        ("a listener that is not here", |state| state.listener = Some(2)),
        ("what was sent", |state| state.sending.una = 0),
        ("what was sent", |state| state.sending.nxt = state.sending.una - 1),
        ("what was sent", |state| state.sending.nxt = FAR),
        ("more was sent than there is", |state| state.sending.nxt += 1),
        ("the peer's window scale", |state| state.sending.scale = 15),
        ("the peer's window", |state| state.sending.window = 1 << 31),
        ("the peer's windows", |state| state.sending.window_largest = state.sending.window - 1),
        ("the peer's windows", |state| state.sending.window_largest = FAR),
        ("who told the peer's window", |state| state.sending.window_told.1 = state.sending.nxt + 1),
        ("a finish, and a stage without", |state| state.stage = Stage::FinWait1),
        ("a finish, and a stage without", |state| state.sending.finish = Finish::Asked),
        ("acknowledged more than it was", |state| state.sending.told_acknowledged = 500),
        ("a sequence number", |state| state.receiving.edge = FAR),
        ("what was received", |state| state.receiving.next = 0),
        ("our window scale", |state| state.receiving.scale = 15),
        ("more than was granted", |state| state.receiving.granted = 2),
        ("bytes after the peer's end", |state| state.receiving.fin = Some(2)),
        ("the peer's end, and a stage without", |state| state.receiving.fin = Some(state.receiving.next - 1)),
        ("an end that is none", |state| state.receiving.told_finished = true),
        ("what was acknowledged", |state| state.receiving.acknowledged = state.receiving.next + 1),
        ("a piece out of order", |state| state.receiving.late = vec![(1, vec![0])]),
        ("a segment size", |state| state.agreed.mss = 87),
    ];
    for (what, change) in changes {
        let mut t = Trace::open_stamps();
        t.recv(bytes(1, "abc"));
        t.say(100);
        let conn = t.peer().conn.expect("it is open");
        let mut state = t.stack.export(t.now, conn).expect("established");
        change(&mut state);
        assert_eq!(t.stack.import(t.now, &state), Err(ImportError::Contradiction(what)));
        assert_eq!(t.stack.connections(), 0);
    }
}

#[test]
fn states_for_another_stack_are_refused() {
    let mut t = Trace::new(|settings| settings.reassembly_bytes_max = 10);
    t.establish(syn());
    let conn = t.peer().conn.expect("it is open");
    let state = t.stack.export(t.now, conn).expect("established");
    let mut large = state.clone();
    large.receiving.late = vec![(5, vec![0; 11])];
    let refused = Err(ImportError::TooMuch("bytes out of order"));
    assert_eq!(t.stack.import(t.now, &large), refused);
    let mut t = Trace::new(|settings| settings.reassembly_total_max = 10);
    let refused = Err(ImportError::TooMuch("bytes out of order of all connections"));
    assert_eq!(t.stack.import(t.now, &large), refused);
    let mut far = state.clone();
    far.peer = "[2001:db8::1]:4000".parse().expect("an address");
    assert_eq!(t.stack.import(t.now, &far), Err(ImportError::Family));
    assert!(t.stack.import(t.now, &state).is_ok());
}

/// Late segments get no answer. A newer SYN (RFC 6191) is not late, and would not arrive here if the old connection
/// continued.
#[test]
fn a_new_connection_may_begin_where_an_old_one_has_left() {
    for options in [syn(), syn().stamp(PEER_CLOCK)] {
        let mut t = Trace::opened_by(|_| {}, options.clone());
        let conn = t.peer().conn.expect("it is open");
        t.stack.export(t.now, conn).expect("established");
        t.pass(secs(1));
        for late in [options.clone(), bytes(1, "abc"), fin(1), ack(0).seq(0), rst(1), syn_ack()] {
            t.recv(late);
            t.nothing();
        }
        t.peer().initial = t.peers[0].initial.wrapping_add(100_000);
        t.peer().nxt = 0;
        t.establish(if options.stamp.is_some() { syn().stamp(PEER_CLOCK + 1000) } else { syn() });
    }
}

/// A forged SYN does not prevent a connection from coming back.
#[test]
fn a_forged_syn_does_not_take_its_place() {
    let mut t = Trace::open();
    let conn = t.peer().conn.expect("it is open");
    let state = t.stack.export(t.now, conn).expect("established");
    let forged = t.frame_of(syn().mss(1460).seq(5000));
    t.stack.handle_frame(t.now, &forged);
    assert_eq!(t.stack.connections(), 1, "half-open");
    t.peer().conn = t.stack.import(t.now, &state).ok();
    t.introduce();
    t.recv(bytes(1, "abc"));
    t.hears("abc");
    assert_eq!(t.stack.connections(), 1);
    for index in 1..1025 {
        t.at(index).recv(syn());
    }
    assert_eq!(t.counters().cookies_sent, 0, "nor does it take a place of those who begin");
}

/// The new host does not know the peer's Ethernet address, and gets no reply: it sends one request a second while there is
/// something to send, and wakes for nothing else.
#[test]
fn whoever_waits_for_an_answer_wakes_for_nothing_else() {
    for granted in [10, 0] {
        let mut t = Trace::new(|settings| settings.initial_window = 1000);
        t.establish(syn());
        t.grant(1000);
        let conn = t.peer().conn.expect("it is open");
        let state = t.stack.export(t.now, conn).expect("established");
        let moved = t.stack.import(t.now, &state).expect("what left may come back");
        t.stack.grant(moved, granted);
        let (mut calls, end) = (0, t.now + secs(60));
        while let Some(at) = t.stack.poll_timeout().filter(|at| *at <= end) {
            t.now = t.now.max(at);
            t.stack.handle_timeout(t.now);
            t.transmit();
            calls += 1;
        }
        assert!(calls < 200, "{calls} calls in a minute");
        assert_eq!(t.others.is_empty(), granted == 0, "nobody is asked for nothing");
    }
}

/// A connection that has closed here is not continued: its peer knows that it is closed.
#[test]
fn a_connection_that_has_closed_does_not_come_back() {
    let mut t = Trace::open();
    let conn = t.peer().conn.expect("it is open");
    let state = t.stack.export(t.now, conn).expect("established");
    t.peer().conn = t.stack.import(t.now, &state).ok();
    t.introduce();
    t.finish();
    t.recv(fin(1).ack(2));
    assert_eq!(t.stack.import(t.now, &state), Err(ImportError::Present));
    t.pass(secs(61));
    assert!(t.stack.import(t.now, &state).is_ok(), "nobody knows any more");
}

/// Routers send errors to the address of the connection, not to its new host's own (RFC 1191).
#[test]
fn routers_are_heard_under_the_old_address() {
    let mut t = Trace::open();
    t.say(5000);
    let conn = t.peer().conn.expect("it is open");
    let state = t.stack.export(t.now, conn).expect("established");

    let address = Ipv4Addr::new(10, 0, 0, 9);
    let listeners = vec![Listener { address: SocketAddrV4::new(address, PLAIN), is_gated: false }];
    let mut other =
        Stack::new(t.now, Settings { address, listeners, ..settings() }).expect("settings that can be");
    other.handle_frame(t.now, &frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), address));
    other.import(t.now, &state).expect("room");
    let mut slot = vec![0; other.frame_bytes_max()];
    while other.poll_transmit(t.now, &mut slot).is_some() {}
    let mut send_again = |stack: &mut Stack| {
        loop {
            let now = stack.poll_timeout().expect("something is on its way");
            stack.handle_timeout(now);
            while let Some(length) = stack.poll_transmit(now, &mut slot) {
                if slot[12..14] == ethernet::KIND_IPV4.to_be_bytes() {
                    return slot[..length].to_vec();
                }
            }
        }
    };
    let large = send_again(&mut other);
    assert_eq!(large.len(), frame::TCP_AT + 20 + 1460);
    let inner = &large[ethernet::HEADER_BYTES..frame::TCP_AT + 8];
    let message = Message::Unreachable { code: CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 700, inner };
    let ping = Message::EchoRequest { ident: 1, sequence: 1, payload: b"for another" };
    for message in [message, ping] {
        let mut bytes = vec![0; message.bytes()];
        message.emit(&mut bytes);
        other.handle_frame(t.now, &frame::packet(PEER_IP, STACK_IP, ipv4::PROTOCOL_ICMP, &bytes));
    }
    assert_eq!(
        send_again(&mut other).len(),
        ethernet::HEADER_BYTES + 700,
        "and no ping is answered for others"
    );
}
