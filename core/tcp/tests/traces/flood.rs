//! Many connections that begin, and few that continue (RFC 4987 §3.6: cookies).

use std::net::{Ipv4Addr, SocketAddr};

use spillway_transport::{Full, Transport};
use spillway_wire::packet::tcp::{Flags, Header};

use crate::trace::*;

/// A stack that stores two half-open connections, and has two.
fn flooded() -> Trace {
    let mut t = Trace::new(|settings| settings.half_open_max = 2);
    for index in 1..3 {
        t.at(index).recv(syn());
        t.expect(syn_ack());
    }
    t.at(0);
    t
}

/// A SYN of a peer that sends nothing more.
fn stranger(index: u32) -> Vec<u8> {
    let ip = Ipv4Addr::from(0x0a00_0000 | (index % 60_000 + 1000) << 8 >> 8);
    let header = Header {
        source: 1024 + (index % 60_000) as u16,
        target: PLAIN,
        seq: index.wrapping_mul(0x9e37_79b9),
        flags: Flags::SYN,
        window: 1000,
        ..Header::default()
    };
    frame::segment(ip, &header, &[], None)
}

#[test]
fn a_cookie_is_answered_without_a_memory_and_makes_a_connection() {
    let mut t = flooded();
    t.recv(syn().mss(1460));
    t.expect(syn_ack().ack(1).mss(1460));
    assert_eq!((t.stack.connections(), t.counters().cookies_sent), (2, 1));
    t.recv(ack(1).seq(1));
    t.opened();
    assert_eq!((t.stack.connections(), t.counters().cookies_accepted), (3, 1));
    t.grant(1000);
    t.recv(bytes(1, "hello"));
    t.hears("hello");
    t.expect(ack(6));
    t.say(3000);
    t.expect(many(1, 1460));
}

/// Without timestamps a cookie keeps little: roughly the segment size.
#[test]
fn a_cookie_remembers_the_segment_size() {
    for (mss, least) in [(1460, 1400), (1300, 1000), (536, 536), (0, 500)] {
        let mut t = flooded();
        t.recv(if mss > 0 { syn().mss(mss) } else { syn() });
        t.expect(syn_ack().no_scale().sack_ok(false).no_stamp());
        t.recv(ack(1).seq(1));
        t.opened();
        t.say(5000);
        let bytes = t.next().payload.expect("a payload").len();
        assert!((least..=usize::from(mss.max(536))).contains(&bytes), "{mss}: {bytes}");
    }
}

/// With timestamps a cookie keeps the other options, too.
#[test]
fn a_cookie_in_the_timestamp_remembers_options() {
    let mut t = flooded();
    t.recv(syn().mss(1460).scale(3).sack_ok(true).stamp(PEER_CLOCK));
    t.expect(syn_ack().scale(0).sack_ok(true));
    t.pass(ms(5));
    t.recv(ack(1).seq(1).window(100));
    t.opened();
    t.grant(65_535);
    t.recv(many(11, 10).window(100));
    t.expect(ack(1).sack(&[(11, 21)]));
    t.say(5000);
    t.expect(many(1, 800)); // 100 << 3; blocks need their room, too
}

/// The bytes of the segment that ends the handshake are delivered.
#[test]
fn bytes_may_come_with_the_answer_to_a_cookie() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(bytes(1, "hello").ack(1));
    t.opened();
    t.grant(100);
    t.hears("hello");
}

/// A peer that has not seen the cookie cannot guess it. A wrong answer is ignored: the right one may have been lost, and a
/// reset would end what the peer takes for established.
#[test]
fn a_forged_answer_to_a_cookie_is_ignored() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    for wrong in [0, 2, 3, 1000, -5] {
        t.recv(ack(wrong).seq(1));
    }
    t.recv(ack(1).seq(2)); // the peer's number counts as well
    t.nothing();
    t.recv(ack(1).seq(1));
    t.opened();
}

/// A cookie is valid for two minutes.
#[test]
fn an_old_cookie_is_reset() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    t.pass(secs(3600));
    t.recv(ack(1).seq(1));
    t.expect(rst(1));
}

/// While the table has room, cookies are not sent.
#[test]
fn half_open_connections_that_end_make_room() {
    let mut t = flooded();
    t.at(1).recv(ack(1));
    t.opened();
    t.at(2).recv(rst(1));
    t.at(3).recv(syn());
    t.expect(syn_ack());
    t.at(4).recv(syn());
    t.expect(syn_ack());
    assert_eq!(t.counters().cookies_sent, 0);
    t.at(5).recv(syn());
    t.expect(syn_ack());
    assert_eq!(t.counters().cookies_sent, 1);
}

/// A flood takes no memory, and existing connections continue.
#[test]
fn a_flood_harms_nobody() {
    let mut t = Trace::new(|settings| settings.half_open_max = 100);
    t.establish(syn().mss(1000));
    t.grant(65_535);
    for index in 0..50_000 {
        t.recv_frame(&stranger(index));
        t.others.clear();
    }
    assert_eq!(t.stack.connections(), 101);
    assert!(t.counters().cookies_sent > 49_000);
    t.recv(bytes(1, "here"));
    t.hears("here");
    t.at(1).establish(syn());
}

/// Waiting answers are bounded.
#[test]
fn answers_that_wait_are_bounded() {
    let mut t = flooded();
    for index in 0..5000 {
        assert_eq!(t.stack.handle_frame(t.now, &stranger(index)), None);
    }
    assert_eq!(t.counters().replies_dropped, 5000 - 1024);
    t.transmit();
    assert_eq!(t.others.len(), 1024);
}

/// A full table drops SYNs silently: the peer retransmits, and there may be room then.
#[test]
fn a_full_table_refuses() {
    let mut t = Trace::new(|settings| settings.connections_max = 2);
    t.establish(syn());
    t.at(1).establish(syn());
    t.at(2).recv(syn());
    t.nothing();
    assert_eq!(t.counters().connections_refused, 1);
    let target = SocketAddr::from((PEER_IP, 9999));
    assert_eq!(t.stack.connect(t.now, target), Err(Full));
    t.at(0).abort();
    t.at(2).establish(syn());
}

/// A full table refuses valid cookies, too.
#[test]
fn a_full_table_refuses_cookies() {
    let mut t = Trace::new(|settings| (settings.connections_max, settings.half_open_max) = (2, 1));
    t.at(1).recv(syn());
    t.expect(syn_ack());
    t.at(0).recv(syn());
    t.expect(syn_ack());
    t.at(2).connect();
    t.at(0).recv(ack(1).seq(1));
    t.nothing();
    t.at(2).abort();
    t.at(0).recv(ack(1).seq(1));
    t.opened();
}
