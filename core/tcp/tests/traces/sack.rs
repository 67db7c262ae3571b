//! Selective acknowledgements, sent and received (RFC 2018, RFC 2883, RFC 6675).

use crate::trace::*;

/// RFC 2018 §3: blocks report the bytes between holes.
#[test]
fn what_came_out_of_order_is_told() {
    let mut t = Trace::open_sack();
    t.recv(many(11, 10));
    t.expect(ack(1).sack(&[(11, 21)]));
    t.recv(many(21, 10));
    t.expect(ack(1).sack(&[(11, 31)]));
    t.recv(many(1, 10));
    t.expect(ack(31).sack(&[]));
}

/// RFC 2018 §4: "the first SACK block MUST specify the contiguous block of data containing the segment which triggered
/// this ACK".
#[test]
fn the_latest_block_is_the_first() {
    let mut t = Trace::open_sack();
    for (seq, blocks) in [
        (11, &[(11, 16)][..]),
        (31, &[(31, 36), (11, 16)]),
        (51, &[(51, 56), (31, 36), (11, 16)]),
        (16, &[(11, 21), (51, 56), (31, 36)]),
        (71, &[(71, 76), (11, 21), (51, 56), (31, 36)]),
    ] {
        t.recv(many(seq, 5));
        t.expect(ack(1).sack(blocks));
    }
}

/// RFC 2018 §3: 40 bytes of options have room for four blocks; for three beside timestamps.
#[test]
fn there_is_room_for_so_many_blocks() {
    for (mut t, most) in [(Trace::open_sack(), 4), (Trace::open_stamps(), 3)] {
        for at in 1..8 {
            t.recv(many(1 + 20 * at, 5));
        }
        let blocks = t.last().sack.expect("blocks");
        let wanted: Vec<_> = (1..8).rev().take(most).map(|at| (1 + 20 * at, 6 + 20 * at)).collect();
        assert_eq!(blocks, wanted);
    }
}

/// RFC 2018 §4: in every acknowledgement, also in segments with bytes, which are smaller by the option.
#[test]
fn bytes_of_ours_tell_of_blocks() {
    let mut t = Trace::open_sack();
    t.recv(many(11, 10));
    t.last();
    t.say(3000);
    t.expect(many(1, 1448).sack(&[(11, 21)]));
    t.expect(many(1449, 1448).sack(&[(11, 21)]));
    t.expect(many(2897, 104).sack(&[(11, 21)]));
}

/// RFC 2018 §4: blocks below the acknowledgement are not reported.
#[test]
fn a_hole_that_is_filled_ends_its_block() {
    let mut t = Trace::open_sack();
    t.recv(many(11, 10));
    t.recv(many(31, 10));
    t.last();
    t.recv(many(1, 10));
    t.expect(ack(21).sack(&[(31, 41)]));
    t.recv(many(21, 10));
    t.expect(ack(41).sack(&[]));
}

/// Bytes in order that are not granted are acknowledged, not reported by SACK.
#[test]
fn what_is_not_granted_is_not_told() {
    let mut t = Trace::new(|_| {});
    t.establish(syn().sack_ok(true));
    t.recv(many(1, 100));
    t.expect(ack(101).sack(&[]));
    t.recv(many(201, 100));
    t.expect(ack(101).sack(&[(201, 301)]));
}

/// RFC 2883 §4.1.1: a full duplicate below the acknowledgement.
#[test]
fn a_duplicate_is_told_first() {
    let mut t = Trace::open_sack();
    t.recv(many(1, 10));
    t.last();
    t.recv(many(1, 10));
    t.expect(ack(11).sack(&[(1, 11)]));
}

/// RFC 2883 §4: "reports ... exactly once".
#[test]
fn a_duplicate_is_told_once() {
    let mut t = Trace::open_sack();
    t.recv(many(1, 10));
    t.recv(many(1, 10));
    t.last();
    t.recv(many(31, 10));
    t.expect(ack(11).sack(&[(31, 41)]));
    t.say(1);
    t.expect(many(1, 1).sack(&[(31, 41)]));
}

/// RFC 2883 §4.1.2: beside bytes out of order.
#[test]
fn a_duplicate_is_told_before_other_blocks() {
    let mut t = Trace::open_sack();
    t.recv(many(1, 10));
    t.recv(many(21, 10));
    t.last();
    t.recv(many(1, 10));
    t.expect(ack(11).sack(&[(1, 11), (21, 31)]));
}

/// RFC 2883 §4.2: a part of a segment.
#[test]
fn a_part_that_came_before_is_told() {
    let mut t = Trace::open_sack();
    t.recv(many(1, 10));
    t.last();
    t.recv(many(6, 10));
    t.expect(ack(16).sack(&[(6, 11)]));
}

/// RFC 2883 §4.2.1: a part that arrived before, out of order. The first copy is kept.
#[test]
fn a_part_that_came_before_out_of_order_is_told() {
    let mut t = Trace::open_sack();
    t.recv(many(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.recv(bytes(1, vec![b'x'; 2000]));
    t.expect(ack(2001).sack(&[(1001, 2001)]));
    t.quiet();
    assert!(t.peer().heard[..1000].iter().all(|byte| *byte == b'x'));
    assert_eq!(t.peer().heard[1000..], pattern(1001, 1000));
}

/// RFC 2883 §4.2.2: the duplicate, then the block that holds it, then the others.
#[test]
fn a_part_above_the_acknowledgement_is_told_with_its_block() {
    let mut t = Trace::open_sack();
    t.recv(many(1001, 1000));
    t.recv(many(3001, 1000));
    t.last();
    t.recv(many(1501, 1000));
    t.expect(ack(1).sack(&[(1501, 2001), (1001, 2501), (3001, 4001)]));
    t.quiet();
}

/// RFC 2883 §4: each duplicate is reported, also those of one turn: a peer that counts its needless retransmissions undoes a
/// reduction when all of them were reported.
#[test]
fn duplicates_of_one_turn_are_all_told() {
    let mut t = Trace::open_sack();
    t.recv(many(1, 5000));
    t.last();
    t.recv_all([many(1, 1000), many(2001, 1000), many(3001, 1000)]);
    t.expect(ack(5001).sack(&[(1, 1001)]));
    t.expect(ack(5001).sack(&[(2001, 4001)])); // neighbours are one range
    t.quiet();
    t.recv_all((0..10).map(|at| many(1 + 500 * at, 100)));
    let told = t.peer().segments.drain(..).count();
    assert_eq!(told, 4, "a bound");
}

/// RFC 6675 §5: "Upon the receipt of any ACK containing SACK information, the scoreboard MUST be updated".
#[test]
fn blocks_of_an_acknowledgement_that_was_overtaken_count() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).sack_ok(true));
    t.say(10_000);
    t.forget();
    t.pass(ms(10));
    t.recv(ack(2001).window(60_000));
    t.quiet();
    t.recv(ack(1001).window(1).sack(&[(4001, 7001)]));
    t.expect(many(2001, 1000));
    t.expect(many(3001, 1000));
}

/// RFC 8985 §6.2: three segments that were sent later have arrived, on a path without reordering: everything missing before
/// them is lost, in each hole.
#[test]
fn every_hole_is_filled_before_anything_new_is_sent() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).sack_ok(true));
    t.say(30_000);
    t.forget();
    t.pass(ms(10));
    t.recv(ack(5001).sack(&[(6001, 8001), (9001, 10_001)]));
    t.expect(many(5001, 1000));
    t.expect(many(8001, 1000));
    t.expect(many(10_001, 1000));
}

/// RFC 9293 §3.9.1.2: PSH is for bytes.
#[test]
fn a_probe_without_bytes_is_not_pushed() {
    let mut t = Trace::open_sack();
    t.say(1000);
    t.pass(ms(10));
    t.recv(ack(1001));
    t.forget();
    t.finish();
    t.expect(fin(1001).push(false));
    t.until_sent();
    t.expect(fin(1001).push(false));
}

/// RFC 2883 §4: a duplicate out of order is reported, then the block that holds it.
#[test]
fn what_came_twice_out_of_order_is_told_with_its_block() {
    let mut t = Trace::open_sack();
    t.recv(many(11, 10));
    t.recv(many(21, 10));
    t.last();
    t.recv(many(11, 10));
    let blocks = t.next().sack.expect("blocks");
    assert!(blocks.last() == Some(&(11, 31)), "{blocks:?}");
}

/// RFC 6675: only missing segments are retransmitted.
#[test]
fn what_the_peer_has_is_not_sent_again() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).sack_ok(true));
    t.say(10_000);
    t.peer().segments.clear();
    t.pass(ms(10));
    for end in [5001, 6001, 7001, 8001] {
        t.recv(ack(2001).sack(&[(4001, end)]));
    }
    t.expect(many(2001, 1000));
    t.pass(ms(5));
    t.recv(ack(2001).sack(&[(4001, 9001)]));
    let seg = t.next();
    assert_eq!(seg.seq, Some(3001), "{seg}");
}

/// Invalid blocks: reversed, empty, never sent, before everything.
#[test]
fn nonsense_is_ignored() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).sack_ok(true));
    t.say(5000);
    t.peer().segments.clear();
    for nonsense in [(3001, 2001), (3001, 3001), (2001, 900_000), (800_000, 900_000), (-5, -1), (-1000, 2001)]
    {
        t.recv(ack(1).sack(&[nonsense, nonsense]));
        t.quiet();
    }
    t.recv(ack(5001));
    t.nothing_sent_later();
}

/// RFC 2018 §8: a peer may discard bytes that it has reported: after a timeout everything is retransmitted.
#[test]
fn a_peer_may_take_its_word_back() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).sack_ok(true));
    t.say(3000);
    t.peer().segments.clear();
    t.pass(ms(10));
    t.recv(ack(1).sack(&[(1001, 3001)]));
    t.peer().segments.clear();
    t.pass(secs(2));
    t.peer().segments.clear();
    for end in [1001, 2001, 3001] {
        t.recv(ack(end - 1000));
        t.pass(secs(200));
        let sent: Vec<_> = t.peer().segments.drain(..).map(|seg| seg.seq).collect();
        assert!(sent.contains(&Some(end - 1000)), "{sent:?}");
    }
}

/// RFC 2018 §2: a peer that has not permitted SACK gets no blocks, and its blocks are ignored.
#[test]
fn blocks_of_a_peer_that_never_permitted_them_do_not_count() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(5000);
    t.peer().segments.clear();
    t.recv(ack(1).sack(&[(1001, 5001)]));
    t.quiet();
    t.until_sent();
    t.expect(many(1, 1000));
}

/// RFC 8985 §7. Linux acknowledges a pushed segment once its program has read it, and any other single segment after 40 ms.
#[test]
fn a_tail_loss_probe_of_new_bytes_is_pushed() {
    let mut t = Trace::open_sack();
    t.say(1000);
    t.pass(ms(10));
    t.recv(ack(1001));
    t.forget();
    t.say(50_000);
    let last = t.last();
    assert_eq!(last.is_pushed, Some(false), "more is queued");
    assert!(t.until_sent() < ms(30));
    let probe = t.next();
    assert_eq!((probe.seq, probe.is_pushed), (last.seq.map(|seq| seq + 1460), Some(true)));
}
