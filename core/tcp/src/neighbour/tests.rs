//! Tests of requests, learning and removal, then random sequences of operations.

use alloc::vec;

use proptest::prelude::*;

use super::*;

const ONE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const TWO: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn ip(host: u16) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 | u32::from(host))
}

fn questions(all: &mut Neighbours, ms: u64) -> Vec<Ipv4Addr> {
    core::iter::from_fn(|| all.poll_question(at(ms))).collect()
}

#[test]
fn who_is_not_known_is_asked_for() {
    let mut all = Neighbours::new();
    assert_eq!((all.lookup(at(5), ip(1)), all.poll_timeout()), (None, Some(at(5))));
    assert_eq!(questions(&mut all, 5), [ip(1)]);
    assert_eq!((all.lookup(at(5), ip(1)), all.poll_timeout()), (None, Some(at(1005))));
    all.learned(at(6), ip(1), ONE, Heard::Reply);
    assert_eq!(all.lookup(at(7), ip(1)), Some(ONE));
    assert_eq!((questions(&mut all, 1005), all.poll_timeout()), (vec![], None));
}

#[test]
fn one_question_a_second_and_three_in_all() {
    let mut all = Neighbours::new();
    let mut asked = vec![];
    for ms in (0..3_500).step_by(10) {
        if ms < 2_990 {
            all.lookup(at(ms), ip(1));
        }
        asked.extend(questions(&mut all, ms).iter().map(|_| ms));
    }
    assert_eq!(asked, [0, 1_000, 2_000]);
    assert_eq!((all.entries.len(), all.poll_timeout()), (0, None), "given up");
    all.lookup(at(3_500), ip(1));
    assert_eq!(questions(&mut all, 3_500), [ip(1)], "asked for again when it is wanted again");
}

#[test]
fn nobody_teaches_who_was_not_asked() {
    let mut all = Neighbours::new();
    all.learned(at(0), ip(1), ONE, Heard::Reply);
    assert!(all.entries.is_empty(), "nobody has asked");
    all.lookup(at(0), ip(1));
    all.learned(at(0), ip(1), ONE, Heard::Reply);
    assert_eq!(all.lookup(at(0), ip(1)), None, "the question has not left yet");
    questions(&mut all, 0);
    all.learned(at(1), ip(1), ONE, Heard::Reply);
    all.learned(at(2), ip(1), TWO, Heard::Reply);
    assert_eq!(all.lookup(at(3), ip(1)), Some(ONE), "the first answer counts");
}

#[test]
fn whoever_asks_for_us_is_learned_and_may_move() {
    let mut all = Neighbours::new();
    all.learned(at(0), ip(1), ONE, Heard::Question);
    assert_eq!((all.lookup(at(1), ip(1)), questions(&mut all, 1)), (Some(ONE), vec![]));
    all.learned(at(2), ip(1), TWO, Heard::Question);
    assert_eq!(all.lookup(at(3), ip(1)), Some(TWO));
}

#[test]
fn what_was_learned_long_ago_is_used_and_asked_for_again() {
    let mut all = Neighbours::new();
    all.learned(at(0), ip(1), ONE, Heard::Question);
    assert_eq!((all.lookup(at(29_999), ip(1)), all.poll_timeout().is_some()), (Some(ONE), true));
    assert!(questions(&mut all, 29_999).is_empty());
    assert_eq!(all.poll_timeout(), None, "nobody is asked for that nobody wants");
    assert_eq!(all.lookup(at(40_000), ip(1)), Some(ONE));
    assert_eq!(questions(&mut all, 40_000), [ip(1)]);
    all.learned(at(40_001), ip(1), TWO, Heard::Reply);
    assert_eq!(all.lookup(at(40_002), ip(1)), Some(TWO), "it has moved");
}

#[test]
fn who_does_not_answer_any_more_is_forgotten() {
    let mut all = Neighbours::new();
    all.learned(at(0), ip(1), ONE, Heard::Question);
    for ms in [30_000, 31_000, 32_000] {
        assert_eq!(all.lookup(at(ms), ip(1)), Some(ONE));
        assert_eq!(questions(&mut all, ms), [ip(1)]);
    }
    assert!(questions(&mut all, 33_000).is_empty());
    assert_eq!(all.lookup(at(33_000), ip(1)), None);
}

#[test]
fn what_is_no_hosts_address_is_neither_asked_for_nor_learned() {
    let mut all = Neighbours::new();
    for none in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(224, 0, 0, 1)]
    {
        assert_eq!(all.lookup(at(0), none), None);
        all.learned(at(0), none, ONE, Heard::Question);
    }
    for none in [Mac::BROADCAST, Mac([1, 0, 0, 0, 0, 1]), Mac::ZERO] {
        all.learned(at(0), ip(1), none, Heard::Question);
    }
    assert_eq!((all.entries.len(), questions(&mut all, 0)), (0, vec![]));
}

#[test]
fn the_table_is_bounded_and_who_is_used_stays() {
    let mut all = Neighbours::new();
    all.learned(at(0), ip(1), ONE, Heard::Question);
    for host in 2..2_000 {
        all.learned(at(u64::from(host)), ip(host), TWO, Heard::Question);
        assert_eq!(all.lookup(at(u64::from(host)), ip(1)), Some(ONE));
    }
    assert_eq!(all.entries.len(), NEIGHBOURS_MAX);
}

#[derive(Clone, Debug)]
enum Step {
    Lookup(u16),
    Learned(u16, bool),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..400_u16).prop_map(Step::Lookup),
        2 => (0..400_u16, any::<bool>()).prop_map(|(host, asked)| Step::Learned(host, asked)),
        2 => (0..20_000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_all_is_bounded_and_nobody_is_asked_too_often(
        steps in prop::collection::vec(step(), 1..600)
    ) {
        let (mut all, mut ms) = (Neighbours::new(), 0);
        let mut asked = alloc::collections::BTreeMap::<Ipv4Addr, u64>::new();
        for step in steps {
            match step {
                Step::Lookup(host) => prop_assert!(all.lookup(at(ms), ip(host)).is_none_or(|mac| mac == ONE)),
                Step::Learned(host, is_reply) => {
                    all.learned(at(ms), ip(host), ONE, if is_reply { Heard::Reply } else { Heard::Question });
                }
                Step::Pass(passed) => {
                    // Like a driver: wakes at each `poll_timeout`.
                    let until = ms + passed;
                    while let Some(next) = all.poll_timeout().filter(|next| *next <= at(until)) {
                        ms = ms.max(next.as_nanos() / 1_000_000);
                        for ip in questions(&mut all, ms) {
                            prop_assert!(asked.insert(ip, ms).is_none_or(|before| ms >= before + 1_000));
                        }
                        prop_assert!(all.poll_timeout().is_none_or(|next| next > at(ms)), "it gets on");
                    }
                    ms = until;
                }
            }
            prop_assert!(all.entries.len() <= NEIGHBOURS_MAX);
            prop_assert!(all.entries.is_sorted_by_key(|entry| entry.ip));
        }
    }
}
