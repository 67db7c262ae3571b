//! Compares the scoreboard with a map of single bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::scoreboard::{Delivered, Scoreboard};
use super::*;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Byte {
    sacked: bool,
    lost: bool,
    retransmitted: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Send(u64),
    Acknowledge(u64),
    Sack(Vec<(u64, u64)>),
    MarkLost(u32),
    MarkFirstLost,
    Retransmit(u32),
    Timeout,
    Undo,
}

fn step() -> impl Strategy<Value = Step> {
    let block = (0..400_u64, 0..80_u64).prop_map(|(from, length)| (from, from + length));
    prop_oneof![
        4 => (1..60_u64).prop_map(Step::Send),
        3 => (0..100_u64).prop_map(Step::Acknowledge),
        6 => proptest::collection::vec(block, 1..4).prop_map(Step::Sack),
        2 => (1..5_u32).prop_map(Step::MarkLost),
        1 => Just(Step::MarkFirstLost),
        4 => (1..50_u32).prop_map(Step::Retransmit),
        1 => Just(Step::Timeout),
        1 => Just(Step::Undo),
    ]
}

/// The scoreboard's state of each byte.
fn bytes_of(scoreboard: &Scoreboard) -> BTreeMap<Seq, Byte> {
    let mut start = scoreboard.una();
    let mut bytes = BTreeMap::new();
    for segment in &scoreboard.segments {
        let byte = Byte { sacked: segment.sacked, lost: segment.lost, retransmitted: segment.retransmitted };
        bytes.extend((start..segment.end).map(|seq| (seq, byte)));
        start = segment.end;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_scoreboard_agrees_with_a_map_of_bytes(steps in proptest::collection::vec(step(), 1..80)) {
        let mut scoreboard = Scoreboard::new(BASE);
        let mut model: BTreeMap<Seq, Byte> = BTreeMap::new();
        for (index, step) in steps.into_iter().enumerate() {
            let (now, una, nxt) = (ms(index as u64), scoreboard.una(), scoreboard.nxt());
            let mut delivered = Delivered::default();
            let not_sacked = |model: &BTreeMap<Seq, Byte>| model.values().filter(|byte| !byte.sacked).count() as u64;
            let before = not_sacked(&model);
            match step {
                Step::Send(length) => {
                    scoreboard.send(now, nxt + length);
                    model.extend((nxt..nxt + length).map(|seq| (seq, Byte::default())));
                }
                Step::Acknowledge(length) => {
                    let to = nxt.min(una + length);
                    scoreboard.acknowledge(to, 1000, &mut delivered);
                    model = model.split_off(&to);
                    prop_assert_eq!(delivered.bytes, before - not_sacked(&model));
                }
                Step::Sack(blocks) => {
                    let blocks: Vec<_> = blocks.iter().map(|&(from, to)| (una + from, una + to)).collect();
                    scoreboard.sack(&blocks, &mut delivered);
                    for (from, to) in blocks.into_iter().filter(|&(from, to)| from > una && to <= nxt && from < to) {
                        for (_, byte) in model.range_mut(from..to) {
                            *byte = Byte { sacked: true, ..Byte::default() };
                        }
                    }
                    prop_assert_eq!(delivered.bytes, before - not_sacked(&model));
                }
                Step::MarkLost(threshold) => {
                    // The model has no segments: it takes over the marks, after a check of their conditions.
                    let marked = scoreboard.mark_lost(threshold, 10);
                    let mut sacked_above: u64 = model.values().filter(|byte| byte.sacked).count() as u64;
                    let mut newly_lost = 0;
                    for (seq, byte) in bytes_of(&scoreboard) {
                        let expected = model.get_mut(&seq).expect("a byte of the scoreboard in the model");
                        sacked_above -= u64::from(expected.sacked);
                        let is_lost = sacked_above > u64::from(threshold - 1) * 10;
                        prop_assert!(
                            byte.lost || !is_lost || expected.sacked,
                            "a byte with {} SACKed bytes above it should be lost", sacked_above
                        );
                        newly_lost += u64::from(byte.lost && !expected.lost);
                        prop_assert!(
                            byte.lost || !expected.lost,
                            "a lost byte should stay lost"
                        );
                        prop_assert!(
                            !byte.lost || expected.lost || sacked_above > 0,
                            "a byte without SACKed bytes above it should not be marked"
                        );
                        expected.lost = byte.lost;
                    }
                    prop_assert_eq!(marked, newly_lost);
                }
                Step::MarkFirstLost => {
                    scoreboard.mark_first_lost();
                    if let Some(first) = scoreboard.segments.front() {
                        for (_, byte) in model.range_mut(una..first.end).filter(|(_, byte)| !byte.sacked) {
                            byte.lost = true;
                        }
                    }
                }
                Step::Retransmit(mss) => {
                    let mut lost = model.iter().filter(|(_, byte)| byte.lost && !byte.retransmitted);
                    let first_lost = lost.next().map(|(seq, _)| *seq);
                    let next_lost = scoreboard.next_lost(mss);
                    prop_assert_eq!(next_lost.map(|range| range.0), first_lost);
                    if let Some((from, to)) = next_lost {
                        prop_assert!(
                            to - from <= u64::from(mss),
                            "a retransmission should be a segment at most"
                        );
                        scoreboard.resend(now, from, to, true);
                        for (_, byte) in model.range_mut(from..to) {
                            prop_assert!(
                                byte.lost && !byte.retransmitted,
                                "only lost bytes should be retransmitted, and once"
                            );
                            byte.retransmitted = true;
                        }
                    }
                }
                Step::Timeout => {
                    scoreboard.mark_all_lost();
                    model.values_mut().for_each(|byte| *byte = Byte { lost: true, ..Byte::default() });
                }
                Step::Undo => {
                    scoreboard.unmark_all();
                    model.values_mut().for_each(|byte| (byte.lost, byte.retransmitted) = (false, false));
                }
            }
            scoreboard.check();
            prop_assert_eq!(&bytes_of(&scoreboard), &model);
            let pipe = model.values().filter(|byte| !byte.sacked && (!byte.lost || byte.retransmitted)).count();
            prop_assert_eq!(scoreboard.pipe(), pipe as u64);
            prop_assert_eq!(scoreboard.in_flight(), model.len() as u64);
        }
    }
}
