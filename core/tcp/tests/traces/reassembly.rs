//! Bytes out of order (RFC 9293 §3.10.7.4, seventh; SHLD-31), and the bounds of waiting bytes.

use proptest::prelude::*;
use spillway_tcp::StackEvent;
use spillway_transport::Transport;

use crate::trace::*;

#[test]
fn any_order_is_put_right() {
    let pieces = ["ab", "cde", "f", "ghij"];
    let starts = [1, 3, 6, 7];
    let mut order = [0, 1, 2, 3];
    for round in 0..24 {
        // Every permutation: the digits of `round` in the factorial number system.
        let (mut left, mut digits) = (vec![0, 1, 2, 3], round);
        for (index, place) in order.iter_mut().enumerate() {
            *place = left.remove(digits % (4 - index));
            digits /= 4 - index;
        }
        let mut t = Trace::open();
        for index in order {
            t.recv(bytes(starts[index], pieces[index]));
        }
        assert_eq!(t.peer().heard, b"abcdefghij", "{order:?}");
        t.pass(ms(40));
        assert_eq!(t.last().ack, Some(11));
    }
}

/// The first copy of a byte is kept: a later one cannot change it.
#[test]
fn bytes_that_are_held_are_not_replaced() {
    let mut t = Trace::open();
    t.recv(bytes(3, "cdef"));
    t.recv(bytes(2, "XXXXXXXX"));
    t.recv(bytes(1, "a"));
    assert_eq!(t.peer().heard, b"aXcdefXXX");
}

/// Bytes are delivered once.
#[test]
fn bytes_that_overlap_what_was_delivered_are_cut() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abcd"));
    t.recv(bytes(3, "XXef"));
    t.recv(bytes(1, "YYYYYYg"));
    assert_eq!(t.peer().heard, b"abcdefg");
}

/// Bytes too far ahead are refused from the beginning, so that there is room for all bytes before them: none that SACK has
/// reported is discarded, after which Linux would wait for a timeout (RFC 2018 §8 allows and discourages it).
#[test]
fn what_waits_is_bounded() {
    let small = |settings: &mut spillway_tcp::Settings| settings.reassembly_bytes_max = 2000;
    let mut t = Trace::opened_by(small, syn().sack_ok(true));
    t.recv(many(1601, 400));
    t.expect(ack(1).sack(&[(1601, 2001)]));
    t.recv(many(1901, 200));
    t.expect(ack(1).sack(&[(1901, 2001), (1601, 2001)])); // the part of it that arrived twice
    t.recv(many(1001, 500));
    t.expect(ack(1).sack(&[(1001, 1501), (1601, 2001)]));
    t.recv(many(1501, 100));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.recv(many(1, 1000));
    t.expect(ack(2001).sack(&[]));
    t.recv(many(3901, 100));
    t.expect(ack(2001).sack(&[(3901, 4001)]));
    t.recv(many(2001, 2500));
    assert_eq!(t.peer().heard, pattern(1, 4500));
}

/// With default settings for waiting bytes: a quarter of the window may wait.
#[test]
fn what_was_told_by_sack_is_never_taken_back() {
    let usual = |settings: &mut spillway_tcp::Settings| settings.receive_window_max = 1 << 20;
    let mut t = Trace::opened_by(usual, syn().mss(1460).scale(7).sack_ok(true));
    t.grant(1 << 20);
    t.forget();
    for at in (3001..300_001).step_by(1000) {
        t.recv(many(at, 1000));
    }
    let told = t.last().sack.expect("blocks");
    assert_eq!(told, [(3001, 262_001)], "256 KiB from the next byte on");
    t.recv(many(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001), (3001, 262_001)]));
    t.recv(many(2001, 1000));
    t.expect(ack(1).sack(&[(1001, 262_001)]));
    t.recv(many(1, 1000));
    t.expect(ack(262_001).sack(&[]));
    assert_eq!(t.peer().heard, pattern(1, 262_000));
}

/// The same with the maximum number of ranges.
#[test]
fn a_range_too_many_takes_none_back() {
    let mut t = Trace::open_sack();
    for at in 0..64 {
        t.recv(many(1001 + 100 * at, 50));
    }
    t.forget();
    t.recv(many(501, 50));
    let blocks = t.next().sack.expect("blocks");
    assert!(!blocks.contains(&(501, 551)), "{blocks:?}");
    t.recv(many(1051 + 100 * 63, 50));
    t.expect(ack(1).sack(&[(7301, 7401), (7201, 7251), (7101, 7151), (7001, 7051)]));
    t.recv(many(1, 1000));
    t.expect(ack(1051));
}

/// All connections together hold no more than the total; a connection that ends in any way gives its share back.
#[test]
fn what_waits_in_all_connections_is_bounded() {
    let small = |settings: &mut spillway_tcp::Settings| settings.reassembly_total_max = 1500;
    let mut t = Trace::opened_by(small, syn().sack_ok(true));
    t.recv(many(101, 1000));
    t.expect(ack(1).sack(&[(101, 1101)]));
    for peer in 1..4 {
        t.at(peer).establish(syn().sack_ok(true));
        t.grant(100_000);
        t.recv(many(101, 1000));
        t.expect(ack(1));
        t.recv(many(101, 500));
        t.expect(ack(1).sack(&[(101, 601)]));
        match peer {
            1 => t.recv(rst(1)),
            2 => t.abort(),
            _ => t.recv(many(1, 100)),
        }
        t.peer().segments.clear();
    }
    assert_eq!(t.peer().heard, pattern(1, 600), "what had room is there");
    t.at(0).recv(many(1, 100));
    assert_eq!(t.peer().heard, pattern(1, 1100));
}

/// However the bytes are cut: holes of one byte each.
#[test]
fn holes_are_bounded() {
    let mut t = Trace::open();
    for at in 0..5000 {
        t.recv(many(2 + 2 * at, 1));
    }
    t.peer().segments.clear();
    t.recv(many(1, 1));
    let heard = t.peer().heard.len();
    assert!((2..5000).contains(&heard), "{heard}");
    for at in 1..5001 {
        t.recv(many(1 + 2 * at - 2, 2));
    }
    assert_eq!(t.peer().heard, pattern(1, 10_000));
}

/// The send buffer is bounded, and the application learns when there is room.
#[test]
fn what_we_say_is_bounded() {
    let mut t = Trace::opened_by(|settings| settings.send_buffer_bytes = 1000, syn().mss(100).window(500));
    let conn = t.peer().conn.expect("a connection");
    t.peer().said = pattern(1, 1000);
    assert_eq!(t.stack.send(conn, &pattern(1, 3000)), 1000);
    assert_eq!(t.stack.room(conn), 0);
    t.transmit();
    t.recv(ack(101).window(500));
    assert!(t.peer().events.is_empty(), "a little room is not worth a word");
    t.recv(ack(501).window(500));
    t.event(spillway_tcp::StackEvent::Room);
    assert_eq!(t.stack.room(conn), 500);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// However a stream is cut, mixed and repeated: the same bytes are delivered.
    #[test]
    fn a_stream_in_pieces_is_whole(
        cuts in prop::collection::vec((0_i64..3000, 1_usize..400), 1..60),
        has_sack: bool,
    ) {
        let syn = syn().mss(1460).sack_ok(has_sack);
        let mut t = Trace::opened_by(|_| {}, syn);
        for (from, count) in &cuts {
            t.recv(many(1 + from, *count));
        }
        let prefix = t.peer().heard.len();
        prop_assert_eq!(&t.peer().heard, &pattern(1, prefix));
        t.recv_all((0..4).map(|at| many(1 + 1000 * at, 1000)));
        prop_assert_eq!(&t.peer().heard, &pattern(1, 4000));
        let last = t.last();
        prop_assert_eq!((last.ack, last.window), (Some(4001), Some(61_535)));
    }
}

/// A driver that has not polled all events receives later bytes after those that wait.
#[test]
fn bytes_keep_their_order_where_events_wait() {
    let mut t = Trace::open();
    let frames = [bytes(4, "def"), bytes(1, "abc"), bytes(7, "ghi")].map(|seg| t.frame_of(seg));
    for frame in frames {
        if let Some(delivery) = t.stack.handle_frame(t.now, &frame) {
            let bytes = frame[delivery.range].to_vec();
            t.peer().hear(StackEvent::Data { end: delivery.end, bytes });
        }
    }
    t.transmit();
    t.hears("abc");
    t.hears("def");
    t.hears("ghi");
}
