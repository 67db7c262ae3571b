//! A cookie is accepted once (RFC 4987 §3.6, RFC 9293 §3.6): a late segment does not open its connection again.

use spillway_tcp::Settings;
use spillway_transport::{LostReason, Transport};

use crate::trace::*;

/// Longest validity of a cookie, seconds.
const VALID_S: u64 = 128;

/// A stack whose table of half-open connections is full: peer 99 has its only place. Other SYNs get cookies.
fn flooded(change: impl FnOnce(&mut Settings)) -> Trace {
    let mut t = Trace::new(|settings| {
        (settings.half_open_max, settings.give_up_accepting_after) = (1, secs(86_400));
        change(settings);
    });
    t.select_peer(99).recv(syn());
    t.expect(syn_ack());
    t.select_peer(0);
    t
}

/// The selected peer sends a SYN and gets a cookie.
fn get_cookie(t: &mut Trace) {
    let cookies_sent = t.counters().cookies_sent;
    t.recv(syn().mss(1460));
    t.expect(syn_ack().ack(1));
    assert_eq!(t.counters().cookies_sent, cookies_sent + 1);
}

/// The peer's whole request, which returns the cookie.
fn request() -> Seg {
    bytes(1, "hello").fin().ack(1)
}

/// Serves the selected peer's request, which returns a cookie. This end closes second, without a TIME-WAIT.
fn serve(t: &mut Trace) {
    get_cookie(t);
    t.recv(request());
    t.expect_opened();
    t.grant(100);
    t.expect_data("hello");
    t.expect_finished();
    t.finish();
    assert!(fin(1).ack(7).agrees_with(&t.take_last()), "the FIN should have the next numbers");
    t.recv(ack(2).seq(7));
    t.expect_lost(LostReason::Closed);
}

/// The request arrives again after its connection has ended: a reset answers it. `cookies_used` counts cookies that are
/// rejected because they were used before.
#[track_caller]
fn repeat_request(t: &mut Trace) {
    let (connections, counters) = (t.stack.connections(), t.counters());
    t.recv(request());
    t.expect(rst(1));
    t.expect_nothing();
    assert_eq!((t.stack.connections(), t.counters().cookies_used), (connections, counters.cookies_used + 1));
    assert_eq!(t.counters().cookies_accepted, counters.cookies_accepted);
}

/// RFC 9293 §3.10.7.4: LAST-ACK ends without TIME-WAIT. The clock starts at 10 s, and a new period of cookies begins
/// each 64 s: the times are before and after the first change of the period, and at the end of the second period.
#[test]
fn a_request_that_arrives_again_after_its_connection_ended_is_answered_by_a_reset() {
    for seconds in [0, 1, 64 - 10 - 1, 64 - 10, 2 * 64 - 10 - 1] {
        let mut t = flooded(|_| {});
        serve(&mut t);
        t.advance(secs(seconds));
        repeat_request(&mut t);
        repeat_request(&mut t);
    }
}

#[test]
fn a_cookie_is_accepted_once_however_its_connection_ended() {
    type End = fn(&mut Trace);
    let ends: [(&str, End); 4] = [
        ("the peer resets the connection", |t| t.recv(rst(7))),
        ("this end aborts", |t| t.abort()),
        ("this end closes first, with TIME-WAIT", |t| {
            t.finish();
            t.recv(fin(7).ack(2));
        }),
        ("the connection is exported", |t| {
            _ = t.stack.export(t.now, t.conn()).expect("an established connection")
        }),
    ];
    for (description, end) in ends {
        let mut t = flooded(|settings| settings.time_wait = secs(1));
        get_cookie(&mut t);
        t.recv(bytes(1, "hello!").ack(1));
        t.expect_opened();
        t.grant(100);
        end(&mut t);
        t.advance(secs(2));
        t.discard(); // the segments and events of the connection's end
        assert_eq!(t.stack.connections(), 1, "the cookie should be accepted once: {description}");
        repeat_request(&mut t);
    }
}

/// RFC 9293 §3.6.1, MAY-2: with another initial number of the peer.
#[test]
fn the_same_ports_may_connect_again() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    for _ in 0..3 {
        let peer = t.peer();
        (peer.initial, peer.nxt) = (peer.initial.wrapping_add(1000), 0);
        peer.received.clear();
        serve(&mut t);
        repeat_request(&mut t);
    }
}

/// A copy of the first request, with the first cookie, still opens no connection.
#[test]
fn the_same_initial_number_may_connect_again_with_another_cookie() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    let first = t.frame_of(request());
    t.advance(secs(64));
    t.peer().received.clear();
    serve(&mut t);
    repeat_request(&mut t);
    t.recv_frame(&first);
    assert_eq!(
        (t.stack.connections(), t.counters().cookies_used),
        (1, 2),
        "the second cookie should be accepted"
    );
}

/// The table of used cookies is bounded, and an entry is kept until its cookie expires. All peers here have
/// one address, whose share of the 10 places is two.
#[test]
fn while_an_address_has_used_its_share_of_cookies_none_is_sent_to_it_or_accepted_from_it() {
    let mut t = flooded(|settings| settings.cookies_max = 10);
    get_cookie(t.select_peer(2));
    serve(t.select_peer(0));
    serve(t.select_peer(1));
    let counters = t.counters();
    t.select_peer(3).recv(syn().mss(1460));
    t.expect_nothing();
    t.select_peer(2).recv(request());
    t.expect_nothing();
    assert_eq!(t.counters().connections_refused, counters.connections_refused + 2);
    assert_eq!(t.counters().cookies_sent, counters.cookies_sent);
    for seconds in [0, 50, 50] {
        t.advance(secs(seconds));
        repeat_request(t.select_peer(0));
        repeat_request(t.select_peer(1));
        t.select_peer(3).recv(syn().mss(1460));
        t.expect_nothing();
    }
    t.advance(secs(VALID_S - 100));
    t.select_peer(99).discard();
    serve(t.select_peer(3));
    repeat_request(&mut t);
    // An expired cookie is invalid: unlike a used one, it is dropped without a reset.
    t.select_peer(0).recv(request());
    t.expect_nothing();
}

/// A host that completes handshakes, and ends each connection at once, keeps out only itself, and only until
/// its cookies expire. Each further such host gets less.
#[test]
fn hosts_with_many_handshakes_use_up_only_their_own_shares() {
    let mut t = flooded(|settings| settings.cookies_max = 1000);
    let mut peers = 0;
    let mut take_all = |t: &mut Trace, host: usize| {
        let begun = peers;
        loop {
            peers += 1;
            t.select_peer(100 + peers).peer().ip =
                either(&format!("10.0.1.{host}"), &format!("fd01:{host}::1"));
            t.recv(syn().mss(1460));
            if t.peer().segments.pop_front().is_none() {
                return peers - begun - 1;
            }
            t.recv(ack(1).seq(1));
            t.expect_opened();
            t.recv(rst(1));
            t.discard();
        }
    };
    assert_eq!(take_all(&mut t, 1), 102, "one host should use up a tenth of the table");
    assert_eq!(take_all(&mut t, 1), 0);
    let of_others: usize = (2..17).map(|host| take_all(&mut t, host)).sum();
    assert!(
        (500..=600).contains(&of_others),
        "15 further hosts should leave a third of the table: {of_others}"
    );
    assert!(take_all(&mut t, 17) > 10, "16 hosts should leave a third of the table");
    assert_eq!(t.stack.connections(), 1, "the forged half-open connection should be the only one");

    let cookies = t.counters().cookies_accepted;
    t.advance(secs(VALID_S));
    assert_eq!(take_all(&mut t, 1), 102, "the share should be free again after the cookies have expired");
    assert_eq!(t.counters().cookies_accepted, cookies + 102);
}

/// A stack that has sent no cookie recently accepts none: after a restart it has no record of used cookies,
/// nor of the cookies of other stacks with the same key.
#[test]
fn after_a_restart_earlier_cookies_are_refused() {
    let mut t = flooded(|_| {});
    serve(&mut t);
    let late = t.frame_of(request());
    let mut restarted = Trace::new(|_| {});
    restarted.now = t.now;
    restarted.recv_frame(&late);
    assert_eq!(
        (restarted.stack.connections(), restarted.counters().resets_sent),
        (0, 1),
        "the earlier cookie should be answered by a reset"
    );
}

/// A connection that began with a cookie moves to another stack and ends there. If that stack has no room to
/// record the cookie, it accepts no cookies while this one is valid.
#[test]
fn the_cookie_of_an_imported_connection_is_refused() {
    for is_full in [false, true] {
        let mut importing = flooded(|settings| settings.cookies_max = if is_full { 1 } else { 2 });
        serve(importing.select_peer(98));
        let mut exporting = flooded(|_| {});
        for t in [&mut importing, &mut exporting] {
            t.advance(secs(60)); // into the next period of cookies
            // After 60 s the stack might have to resolve the peers' Ethernet address before it answers.
            t.select_peer(0).announce_mac();
        }
        get_cookie(&mut exporting);
        exporting.recv(request());
        exporting.expect_opened();
        let state =
            exporting.stack.export(exporting.now, exporting.conn()).expect("an established connection");

        let conn = importing.stack.import(importing.now, &state).expect("room for a connection");
        importing.transmit();
        importing.stack.abort(conn);
        importing.transmit();
        let late = exporting.frame_of(request());
        for seconds in [0, 60] {
            importing.advance(secs(seconds)); // 60 s: into a period in which the first entries have expired
            let counters = importing.counters();
            importing.recv_frame(&late);
            assert_eq!(
                (importing.stack.connections(), importing.counters().cookies_accepted),
                (1, 1),
                "the imported connection's cookie should be refused"
            );
            let (used, refused) =
                (importing.counters().cookies_used, importing.counters().connections_refused);
            assert_eq!(used - counters.cookies_used, u64::from(!is_full));
            assert_eq!(refused - counters.connections_refused, u64::from(is_full));
        }
    }
}
