//! Bytes out of order (RFC 9293 §3.10.7.4, seventh; SHLD-31), and bounds of the bytes that wait.

use proptest::prelude::*;
use spillway_tcp::StackEvent;
use spillway_transport::Transport;

use crate::trace::*;

#[test]
fn bytes_in_any_order_are_delivered_in_order() {
    let pieces = ["ab", "cde", "f", "ghij"];
    let starts = [1, 3, 6, 7];
    let mut order = [0, 1, 2, 3];
    for permutation in 0..24 {
        // The digits of `permutation` in the factorial number system are positions in `remaining`.
        let (mut remaining, mut digits) = (vec![0, 1, 2, 3], permutation);
        for (index, piece) in order.iter_mut().enumerate() {
            *piece = remaining.remove(digits % (4 - index));
            digits /= 4 - index;
        }
        let mut t = Trace::open();
        for index in order {
            t.recv(bytes(starts[index], pieces[index]));
        }
        assert_eq!(t.peer().received, b"abcdefghij", "the bytes should be delivered in order: {order:?}");
        t.advance(ms(40));
        assert_eq!(t.take_last().ack, Some(11));
    }
}

#[test]
fn held_bytes_are_not_replaced_by_later_copies() {
    let mut t = Trace::open();
    t.recv(bytes(3, "cdef"));
    t.recv(bytes(2, "XXXXXXXX"));
    t.recv(bytes(1, "a"));
    assert_eq!(t.peer().received, b"aXcdefXXX");
}

#[test]
fn bytes_already_delivered_are_cut_off() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abcd"));
    t.recv(bytes(3, "XXef"));
    t.recv(bytes(1, "YYYYYYg"));
    assert_eq!(t.peer().received, b"abcdefg");
}

/// Bytes too far ahead are refused at once, so that there is room for all bytes before them. Otherwise SACKed
/// bytes would have to be discarded: RFC 2018 §8 discourages this, and Linux then waits for a timeout.
#[test]
fn waiting_bytes_are_bounded() {
    let small = |settings: &mut spillway_tcp::Settings| settings.reassembly_bytes_max = 2000;
    let mut t = Trace::open_with(small, syn().sack_ok(true));
    t.recv(data(1601, 400));
    t.expect(ack(1).sack(&[(1601, 2001)]));
    t.recv(data(1901, 200));
    t.expect(ack(1).sack(&[(1901, 2001), (1601, 2001)])); // a D-SACK: 100 bytes arrived twice
    t.recv(data(1001, 500));
    t.expect(ack(1).sack(&[(1001, 1501), (1601, 2001)]));
    t.recv(data(1501, 100));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.recv(data(1, 1000));
    t.expect(ack(2001).sack(&[]));
    t.recv(data(3901, 100));
    t.expect(ack(2001).sack(&[(3901, 4001)]));
    t.recv(data(2001, 2500));
    assert_eq!(t.peer().received, pattern(1, 4500));
}

/// By default 256 KiB may wait: a quarter of this window.
#[test]
fn sacked_bytes_are_never_discarded() {
    let large = |settings: &mut spillway_tcp::Settings| settings.receive_window_max = 1 << 20;
    let mut t = Trace::open_with(large, syn().mss(1460).scale(7).sack_ok(true));
    t.grant(1 << 20);
    t.discard();
    for at in (3001..300_001).step_by(1000) {
        t.recv(data(at, 1000));
    }
    let reported = t.take_last().sack.expect("the SACK option");
    assert_eq!(
        reported,
        [(3001, 262_001)],
        "whole segments within 256 KiB of the next byte should be reported"
    );
    t.recv(data(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001), (3001, 262_001)]));
    t.recv(data(2001, 1000));
    t.expect(ack(1).sack(&[(1001, 262_001)]));
    t.recv(data(1, 1000));
    t.expect(ack(262_001).sack(&[]));
    assert_eq!(t.peer().received, pattern(1, 262_000));
}

/// The limit is 64 ranges.
#[test]
fn a_range_beyond_the_limit_displaces_no_other() {
    let mut t = Trace::open_sack();
    for at in 0..64 {
        t.recv(data(1001 + 100 * at, 50));
    }
    t.discard();
    t.recv(data(501, 50));
    let blocks = t.next().sack.expect("the SACK option");
    assert!(!blocks.contains(&(501, 551)), "the range beyond the limit should not be reported: {blocks:?}");
    t.recv(data(1051 + 100 * 63, 50));
    t.expect(ack(1).sack(&[(7301, 7401), (7201, 7251), (7101, 7151), (7001, 7051)]));
    t.recv(data(1, 1000));
    t.expect(ack(1051));
}

/// However a connection ends, its share of the total becomes free.
#[test]
fn waiting_bytes_of_all_connections_are_bounded() {
    let small = |settings: &mut spillway_tcp::Settings| settings.reassembly_total_max = 1500;
    let mut t = Trace::open_with(small, syn().sack_ok(true));
    t.recv(data(101, 1000));
    t.expect(ack(1).sack(&[(101, 1101)]));
    for peer in 1..4 {
        t.select_peer(peer).establish(syn().sack_ok(true));
        t.grant(100_000);
        t.recv(data(101, 1000));
        t.expect(ack(1));
        t.recv(data(101, 500));
        t.expect(ack(1).sack(&[(101, 601)]));
        match peer {
            1 => t.recv(rst(1)),
            2 => t.abort(),
            _ => t.recv(data(1, 100)),
        }
        t.peer().segments.clear();
    }
    assert_eq!(t.peer().received, pattern(1, 600), "all bytes that had room should be delivered");
    t.select_peer(0).recv(data(1, 100));
    assert_eq!(t.peer().received, pattern(1, 1100));
}

/// Each range has one byte, and so has each hole.
#[test]
fn ranges_of_single_bytes_are_bounded() {
    let mut t = Trace::open();
    for at in 0..5000 {
        t.recv(data(2 + 2 * at, 1));
    }
    t.peer().segments.clear();
    t.recv(data(1, 1));
    let received = t.peer().received.len();
    assert!((2..5000).contains(&received), "ranges should be bounded: {received}");
    for at in 1..5001 {
        t.recv(data(1 + 2 * at - 2, 2));
    }
    assert_eq!(t.peer().received, pattern(1, 10_000));
}

/// The application gets an event when there is room again.
#[test]
fn the_send_buffer_is_bounded() {
    let mut t = Trace::open_with(|settings| settings.send_buffer_bytes = 1000, syn().mss(100).window(500));
    let conn = t.peer().conn.expect("an open connection");
    t.peer().sent = pattern(1, 1000);
    assert_eq!(t.stack.send(conn, &pattern(1, 3000)), 1000);
    assert_eq!(t.stack.room(conn), 0);
    t.transmit();
    t.recv(ack(101).window(500));
    assert!(t.peer().events.is_empty(), "no event should come below a quarter of the buffer");
    t.recv(ack(501).window(500));
    t.expect_event(spillway_tcp::StackEvent::Room);
    assert_eq!(t.stack.room(conn), 500);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// First come overlapping segments in any order, then the whole stream.
    #[test]
    fn a_stream_in_random_segments_is_delivered_whole(
        cuts in prop::collection::vec((0_i64..3000, 1_usize..400), 1..60),
        has_sack: bool,
    ) {
        let syn = syn().mss(1460).sack_ok(has_sack);
        let mut t = Trace::open_with(|_| {}, syn);
        for (from, count) in &cuts {
            t.recv(data(1 + from, *count));
        }
        let prefix = t.peer().received.len();
        prop_assert_eq!(&t.peer().received, &pattern(1, prefix));
        t.recv_all((0..4).map(|at| data(1 + 1000 * at, 1000)));
        prop_assert_eq!(&t.peer().received, &pattern(1, 4000));
        let last = t.take_last();
        prop_assert_eq!((last.ack, last.window), (Some(4001), Some(61_535)));
    }
}

/// The driver handles three frames before it polls events.
#[test]
fn bytes_stay_in_order_while_events_wait() {
    let mut t = Trace::open();
    let frames = [bytes(4, "def"), bytes(1, "abc"), bytes(7, "ghi")].map(|seg| t.frame_of(seg));
    for frame in frames {
        if let Some(delivery) = t.stack.handle_frame(t.now, &frame) {
            let bytes = frame[delivery.range].to_vec();
            t.peer().on_event(StackEvent::Data { end: delivery.end, bytes });
        }
    }
    t.transmit();
    t.expect_data("abc");
    t.expect_data("def");
    t.expect_data("ghi");
}
