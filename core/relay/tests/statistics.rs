//! Counters and status of a relay.

mod harness;

use core::time::Duration;

use harness::{Harness, Observed, config};
use spillway_batch::{CloseReason, Id, Limits, PolicyKind};
use spillway_relay::{ClientKind, Flow, LinkFailures, Stalls};
use spillway_transport::{Application, Conn, Event, LostReason};

const CLIENT: &str = "10.9.0.1:5000";
const STALL: Duration = Duration::from_millis(3);

fn stalls(harness: &Harness) -> Stalls {
    harness.relay.status().services[0].counters.stalls
}

#[test]
fn stall_without_credit_is_counted_and_timed() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let client = harness.client(0, CLIENT);
    harness.data(client, &[b'x'; 600]);
    assert_eq!(
        stalls(&harness),
        Stalls::default(),
        "a grant that is partly used should not count as a stall"
    );
    harness.data(client, &[b'x'; 400]);
    harness.exchange();
    assert_eq!(stalls(&harness), Stalls { credit: 1, ..Stalls::default() });
    let (clients, _) = harness.relay.client_statuses(None, 1);
    assert_eq!(clients[0].stalled_since, Some(harness.now));
    harness.now = harness.now + STALL;
    harness.server.consumed(Id(1), 700).unwrap();
    harness.exchange();
    let ended = Stalls { credit: 1, credit_ns: 3_000_000, ..Stalls::default() };
    assert_eq!(stalls(&harness), ended);
    harness.now = harness.now + STALL;
    assert_eq!(stalls(&harness), ended, "the duration should not grow after the stall");
    assert_eq!(harness.relay.client_statuses(None, 1).0[0].stalled_since, None);
}

#[test]
fn stall_by_the_link_ends_with_the_client() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.transport.record(harness.link).room = 10;
    for _ in 0..16 {
        harness.data(client, &[b'x'; 4096]);
    }
    assert_eq!(stalls(&harness), Stalls { link: 1, ..Stalls::default() });
    harness.now = harness.now + STALL;
    harness.event(client, Event::Lost(LostReason::Reset));
    assert_eq!(stalls(&harness), Stalls { link: 1, link_ns: 3_000_000, ..Stalls::default() });
}

#[test]
fn counters_survive_the_loss_of_a_link() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.data(client, b"get x\r\n");
    harness.data(client, b"get y\r\n");
    harness.exchange();
    harness.server.compose(Id(1), b"END\r\n");
    harness.exchange();
    let (clients, total) = harness.relay.client_statuses(Some("cache"), 10);
    assert_eq!(
        (clients[0].bytes_in, clients[0].bytes_out, total),
        (14, 5, 1),
        "one client should be listed with its bytes"
    );
    assert_eq!(clients[0].since, harness.now);
    assert_eq!(
        harness.relay.client_statuses(Some("other"), 10).1,
        0,
        "a service that is not configured should have no clients"
    );
    assert_eq!(
        harness.relay.client_statuses(None, 0),
        (vec![], 1),
        "the limit should bound the list and not the total"
    );

    let before = harness.relay.status().services[0].clone();
    assert_eq!(before.counters.requests, Flow { bytes: 14, segments: 2 });
    assert_eq!(before.counters.replies, Flow { bytes: 5, segments: 1 });
    assert_eq!(before.batches.bytes.count(), before.traffic.batches_sent);
    assert_eq!(before.batches.bytes.sum(), before.traffic.bytes_sent);
    assert_eq!(before.batches.messages.sum(), before.traffic.messages_sent);
    harness.event(harness.link, Event::Lost(LostReason::Reset));
    let after = harness.relay.status().services[0].clone();
    assert_eq!(
        (after.batches, after.counters.requests),
        (before.batches, before.counters.requests),
        "the counters of the lost link should stay"
    );
    assert_eq!(after.counters.link_failures, LinkFailures { lost: 1, ..LinkFailures::default() });
    harness.bring_link_up(Limits::default());
    let reopened = harness.relay.status().services[0].clone();
    assert_eq!(reopened.counters.links_up, 2);
    assert!(
        reopened.batches.bytes.count() > after.batches.bytes.count(),
        "the counters should go on after the loss"
    );
}

#[test]
fn broken_connections_are_counted_and_lingering_clients_listed() {
    let mut harness = Harness::new(config());
    let (broken, leaving) = (harness.client(0, CLIENT), harness.client(0, "10.9.0.1:5001"));
    harness.exchange();
    harness.transport.record(leaving).room = 1;
    harness.server.compose(Id(2), b"rest");
    harness.server.close(Id(2), CloseReason::Normal);
    harness.server.close(Id(1), CloseReason::Protocol);
    harness.exchange();
    assert!(harness.transport.record(broken).aborted, "the broken client should be reset");
    assert_eq!(harness.relay.status().services[0].counters.connections_broken, 1);
    let (clients, total) = harness.relay.client_statuses(None, 10);
    assert_eq!(
        (clients[0].kind, clients[0].buffered, total),
        (ClientKind::Lingering, 3, 1),
        "the lingering client should be listed"
    );
    assert_eq!(clients[0].client, "10.9.0.1:5001".parse().unwrap());
}

/// Random turns with requests, replies, and clients that connect and disconnect.
#[test]
fn a_link_sends_one_batch_for_each_delay_at_most() {
    const DELAY: Duration = Duration::from_micros(300);
    const BYTES: usize = 64 * 1024;
    let mut harness = Harness::new(config());
    let mut config = config();
    config.services[0].policy = PolicyKind::Fixed { interval: DELAY, size_bytes: BYTES };
    harness.relay.reconfigure(harness.now, config, Duration::ZERO, &mut harness.transport).unwrap();
    let batches_sent = |harness: &Harness| harness.relay.status().services[0].traffic.batches_sent;
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut clients: Vec<Conn> =
        (0..40).map(|port| harness.client(0, &format!("10.9.0.1:{}", 1000 + port))).collect();
    let (count_before, start, end) =
        (batches_sent(&harness), harness.now, harness.now + Duration::from_secs(1));
    let (mut last_batch_at, mut count, mut next_turn) = (start, count_before, start);
    while harness.now < end {
        let due = harness.relay.poll_timeout().filter(|due| *due < next_turn);
        harness.now = due.map_or(next_turn, |due| due.max(harness.now));
        if due.is_some() {
            harness.relay.handle_timeout(harness.now, &mut harness.transport);
            harness.relay.end_of_turn(harness.now, &mut harness.transport);
        } else {
            next_turn = harness.now + Duration::from_nanos(1 + random(60_000));
            let chosen = random(40) as usize;
            if random(50) == 0 {
                harness.event(clients[chosen], Event::Lost(LostReason::Closed));
                clients[chosen] = harness.client(0, &format!("10.9.0.2:{}", 1000 + random(9000)));
            } else {
                harness.data(clients[chosen], b"get x\r\n");
            }
        }
        for observed in harness.exchange() {
            match observed {
                Observed::Data(id, bytes) => {
                    harness.server.consumed(Id(id), bytes.len()).unwrap();
                    harness.server.compose(Id(id), &[b'x'; 1000]);
                }
                Observed::Closed(id, reason) => harness.server.close(Id(id), reason),
                _ => {}
            }
        }
        harness.exchange();
        if batches_sent(&harness) > count {
            count += 1;
            assert_eq!(batches_sent(&harness), count, "a turn should send at most one batch");
            assert!(
                count == count_before + 1 || harness.now.since(last_batch_at) >= DELAY,
                "batches should be {DELAY:?} apart, not {:?}",
                harness.now.since(last_batch_at)
            );
            last_batch_at = harness.now;
        }
    }
    assert!(
        (3_300..=3_334).contains(&(count - count_before)),
        "about 3,333 batches should be sent in a second, not {}",
        count - count_before
    );

    // Full batches leave without delay.
    let batch_sizes = |harness: &Harness| harness.relay.status().services[0].batches.bytes;
    let before = batch_sizes(&harness);
    for client in &clients[..10] {
        harness.data(*client, &[b'x'; BYTES / 5]);
    }
    let batched = batch_sizes(&harness).sum() - before.sum();
    assert_eq!(batch_sizes(&harness).count() - before.count(), 2);
    assert!(batched >= 2 * BYTES as u64, "the two batches should have all bytes: {batched}");
}
