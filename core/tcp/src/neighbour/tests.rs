//! Tests of requests, learning and removal, then random sequences of operations.

use alloc::vec;
use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

const ONE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const TWO: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

/// Addresses of both families.
fn ip(host: u16) -> IpAddr {
    let ipv4 = Ipv4Addr::from(0x0a00_0000 | u32::from(host));
    if host.is_multiple_of(3) { Ipv6Addr::from(0xfd00 << 112 | u128::from(host)).into() } else { ipv4.into() }
}

fn poll_requests(neighbours: &mut Neighbours, ms: u64) -> Vec<IpAddr> {
    core::iter::from_fn(|| neighbours.poll_request(at(ms))).collect()
}

#[test]
fn an_unknown_address_is_requested() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    assert_eq!((neighbours.lookup(at(5), ip(1)), neighbours.poll_timeout()), (None, Some(at(5))));
    assert_eq!(poll_requests(&mut neighbours, 5), [ip(1)]);
    assert_eq!((neighbours.lookup(at(5), ip(1)), neighbours.poll_timeout()), (None, Some(at(1005))));
    neighbours.learn(at(6), ip(1), ONE, LearnedFrom::Reply);
    assert_eq!(neighbours.lookup(at(7), ip(1)), Some(ONE));
    assert_eq!((poll_requests(&mut neighbours, 1005), neighbours.poll_timeout()), (vec![], None));
}

#[test]
fn an_address_is_requested_once_a_second_and_three_times_in_total() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    let mut requests = vec![];
    for ms in (0..3_500).step_by(10) {
        if ms < 2_990 {
            neighbours.lookup(at(ms), ip(1));
        }
        requests.extend(poll_requests(&mut neighbours, ms).iter().map(|_| ms));
    }
    assert_eq!(requests, [0, 1_000, 2_000]);
    assert_eq!(
        (neighbours.entries.len(), neighbours.poll_timeout()),
        (0, None),
        "the entry should be removed after three requests"
    );
    neighbours.lookup(at(3_500), ip(1));
    assert_eq!(
        poll_requests(&mut neighbours, 3_500),
        [ip(1)],
        "the next lookup should request the address again"
    );
}

#[test]
fn replies_without_a_request_are_ignored() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Reply);
    assert!(neighbours.entries.is_empty(), "a reply without a request should not be learned");
    neighbours.lookup(at(0), ip(1));
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Reply);
    assert_eq!(
        neighbours.lookup(at(0), ip(1)),
        None,
        "a reply before the request was sent should not be learned"
    );
    poll_requests(&mut neighbours, 0);
    neighbours.learn(at(1), ip(1), ONE, LearnedFrom::Reply);
    neighbours.learn(at(2), ip(1), TWO, LearnedFrom::Reply);
    assert_eq!(neighbours.lookup(at(3), ip(1)), Some(ONE), "only the first reply should count");
}

#[test]
fn the_sender_of_a_request_is_learned_and_may_change_its_address() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Request);
    assert_eq!((neighbours.lookup(at(1), ip(1)), poll_requests(&mut neighbours, 1)), (Some(ONE), vec![]));
    neighbours.learn(at(2), ip(1), TWO, LearnedFrom::Request);
    assert_eq!(neighbours.lookup(at(3), ip(1)), Some(TWO));
}

#[test]
fn an_old_entry_is_used_and_requested_again() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Request);
    assert_eq!(
        (neighbours.lookup(at(29_999), ip(1)), neighbours.poll_timeout().is_some()),
        (Some(ONE), true)
    );
    assert!(poll_requests(&mut neighbours, 29_999).is_empty(), "no request should be sent before 30 s");
    assert_eq!(neighbours.poll_timeout(), None, "an unused entry should not be requested");
    assert_eq!(neighbours.lookup(at(40_000), ip(1)), Some(ONE));
    assert_eq!(poll_requests(&mut neighbours, 40_000), [ip(1)]);
    neighbours.learn(at(40_001), ip(1), TWO, LearnedFrom::Reply);
    assert_eq!(neighbours.lookup(at(40_002), ip(1)), Some(TWO), "the reply should replace the address");
}

#[test]
fn an_entry_without_replies_is_removed() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Request);
    for ms in [30_000, 31_000, 32_000] {
        assert_eq!(neighbours.lookup(at(ms), ip(1)), Some(ONE));
        assert_eq!(poll_requests(&mut neighbours, ms), [ip(1)]);
    }
    assert!(
        poll_requests(&mut neighbours, 33_000).is_empty(),
        "no request should be sent for a removed entry"
    );
    assert_eq!(neighbours.lookup(at(33_000), ip(1)), None);
}

#[test]
fn addresses_that_are_not_a_hosts_are_neither_requested_nor_learned() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    for address in ["0.0.0.0", "255.255.255.255", "127.0.0.1", "224.0.0.1", "::", "::1", "ff02::1"] {
        let address = address.parse().unwrap();
        assert_eq!(neighbours.lookup(at(0), address), None);
        neighbours.learn(at(0), address, ONE, LearnedFrom::Request);
    }
    for mac in [Mac::BROADCAST, Mac([1, 0, 0, 0, 0, 1]), Mac::ZERO] {
        neighbours.learn(at(0), ip(1), mac, LearnedFrom::Request);
    }
    assert_eq!(
        (neighbours.entries.len(), poll_requests(&mut neighbours, 0)),
        (0, vec![]),
        "no such address should be known or requested"
    );
}

#[test]
fn the_table_is_bounded_and_keeps_the_entry_in_use() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.learn(at(0), ip(1), ONE, LearnedFrom::Request);
    for host in 2..2_000 {
        neighbours.learn(at(u64::from(host)), ip(host), TWO, LearnedFrom::Request);
        assert_eq!(neighbours.lookup(at(u64::from(host)), ip(1)), Some(ONE));
    }
    assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
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
        2 => (0..400_u16, any::<bool>()).prop_map(|(host, requests)| Step::Learned(host, requests)),
        2 => (0..20_000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn the_table_stays_bounded_and_requests_are_a_second_apart(
        steps in prop::collection::vec(step(), 1..600)
    ) {
        let (mut neighbours, mut ms) = (Neighbours::new(NEIGHBOURS_MAX), 0);
        let mut requests = alloc::collections::BTreeMap::<IpAddr, u64>::new();
        for step in steps {
            match step {
                Step::Lookup(host) => prop_assert!(
                    neighbours.lookup(at(ms), ip(host)).is_none_or(|mac| mac == ONE),
                    "a known neighbour should have its address"
                ),
                Step::Learned(host, is_reply) => {
                    let source = if is_reply { LearnedFrom::Reply } else { LearnedFrom::Request };
                    neighbours.learn(at(ms), ip(host), ONE, source);
                }
                Step::Pass(passed) => {
                    // Like a driver, wakes up at each `poll_timeout`.
                    let until = ms + passed;
                    while let Some(next) = neighbours.poll_timeout().filter(|next| *next <= at(until)) {
                        ms = ms.max(next.as_nanos() / 1_000_000);
                        for ip in poll_requests(&mut neighbours, ms) {
                            prop_assert!(
                                requests.insert(ip, ms).is_none_or(|before| ms >= before + 1_000),
                                "requests should be a second apart"
                            );
                        }
                        let next = neighbours.poll_timeout();
                        prop_assert!(
                            next.is_none_or(|next| next > at(ms)),
                            "the wake-up should be in the future"
                        );
                    }
                    ms = until;
                }
            }
            prop_assert!(neighbours.entries.len() <= NEIGHBOURS_MAX, "the table should be within its bound");
            prop_assert!(neighbours.entries.is_sorted_by_key(|entry| entry.ip), "the table should be sorted");
        }
    }
}

#[test]
fn addresses_from_the_driver_are_used_and_withdrawn() {
    let mut neighbours = Neighbours::new(NEIGHBOURS_MAX);
    neighbours.set(at(1), ip(1), Some(ONE));
    assert_eq!(
        neighbours.lookup(at(2), ip(1)),
        None,
        "an address that was not looked up should not be added"
    );
    assert_eq!(poll_requests(&mut neighbours, 2), [ip(1)]);
    neighbours.set(at(3), ip(1), Some(ONE));
    assert_eq!(neighbours.lookup(at(4), ip(1)), Some(ONE));
    neighbours.set(at(5), ip(1), Some(TWO));
    assert_eq!(neighbours.lookup(at(6), ip(1)), Some(TWO));
    neighbours.set(at(7), ip(1), None);
    assert_eq!(
        (neighbours.lookup(at(8), ip(1)), poll_requests(&mut neighbours, 8)),
        (None, vec![]),
        "the withdrawn address should be unknown"
    );
    assert_eq!(
        poll_requests(&mut neighbours, 1002),
        [ip(1)],
        "the address should be requested a second after the first request"
    );
}
