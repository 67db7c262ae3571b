//! Unauthenticated peers at link ports.

mod harness;

use std::time::Duration;

use harness::{Harness, config};
use spillway_batch::unauthenticated::TOTAL_ANY_AGE_MAX;
use spillway_transport::{Application, Conn, Event, LostReason};

fn count_open(harness: &mut Harness, peers: &[Conn]) -> usize {
    peers.iter().filter(|conn| !harness.transport.record(**conn).aborted).count()
}

/// Rejected peers get the reason and may close by themselves. Those that stay connected are bounded like other
/// unauthenticated peers.
#[test]
fn rejected_peers_that_stay_connected_are_bounded() {
    let mut harness = Harness::new(config());
    let reject_peer = |harness: &mut Harness, port: usize| {
        let conn = harness.client(1, &format!("10.9.0.1:{port}"));
        harness.data(
            conn,
            b"GET / HTTP/1.1\r\nHost: cache.example\r\n\r\nand more bytes, up to the length of a link's first message",
        );
        conn
    };
    let rejected_peers: Vec<Conn> =
        (0..TOTAL_ANY_AGE_MAX + 100).map(|port| reject_peer(&mut harness, 6000 + port)).collect();
    assert_eq!(harness.relay.status().services[0].counters.refused.handshake as usize, rejected_peers.len());
    assert_eq!(count_open(&mut harness, &rejected_peers), TOTAL_ANY_AGE_MAX);
    assert_eq!(harness.relay.clients() as usize, TOTAL_ANY_AGE_MAX);
    assert_eq!(
        harness.relay.status().services[0].counters.refused.evicted,
        0,
        "an eviction of a rejected peer should not count as another rejection"
    );
    // Peers that have closed make room for others.
    for conn in &rejected_peers[100..200] {
        harness.event(*conn, Event::Lost(LostReason::Closed));
    }
    let others: Vec<Conn> = (0..100).map(|port| reject_peer(&mut harness, 9000 + port)).collect();
    assert_eq!(count_open(&mut harness, &others), 100);
    assert_eq!(count_open(&mut harness, &rejected_peers[200..]), TOTAL_ANY_AGE_MAX - 100);
    harness.now = harness.now + Duration::from_secs(60);
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert_eq!(
        (count_open(&mut harness, &others), harness.relay.clients()),
        (0, 0),
        "all rejected peers should be gone"
    );
}
