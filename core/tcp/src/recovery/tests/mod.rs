extern crate std;

mod any;
mod path;

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;

use super::*;
use crate::seq::FIRST;

const MSS: u32 = 1000;

fn ms(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn ack(una: u64) -> Ack<'static> {
    Ack {
        una: FIRST + 1 + una,
        sack: &[],
        dsack: None,
        is_duplicate: false,
        has_sack: true,
        rtt: None,
        peer_window: 1 << 20,
    }
}

#[test]
fn a_lost_segment_is_sent_again_after_three_sacks() {
    let mut recovery = Recovery::new(ms(0), &Settings::default(), MSS, true, FIRST);
    recovery.on_sent(ms(0), FIRST + 1);
    recovery.on_ack(ms(10), &ack(0));
    assert_eq!(recovery.cwnd(), 10_000);
    let base = FIRST + 1;
    for segment in 1..=10 {
        recovery.on_sent(ms(10), base + 1000 * segment);
    }
    assert_eq!(recovery.send_room(), 0);
    for last in 2..=4 {
        assert_eq!(recovery.next_retransmission(MSS), None);
        let sack = [(base + 1000, base + 1000 * last)];
        recovery.on_ack(ms(20), &Ack { sack: &sack, is_duplicate: true, ..ack(0) });
    }
    assert_eq!(recovery.phase(), Phase::Recovery);
    assert_eq!(recovery.next_retransmission(MSS), Some((base, base + 1000)));
    recovery.on_retransmitted(ms(20), base, base + 1000);
    assert_eq!(recovery.next_retransmission(MSS), None);
    assert_eq!(recovery.rto(), Duration::from_millis(210));
    recovery.on_ack(ms(30), &ack(10_000));
    assert_eq!((recovery.phase(), recovery.cwnd()), (Phase::Open, 7000));
    assert_eq!(recovery.poll_timeout(), None);
}
