//! Tests of single rules, then random operations compared with a map of single bytes.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// A limit that no test reaches.
const UNLIMITED: usize = 1 << 20;

fn blocks(held: &Reassembly) -> Vec<(Seq, Seq)> {
    let mut out = [(0, 0); 4];
    let count = held.blocks(&mut out);
    out[..count].to_vec()
}

fn new(bytes: usize) -> Inserted {
    Inserted { new: bytes, ..Inserted::default() }
}

#[test]
fn contiguous_bytes_are_taken_at_once() {
    let mut held = Reassembly::new();
    assert_eq!(held.insert(105, b"fgh", UNLIMITED), new(3));
    assert_eq!(held.insert(110, b"klm", UNLIMITED), new(3));
    assert_eq!(
        (held.take(100, 999), held.bytes(), held.ranges()),
        (None, 6, 2),
        "six bytes of two ranges should be held"
    );
    assert_eq!(held.insert(108, b"ij", UNLIMITED), new(2));
    assert_eq!((held.ranges(), held.until()), (1, Some(113)));
    assert_eq!([104, 105, 112, 113].map(|from| held.contiguous_until(from)), [104, 113, 113, 113]);
    assert_eq!(held.take(105, 999), Some(b"fghijklm".to_vec()));
    assert!(held.is_empty(), "no byte should be held");
}

#[test]
fn bytes_beyond_the_taken_range_are_kept() {
    let mut held = Reassembly::new();
    held.insert(105, b"fghij", UNLIMITED);
    assert_eq!(held.take(105, 105), None);
    assert_eq!(held.take(105, 107), Some(b"fg".to_vec()));
    assert_eq!(held.take(107, 110), Some(b"hij".to_vec()));
}

#[test]
fn the_first_copy_is_kept_and_the_duplicate_reported() {
    let mut held = Reassembly::new();
    held.insert(105, b"FGH", UNLIMITED);
    let inserted = held.insert(103, b"defghij", UNLIMITED);
    assert_eq!(inserted, Inserted { new: 4, duplicate: Some((105, 108)), refused: false });
    assert_eq!(held.insert(104, b"xyz", UNLIMITED), Inserted { duplicate: Some((104, 107)), ..new(0) });
    assert_eq!(held.take(103, 999), Some(b"deFGHij".to_vec()));
}

#[test]
fn a_segment_over_several_ranges_fills_each_gap_and_reports_the_first_duplicate() {
    let mut held = Reassembly::new();
    held.insert(12, b"C", UNLIMITED);
    held.insert(14, b"E", UNLIMITED);
    held.insert(18, b"I", UNLIMITED);
    let inserted = held.insert(11, b"bcdefg", UNLIMITED);
    assert_eq!(inserted, Inserted { new: 4, duplicate: Some((12, 13)), refused: false });
    assert_eq!((held.ranges(), blocks(&held)), (2, vec![(11, 17), (18, 19)]));
    assert_eq!(held.take(11, 99), Some(b"bCdEfg".to_vec()));
}

#[test]
fn blocks_are_in_order_of_the_latest_change() {
    let mut held = Reassembly::new();
    for from in [30, 10, 50, 20, 40] {
        held.insert(from, b"ab", UNLIMITED);
    }
    assert_eq!(blocks(&held), [(40, 42), (20, 22), (50, 52), (10, 12)]);
    held.insert(10, b"a", UNLIMITED);
    assert_eq!(
        blocks(&held)[0],
        (10, 12),
        "the block of a duplicate should come first as well (RFC 2883 §4)"
    );
    assert_eq!(held.blocks(&mut []), 0);
}

#[test]
fn bytes_received_in_another_segment_are_dropped() {
    let mut held = Reassembly::new();
    held.insert(10, b"abc", UNLIMITED);
    held.insert(20, b"defg", UNLIMITED);
    held.drop_before(22);
    assert_eq!((held.bytes(), blocks(&held)), (2, vec![(22, 24)]));
    assert_eq!(held.take(23, 99), Some(b"g".to_vec()), "earlier bytes should be dropped");
    assert!(held.is_empty(), "no byte should be held");
}

#[test]
fn a_range_beyond_the_limit_is_refused() {
    let mut held = Reassembly::new();
    let far = RANGES_MAX as u64 * 10;
    for at in 1..=RANGES_MAX as u64 {
        held.insert(at * 10, b"x", UNLIMITED);
    }
    assert!(held.insert(far + 10, b"x", UNLIMITED).refused, "a range beyond the limit should be refused");
    assert_eq!(held.insert(far + 1, b"x", UNLIMITED), new(1), "bytes that extend a range should be accepted");
    assert!(
        held.insert(15, b"x", UNLIMITED).refused,
        "nearer bytes should not displace ranges that SACK has reported"
    );
    assert_eq!(
        (held.ranges(), held.until()),
        (RANGES_MAX, Some(far + 2)),
        "the ranges within the limit should stay"
    );
    assert_eq!(
        held.insert(11, b"123456789", UNLIMITED),
        new(9),
        "a segment that merges two ranges should be accepted"
    );
    assert_eq!(held.insert(15 + far, b"x", UNLIMITED), new(1), "the merge should make room for a range");
}

#[test]
fn bytes_beyond_the_limit_are_refused() {
    let mut held = Reassembly::new();
    held.insert(20, b"0123456789", 10);
    assert!(held.insert(30, b"a", 10).refused, "bytes beyond the limit should be refused");
    assert!(held.insert(28, b"zzz", 10).refused, "a segment should be refused as a whole");
    assert!(
        held.insert(10, b"abc", 10).refused,
        "nearer bytes should not displace ranges that SACK has reported"
    );
    assert_eq!(
        held.insert(20, b"zz", 10),
        Inserted { duplicate: Some((20, 22)), ..new(0) },
        "a segment without new bytes should be accepted"
    );
    assert_eq!((held.bytes(), blocks(&held)), (10, vec![(20, 30)]), "the bytes within the limit should stay");
}

#[test]
fn an_empty_segment_is_ignored_and_an_overflowing_one_refused() {
    let mut held = Reassembly::new();
    assert_eq!(held.insert(10, b"", UNLIMITED), new(0));
    assert!(held.insert(u64::MAX, b"a", UNLIMITED).refused, "an overflowing segment should be refused");
    assert!(held.is_empty(), "no byte should be held");
}

#[test]
fn an_import_restores_bytes_and_their_order() {
    let mut held = Reassembly::new();
    for from in [30, 10, 50, 49] {
        held.insert(from, b"ab", UNLIMITED);
    }
    let copy = Reassembly::import(5, held.clone().into_pieces(), UNLIMITED).unwrap();
    assert_eq!((blocks(&copy), copy.bytes()), (blocks(&held), 7), "the import should have the same ranges");
    assert!(
        Reassembly::import(10, held.clone().into_pieces(), UNLIMITED).is_none(),
        "a piece that is next in order should be refused"
    );
    assert!(
        Reassembly::import(5, held.clone().into_pieces(), 6).is_none(),
        "seven bytes should exceed the limit of six"
    );
    let twice = [(10, &b"ab"[..]), (11, b"b")];
    assert!(Reassembly::import(5, twice, UNLIMITED).is_none(), "overlapping pieces should be refused");
}

#[test]
fn a_megabyte_in_reverse_order_is_reassembled() {
    let mut held = Reassembly::new();
    for at in (1..=1024_u64).rev() {
        assert_eq!(held.insert(at * 1024, &[at as u8; 1024], 1 << 20), new(1024)); // the low bits of `at`
    }
    let bytes = held.take(1024, u64::MAX).unwrap();
    assert!(
        bytes.chunks(1024).zip(1_u64..).all(|(chunk, at)| chunk == [at as u8; 1024]),
        "each chunk should be in its place"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Seq, usize),
    Take(Seq),
    DropBefore(u64),
    ExportAndImport,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0_u64..400, 0_usize..40).prop_map(|(from, length)| Step::Insert(from, length)),
        2 => (0_u64..60).prop_map(Step::Take),
        1 => (0_u64..60).prop_map(Step::DropBefore),
        1 => Just(Step::ExportAndImport),
    ]
}

/// The contiguous ranges of a byte map.
fn ranges(model: &BTreeMap<Seq, u8>) -> Vec<(Seq, Seq)> {
    let mut ranges = Vec::<(Seq, Seq)>::new();
    for seq in model.keys() {
        match ranges.last_mut() {
            Some(last) if last.1 == *seq => last.1 += 1,
            _ => ranges.push((*seq, seq + 1)),
        }
    }
    ranges
}

proptest! {
    #[test]
    fn reassembly_agrees_with_a_map_of_bytes(
        steps in prop::collection::vec(step(), 1..120), bytes_max in prop_oneof![Just(UNLIMITED), 50_usize..300]
    ) {
        let (mut held, mut model, mut next) = (Reassembly::new(), BTreeMap::<Seq, u8>::new(), 1_000_u64);
        for (count, step) in steps.into_iter().enumerate() {
            let tag = count as u8; // differs for each step
            match step {
                Step::Insert(ahead, length) => {
                    let from = next + 1 + ahead;
                    let segment: Vec<u8> = (0..length).map(|at| tag.wrapping_add(at as u8)).collect();
                    let before = model.clone();
                    let inserted = held.insert(from, &segment, bytes_max);
                    let is_held = |seq: &Seq| before.contains_key(seq);
                    let until = from + length as u64;
                    let first = (from..until).find(is_held);
                    let end_of = |first| (first..until).find(|seq| !is_held(seq)).unwrap_or(until);
                    let duplicate = first.map(|first| (first, end_of(first)));
                    prop_assert_eq!(inserted.duplicate, duplicate);
                    if !inserted.refused {
                        for (seq, byte) in (from..).zip(&segment) {
                            model.entry(seq).or_insert(*byte);
                        }
                        prop_assert_eq!(inserted.new, model.len() - before.len());
                        prop_assert_eq!(
                            held.bytes(), model.len(),
                            "accepted bytes should not displace others"
                        );
                    }
                    let touched = ranges(&model).into_iter().find(|range| range.0 <= from && from < range.1);
                    if length > 0 && !inserted.refused {
                        prop_assert_eq!(blocks(&held).first().copied(), touched);
                    }
                }
                Step::Take(length) => {
                    let from = held.clone().into_pieces().map(|(seq, _)| seq).min().unwrap_or(next);
                    let taken = held.take(from, from + length);
                    let expected: Vec<u8> = (from..from + length).map_while(|seq| model.remove(&seq)).collect();
                    prop_assert_eq!(taken.unwrap_or_default(), expected);
                }
                Step::DropBefore(ahead) => {
                    next += ahead;
                    held.drop_before(next + 1);
                    model.retain(|seq, _| *seq > next);
                }
                Step::ExportAndImport => held = Reassembly::import(next, held.clone().into_pieces(), bytes_max).unwrap(),
            }
            let mut held_ranges: Vec<(Seq, Seq)> = vec![(0, 0); RANGES_MAX];
            let count = held.blocks(&mut held_ranges);
            held_ranges.truncate(count);
            held_ranges.sort_unstable();
            prop_assert_eq!(&held_ranges, &ranges(&model));
            prop_assert!(
                held.ranges() <= RANGES_MAX && held.bytes() <= bytes_max,
                "ranges and bytes should be within their bounds"
            );
            for (from, bytes) in held.clone().into_pieces() {
                prop_assert!(
                    (from..).zip(&bytes).all(|(seq, byte)| model.get(&seq) == Some(byte)),
                    "each byte should be the model's"
                );
            }
        }
    }
}
