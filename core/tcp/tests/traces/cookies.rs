//! A cookie is accepted once (RFC 4987 §3.6, RFC 9293 §3.6): a late segment does not begin its connection again.

use spillway_tcp::Settings;
use spillway_transport::{LostReason, Transport};

use crate::trace::*;

/// The longest time for which a cookie is valid, in seconds.
const VALID_S: u64 = 128;

/// A stack that stores one half-open connection, and has one: further SYNs are answered by cookies.
fn flooded(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = Trace::new(|settings| {
        settings.half_open_max = 1;
        change(settings);
    });
    t.at(99).recv(syn());
    t.expect(syn_ack());
    t.at(0);
    t
}

/// The present peer is answered by a cookie.
fn ask(t: &mut Trace) {
    let sent = t.counters().cookies_sent;
    t.recv(syn().mss(1460));
    t.expect(syn_ack().ack(1));
    assert_eq!(t.counters().cookies_sent, sent + 1);
}

/// The peer's whole request, with the cookie.
fn request() -> Seg {
    bytes(1, "hello").fin().ack(1)
}

/// Serves the present peer's request with a cookie. We close second, so there is no TIME-WAIT.
fn serve(t: &mut Trace) {
    ask(t);
    t.recv(request());
    t.opened();
    t.grant(100);
    t.hears("hello");
    t.finished();
    t.finish();
    assert!(fin(1).ack(7).agrees_with(&t.last()));
    t.recv(ack(2).seq(7));
    t.lost(LostReason::Closed);
}

/// The first segment arrives again after its connection: it is answered by a reset.
#[track_caller]
fn is_not_begun_anew(t: &mut Trace) {
    let (connections, counters) = (t.stack.connections(), t.counters());
    t.recv(request());
    t.expect(rst(1));
    t.nothing();
    assert_eq!((t.stack.connections(), t.counters().cookies_used), (connections, counters.cookies_used + 1));
    assert_eq!(t.counters().cookies_accepted, counters.cookies_accepted);
}

/// RFC 9293 §3.10.7.4: LAST-ACK ends without TIME-WAIT.
#[test]
fn a_request_that_comes_again_after_its_connection_is_not_heard_again() {
    for seconds in [0, 1, 53, 54, 117] {
        let mut t = flooded(|_| {});
        serve(&mut t);
        t.pass(secs(seconds)); // the clock shows 10 s at first
        is_not_begun_anew(&mut t);
        is_not_begun_anew(&mut t);
    }
}

/// However the connection has ended.
#[test]
fn a_cookie_is_good_once_whatever_has_come_of_it() {
    type End = fn(&mut Trace);
    let ends: [(&str, End); 4] = [
        ("the peer breaks it off", |t| t.recv(rst(7))),
        ("we break it off", |t| t.abort()),
        ("we close first, and wait", |t| {
            t.finish();
            t.recv(fin(7).ack(2));
        }),
        ("it goes elsewhere", |t| _ = t.stack.export(t.now, t.conn()).expect("established")),
    ];
    for (what, end) in ends {
        let mut t = flooded(|settings| settings.time_wait = secs(1));
        ask(&mut t);
        t.recv(bytes(1, "hello!").ack(1));
        t.opened();
        t.grant(100);
        end(&mut t);
        t.pass(secs(2));
        t.forget();
        assert_eq!(t.stack.connections(), 1, "{what}");
        is_not_begun_anew(&mut t);
    }
}

/// RFC 9293 §3.6.1, MAY-2: the same ports, with another initial number of the peer.
#[test]
fn the_same_ports_may_begin_anew() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    for _ in 0..3 {
        let peer = t.peer();
        (peer.initial, peer.nxt) = (peer.initial.wrapping_add(1000), 0);
        peer.heard.clear();
        serve(&mut t);
        is_not_begun_anew(&mut t);
    }
}

/// Even the same number may begin again: it gets another cookie, and a copy of the first request still begins nothing.
#[test]
fn the_same_number_may_begin_anew_with_another_cookie() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    let first = t.frame_of(request());
    t.pass(secs(64));
    t.peer().heard.clear();
    serve(&mut t);
    is_not_begun_anew(&mut t);
    t.recv_frame(&first);
    assert_eq!((t.stack.connections(), t.counters().cookies_used), (1, 2));
}

/// The table is bounded: no entry is forgotten before its cookie expires, and until then no cookie is sent or accepted.
#[test]
fn where_no_more_are_remembered_none_is_given_or_taken() {
    let mut t = flooded(|settings| settings.cookies_max = 2);
    ask(t.at(2));
    serve(t.at(0));
    serve(t.at(1));
    let counters = t.counters();
    t.at(3).recv(syn().mss(1460));
    t.nothing();
    t.at(2).recv(request());
    t.nothing();
    assert_eq!(t.counters().connections_refused, counters.connections_refused + 2);
    assert_eq!(t.counters().cookies_sent, counters.cookies_sent);
    for seconds in [0, 50, 50] {
        t.pass(secs(seconds));
        is_not_begun_anew(t.at(0));
        is_not_begun_anew(t.at(1));
        t.at(3).recv(syn().mss(1460));
        t.nothing();
    }
    t.pass(secs(VALID_S - 100));
    t.at(99).forget();
    serve(t.at(3));
    is_not_begun_anew(&mut t);
    t.at(0).recv(request()); // too old
    t.nothing();
}

/// If no cookie was sent for as long as one is valid, none is accepted: after a restart, or for another stack of the same
/// key, the stack does not know which cookies were used.
#[test]
fn a_cookie_of_another_time_is_not_taken() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    let late = t.frame_of(request());
    let mut again = Trace::new(|_| {});
    again.now = t.now;
    again.recv_frame(&late);
    assert_eq!((again.stack.connections(), again.counters().resets_sent), (0, 1));
}

/// A connection that began with a cookie elsewhere is imported and ends here. If there is no room to remember its cookie, no
/// cookie is accepted as long as that one is valid.
#[test]
fn a_cookie_is_good_once_among_stacks_that_a_connection_passes() {
    for is_full in [false, true] {
        let mut here = flooded(|settings| settings.cookies_max = if is_full { 1 } else { 2 });
        serve(here.at(98));
        let mut there = flooded(|_| {});
        for t in [&mut here, &mut there] {
            t.pass(secs(60)); // the next period of cookies
            t.at(0).introduce();
        }
        ask(&mut there);
        there.recv(request());
        there.opened();
        let state = there.stack.export(there.now, there.conn()).expect("established");

        let conn = here.stack.import(here.now, &state).expect("room");
        here.transmit();
        here.stack.abort(conn);
        here.transmit();
        let late = there.frame_of(request());
        for seconds in [0, 60] {
            here.pass(secs(seconds)); // the period after that: the first entries are forgotten
            let counters = here.counters();
            here.recv_frame(&late);
            assert_eq!((here.stack.connections(), here.counters().cookies_accepted), (1, 1));
            let (used, refused) = (here.counters().cookies_used, here.counters().connections_refused);
            assert_eq!(used - counters.cookies_used, u64::from(!is_full));
            assert_eq!(refused - counters.connections_refused, u64::from(is_full));
        }
    }
}
