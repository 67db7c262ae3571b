//! Selective acknowledgements, sent and received (RFC 2018, RFC 2883, RFC 6675).

use crate::trace::*;

/// RFC 2018 §3: blocks report the bytes between holes.
#[test]
fn bytes_out_of_order_are_reported() {
    let mut t = Trace::open_sack();
    t.recv(data(11, 10));
    t.expect(ack(1).sack(&[(11, 21)]));
    t.recv(data(21, 10));
    t.expect(ack(1).sack(&[(11, 31)]));
    t.recv(data(1, 10));
    t.expect(ack(31).sack(&[]));
}

/// RFC 2018 §4: "the first SACK block MUST specify the contiguous block of data containing the segment which triggered
/// this ACK".
#[test]
fn the_latest_block_is_reported_first() {
    let mut t = Trace::open_sack();
    for (seq, blocks) in [
        (11, &[(11, 16)][..]),
        (31, &[(31, 36), (11, 16)]),
        (51, &[(51, 56), (31, 36), (11, 16)]),
        (16, &[(11, 21), (51, 56), (31, 36)]),
        (71, &[(71, 76), (11, 21), (51, 56), (31, 36)]),
    ] {
        t.recv(data(seq, 5));
        t.expect(ack(1).sack(blocks));
    }
}

/// RFC 2018 §3: 40 bytes of options have room for four blocks; for three beside timestamps.
#[test]
fn four_blocks_are_reported_or_three_with_timestamps() {
    for (mut t, blocks_max) in [(Trace::open_sack(), 4), (Trace::open_timestamps(), 3)] {
        for at in 1..8 {
            t.recv(data(1 + 20 * at, 5));
        }
        let blocks = t.take_last().sack.expect("the SACK option");
        let expected: Vec<_> = (1..8).rev().take(blocks_max).map(|at| (1 + 20 * at, 6 + 20 * at)).collect();
        assert_eq!(blocks, expected);
    }
}

/// RFC 2018 §4: every acknowledgement has blocks. In segments with bytes, the option reduces the payload.
#[test]
fn sent_bytes_carry_sack_blocks() {
    let mut t = Trace::open_sack();
    t.recv(data(11, 10));
    t.discard_segments();
    t.send_pattern(3000);
    t.expect(data(1, 1448).sack(&[(11, 21)]));
    t.expect(data(1449, 1448).sack(&[(11, 21)]));
    t.expect(data(2897, 104).sack(&[(11, 21)]));
}

/// RFC 2018 §4: blocks below the acknowledgement are not reported.
#[test]
fn a_filled_hole_ends_its_block() {
    let mut t = Trace::open_sack();
    t.recv(data(11, 10));
    t.recv(data(31, 10));
    t.discard_segments();
    t.recv(data(1, 10));
    t.expect(ack(21).sack(&[(31, 41)]));
    t.recv(data(21, 10));
    t.expect(ack(41).sack(&[]));
}

/// Bytes that are in order but not granted are acknowledged, and not reported by SACK.
#[test]
fn bytes_that_wait_for_a_grant_are_not_reported() {
    let mut t = Trace::new(|_| {});
    t.establish(syn().sack_ok(true));
    t.recv(data(1, 100));
    t.expect(ack(101).sack(&[]));
    t.recv(data(201, 100));
    t.expect(ack(101).sack(&[(201, 301)]));
}

/// RFC 2883 §4.1.1: a full duplicate below the acknowledgement.
#[test]
fn a_duplicate_is_reported() {
    let mut t = Trace::open_sack();
    t.recv(data(1, 10));
    t.discard_segments();
    t.recv(data(1, 10));
    t.expect(ack(11).sack(&[(1, 11)]));
}

/// RFC 2883 §4: "reports ... exactly once".
#[test]
fn a_duplicate_is_reported_once() {
    let mut t = Trace::open_sack();
    t.recv(data(1, 10));
    t.recv(data(1, 10));
    t.discard_segments();
    t.recv(data(31, 10));
    t.expect(ack(11).sack(&[(31, 41)]));
    t.send_pattern(1);
    t.expect(data(1, 1).sack(&[(31, 41)]));
}

/// RFC 2883 §4.1.2: the duplicate comes before blocks of bytes out of order.
#[test]
fn a_duplicate_is_reported_before_other_blocks() {
    let mut t = Trace::open_sack();
    t.recv(data(1, 10));
    t.recv(data(21, 10));
    t.discard_segments();
    t.recv(data(1, 10));
    t.expect(ack(11).sack(&[(1, 11), (21, 31)]));
}

/// RFC 2883 §4.2: only a part of the segment is a duplicate.
#[test]
fn a_partial_duplicate_is_reported() {
    let mut t = Trace::open_sack();
    t.recv(data(1, 10));
    t.discard_segments();
    t.recv(data(6, 10));
    t.expect(ack(16).sack(&[(6, 11)]));
}

/// RFC 2883 §4.2.1: a part of the segment arrived before, out of order. The first copy is kept.
#[test]
fn a_partial_duplicate_of_bytes_out_of_order_is_reported() {
    let mut t = Trace::open_sack();
    t.recv(data(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.recv(bytes(1, vec![b'x'; 2000]));
    t.expect(ack(2001).sack(&[(1001, 2001)]));
    t.expect_nothing_sent();
    assert!(
        t.peer().received[..1000].iter().all(|byte| *byte == b'x'),
        "the bytes out of order should be delivered"
    );
    assert_eq!(t.peer().received[1000..], pattern(1001, 1000));
}

/// RFC 2883 §4.2.2: the duplicate, then the block that holds it, then the others.
#[test]
fn a_duplicate_above_the_acknowledgement_is_reported_with_its_block() {
    let mut t = Trace::open_sack();
    t.recv(data(1001, 1000));
    t.recv(data(3001, 1000));
    t.discard_segments();
    t.recv(data(1501, 1000));
    t.expect(ack(1).sack(&[(1501, 2001), (1001, 2501), (3001, 4001)]));
    t.expect_nothing_sent();
}

/// RFC 2883 §4: each duplicate of a turn is reported. A peer undoes a reduction of its congestion window only
/// when all its needless retransmissions were reported.
#[test]
fn all_duplicates_of_one_turn_are_reported() {
    let mut t = Trace::open_sack();
    t.recv(data(1, 5000));
    t.discard_segments();
    t.recv_all([data(1, 1000), data(2001, 1000), data(3001, 1000)]);
    t.expect(ack(5001).sack(&[(1, 1001)]));
    t.expect(ack(5001).sack(&[(2001, 4001)])); // adjacent ranges are merged
    t.expect_nothing_sent();
    t.recv_all((0..10).map(|at| data(1 + 500 * at, 100)));
    let reports = t.peer().segments.drain(..).count();
    assert_eq!(reports, 4, "as many duplicates should be reported as ranges may wait for their report");
}

/// RFC 6675 §5: "Upon the receipt of any ACK containing SACK information, the scoreboard MUST be updated".
#[test]
fn sack_blocks_of_an_overtaken_acknowledgement_count() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).sack_ok(true));
    t.send_pattern(10_000);
    t.discard();
    t.advance(ms(10));
    t.recv(ack(2001).window(60_000));
    t.expect_nothing_sent();
    t.recv(ack(1001).window(1).sack(&[(4001, 7001)]));
    t.expect(data(2001, 1000));
    t.expect(data(3001, 1000));
}

/// RFC 8985 §6.2: when three later segments have arrived on a path without reordering, all missing segments
/// before them are lost, in each hole.
#[test]
fn every_hole_is_retransmitted_before_new_bytes() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).sack_ok(true));
    t.send_pattern(30_000);
    t.discard();
    t.advance(ms(10));
    t.recv(ack(5001).sack(&[(6001, 8001), (9001, 10_001)]));
    t.expect(data(5001, 1000));
    t.expect(data(8001, 1000));
    t.expect(data(10_001, 1000));
    assert_eq!(t.counters().retransmitted, 2);
}

/// RFC 9293 §3.9.1.2: only segments with bytes have PSH.
#[test]
fn a_fin_without_bytes_has_no_psh() {
    let mut t = Trace::open_sack();
    t.send_pattern(1000);
    t.advance(ms(10));
    t.recv(ack(1001));
    t.discard();
    t.finish();
    t.expect(fin(1001).push(false));
    t.until_sent();
    t.expect(fin(1001).push(false));
}

/// RFC 2883 §4: a duplicate out of order is reported, then the block that holds it.
#[test]
fn a_duplicate_out_of_order_is_reported_with_its_block() {
    let mut t = Trace::open_sack();
    t.recv(data(11, 10));
    t.recv(data(21, 10));
    t.discard_segments();
    t.recv(data(11, 10));
    let blocks = t.next().sack.expect("the SACK option");
    assert!(
        blocks.last() == Some(&(11, 31)),
        "the duplicate should be reported within its block: {blocks:?}"
    );
}

/// RFC 6675: only missing segments are retransmitted.
#[test]
fn sacked_segments_are_not_retransmitted() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).sack_ok(true));
    t.send_pattern(10_000);
    t.peer().segments.clear();
    t.advance(ms(10));
    for end in [5001, 6001, 7001, 8001] {
        t.recv(ack(2001).sack(&[(4001, end)]));
    }
    t.expect(data(2001, 1000));
    t.advance(ms(5));
    t.recv(ack(2001).sack(&[(4001, 9001)]));
    let seg = t.next();
    assert_eq!(seg.seq, Some(3001), "the next missing segment should be retransmitted: {seg}");
}

/// Invalid blocks: reversed, empty, of bytes never sent, or below the first byte.
#[test]
fn invalid_blocks_are_ignored() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).sack_ok(true));
    t.send_pattern(5000);
    t.peer().segments.clear();
    for block in [(3001, 2001), (3001, 3001), (2001, 900_000), (800_000, 900_000), (-5, -1), (-1000, 2001)] {
        t.recv(ack(1).sack(&[block, block]));
        t.expect_nothing_sent();
    }
    t.recv(ack(5001));
    t.expect_nothing_sent_later();
}

/// RFC 2018 §8: a peer may discard bytes that it has reported, so that after a timeout all are retransmitted.
#[test]
fn sacked_bytes_that_the_peer_discarded_are_retransmitted() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).sack_ok(true));
    t.send_pattern(3000);
    t.peer().segments.clear();
    t.advance(ms(10));
    t.recv(ack(1).sack(&[(1001, 3001)]));
    t.peer().segments.clear();
    t.advance(secs(2));
    t.peer().segments.clear();
    for end in [1001, 2001, 3001] {
        t.recv(ack(end - 1000));
        t.advance(secs(200));
        let sent: Vec<_> = t.peer().segments.drain(..).map(|seg| seg.seq).collect();
        assert!(sent.contains(&Some(end - 1000)), "the discarded bytes should be retransmitted: {sent:?}");
    }
}

/// RFC 2018 §2: a peer that has not permitted SACK gets no blocks, and its blocks are ignored.
#[test]
fn sack_blocks_are_ignored_if_sack_was_not_permitted() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(5000);
    t.peer().segments.clear();
    t.recv(ack(1).sack(&[(1001, 5001)]));
    t.expect_nothing_sent();
    t.until_sent();
    t.expect(data(1, 1000));
}

/// RFC 8985 §7. Linux acknowledges a single segment after 40 ms; with PSH, when its program has read it.
#[test]
fn a_tail_loss_probe_of_new_bytes_has_psh() {
    let mut t = Trace::open_sack();
    t.send_pattern(1000);
    t.advance(ms(10));
    t.recv(ack(1001));
    t.discard();
    t.send_pattern(50_000);
    let last = t.take_last();
    assert_eq!(last.is_pushed, Some(false), "PSH should be off, because further bytes are queued");
    assert!(t.until_sent() < ms(30), "the probe should follow within 30 ms");
    let probe = t.next();
    assert_eq!((probe.seq, probe.is_pushed), (last.seq.map(|seq| seq + 1460), Some(true)));
}
