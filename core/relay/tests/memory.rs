//! Memory pressure: which clients are paused and closed, and which are not affected.

mod harness;

use core::time::Duration;

use harness::{Harness, config};
use spillway_batch::{Id, Limits};
use spillway_relay::{Config, Notice, ResetReason};
use spillway_transport::{Application, Conn, Event, LostReason};

const MEMORY_BYTES_MAX: usize = 400_000;

fn harness() -> Harness {
    // Large initial windows let few clients exhaust the memory.
    Harness::new(Config { memory_bytes_max: MEMORY_BYTES_MAX, first_window_bytes: 256 * 1024, ..config() })
}

fn peer(number: u32) -> String {
    format!("10.9.0.1:{}", 5000 + number)
}

/// Opens `count` plain clients, with ids 1, 2, … at the server.
fn open_clients(harness: &mut Harness, count: u32) -> Vec<Conn> {
    let clients = (1..=count).map(|number| harness.client(0, &peer(number))).collect();
    harness.exchange();
    clients
}

fn send_reply(harness: &mut Harness, id: u32, bytes: usize) {
    assert_eq!(harness.server.compose(Id(id), &vec![b'v'; bytes]), bytes);
    harness.exchange();
}

fn jump_ahead(harness: &mut Harness, time: Duration) {
    harness.now = harness.now + time;
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
}

fn aborted(harness: &mut Harness, clients: &[Conn]) -> Vec<bool> {
    clients.iter().map(|conn| harness.transport.record(*conn).aborted).collect()
}

fn closed_for_memory(harness: &mut Harness) -> Vec<(String, usize)> {
    let notices = std::iter::from_fn(|| harness.relay.poll_notice());
    let closed = notices.filter_map(|notice| match notice {
        Notice::ClientReset { client, why: ResetReason::Memory(reset), .. } => {
            Some((client.to_string(), reset.held_bytes))
        }
        _ => None,
    });
    closed.collect()
}

#[test]
fn client_that_holds_most_and_does_not_read_is_closed() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 5);
    for stalled in &all[..3] {
        harness.transport.record(*stalled).room = 0;
    }
    send_reply(&mut harness, 1, 50_000);
    send_reply(&mut harness, 2, 200_000);
    harness.now = harness.now + Duration::from_millis(100);
    send_reply(&mut harness, 3, 100_000);
    assert_eq!(aborted(&mut harness, &all), [false; 5], "350,000 bytes should be within the limit");
    // Client 4 has read until now, and its next reply exceeds the limit; client 5 holds nothing.
    send_reply(&mut harness, 4, 200_000);
    harness.data(all[4], b"get x\r\n");
    harness.transport.record(all[3]).room = 0;
    harness.transport.record(all[3]).sent.clear();
    send_reply(&mut harness, 4, 50_000);
    assert_eq!(aborted(&mut harness, &all), [false, true, false, false, false]);
    let closed = closed_for_memory(&mut harness);
    assert!(
        matches!(&closed[..], [(client, 200_000..=220_000)] if *client == peer(2)),
        "the client that holds most should be closed: {closed:?}"
    );
    let counters = harness.relay.status().services[0].counters;
    assert_eq!(
        (counters.reset.memory, counters.refused.memory),
        (1, 0),
        "one client should be reset for memory"
    );
}

#[test]
fn bytes_in_the_transports_queues_count() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 3);
    for stalled in &all[..2] {
        harness.transport.record(*stalled).stuck = true;
    }
    send_reply(&mut harness, 1, 220_000);
    harness.now = harness.now + Duration::from_millis(1);
    send_reply(&mut harness, 2, 170_000);
    assert_eq!(harness.relay.buffered_bytes(), 0, "all bytes should be in the transport");
    assert_eq!(aborted(&mut harness, &all), [false; 3]);
    send_reply(&mut harness, 2, 20_000);
    harness.data(all[2], b"get x\r\n");
    assert_eq!(aborted(&mut harness, &all), [true, false, false]);
    assert!(
        harness.relay.status().buffered_bytes <= MEMORY_BYTES_MAX,
        "buffered bytes should be within the limit"
    );
}

/// A new client connects in the turn in which the relay finds the limit exceeded.
#[test]
fn new_client_above_the_limit_is_accepted_and_the_largest_closed() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 2);
    for stalled in &all {
        harness.transport.record(*stalled).stuck = true;
    }
    send_reply(&mut harness, 1, 220_000);
    harness.now = harness.now + Duration::from_millis(1);
    // The bytes are queued in this turn and counted at the beginning of the next.
    assert_eq!(harness.server.compose(Id(2), &[b'v'; 200_000]), 200_000);
    let batch = harness.server.flush(harness.now).unwrap();
    let now = harness.now;
    harness.relay.handle(
        now,
        harness.link,
        Event::Data { end: 0, bytes: batch.as_slice() },
        &mut harness.transport,
    );
    harness.relay.end_of_turn(now, &mut harness.transport);
    assert_eq!(aborted(&mut harness, &all), [false; 2]);
    let new_client = harness.client(0, &peer(9));
    assert!(!harness.transport.record(new_client).aborted, "the new client should be accepted");
    assert_eq!(aborted(&mut harness, &all), [true, false]);
}

#[test]
fn clients_that_do_not_read_are_paused_first_and_then_resumed() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 3);
    let (stalled, other) = (all[0], all[2]);
    harness.transport.record(stalled).room = 0;
    harness.transport.record(all[1]).room = 0;
    send_reply(&mut harness, 1, 150_000);
    send_reply(&mut harness, 2, 200_000);
    assert!(harness.relay.status().memory_is_scarce, "memory should be scarce");
    let granted = |harness: &mut Harness, conn: Conn| harness.transport.record(conn).granted;
    let before = granted(&mut harness, stalled);
    for conn in [stalled, other] {
        harness.data(conn, &[b'r'; 40_000]);
        harness.exchange();
    }
    assert_eq!(granted(&mut harness, stalled), before, "a paused client should get no grant");
    harness.data(other, &[b'r'; 24_000]);
    harness.exchange();
    assert!(granted(&mut harness, other) > 64 * 1024, "a client that reads should be granted more");
    assert!(
        granted(&mut harness, other) <= 64 * 1024 + 4 * 1024,
        "grants should be small while memory is scarce"
    );
    assert_eq!(harness.relay.status().paused, 1);
    // When the other client that does not read leaves, memory is sufficient again.
    harness.event(all[1], Event::Lost(spillway_transport::LostReason::Reset));
    assert!(!harness.relay.status().memory_is_scarce, "memory should be sufficient");
    assert!(granted(&mut harness, stalled) > before, "the paused client should be granted more");
    assert_eq!(aborted(&mut harness, &all), [false; 3]);
    let notices: Vec<Notice> = std::iter::from_fn(|| harness.relay.poll_notice()).collect();
    assert!(
        notices.iter().any(|notice| matches!(notice, Notice::MemoryScarce { clients: 3, .. })),
        "the helper should report that memory is scarce: {notices:?}"
    );
    let last = notices.last();
    assert!(
        matches!(last, Some(Notice::MemoryEnough { paused: 1, closed: 0, .. })),
        "the helper should report that memory is sufficient, with one client paused and none closed: {last:?}"
    );
}

#[test]
fn paused_client_that_reads_all_replies_is_granted_more() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 2);
    for stalled in &all {
        harness.transport.record(*stalled).room = 0;
    }
    send_reply(&mut harness, 1, 100_000);
    send_reply(&mut harness, 2, 240_000);
    harness.data(all[0], &[b'r'; 64 * 1024]);
    harness.exchange();
    let before = harness.transport.record(all[0]).granted;
    harness.transport.record(all[0]).room = 1 << 20;
    harness.event(all[0], Event::Room);
    assert!(harness.transport.record(all[0]).granted > before, "the client should be granted more");
}

#[test]
fn client_that_never_reads_is_closed_while_memory_is_scarce() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 3);
    for (stalled, bytes) in [(1, 20_000), (2, 200_000), (3, 120_000)] {
        harness.transport.record(all[stalled as usize - 1]).room = 0;
        send_reply(&mut harness, stalled, bytes);
    }
    assert!(harness.relay.status().memory_is_scarce, "memory should be scarce");
    let new_client = harness.client(0, &peer(9));
    assert!(
        !harness.transport.record(new_client).aborted,
        "new clients should be accepted while memory is scarce"
    );
    for _ in 0..9 {
        jump_ahead(&mut harness, Duration::from_secs(1));
    }
    assert_eq!(aborted(&mut harness, &all), [false; 3]);
    jump_ahead(&mut harness, Duration::from_secs(2));
    assert_eq!(aborted(&mut harness, &all), [false, true, false], "only the largest client should be closed");
    assert!(!harness.relay.status().memory_is_scarce, "memory should be sufficient");
    assert_eq!(harness.relay.poll_timeout(), None, "no scan should be scheduled while memory is sufficient");
}

#[test]
fn lower_limit_closes_the_largest_client_and_no_active_one() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 4);
    for (stalled, bytes) in [(1, 50_000), (2, 130_000), (3, 80_000)] {
        harness.transport.record(all[stalled as usize - 1]).room = 0;
        send_reply(&mut harness, stalled, bytes);
    }
    harness.now = harness.now + Duration::from_millis(1);
    let lower = Config { memory_bytes_max: 200_000, first_window_bytes: 256 * 1024, ..config() };
    harness.relay.reconfigure(harness.now, lower, Duration::from_secs(9), &mut harness.transport).unwrap();
    assert_eq!(aborted(&mut harness, &all), [false, true, false, false]);
    harness.data(all[3], b"get x\r\n");
    harness.exchange();
    assert_eq!(aborted(&mut harness, &all), [false, true, false, false]);
}

#[test]
fn requests_behind_a_stalled_link_stay_within_the_limit() {
    let mut base = config();
    base.services[0].limits = Limits { pending_bytes_max: 4 << 20, ..Limits::default() };
    let mut harness = Harness::new(Config { memory_bytes_max: 2 << 20, ..base });
    let all: Vec<Conn> = (1..=200).map(|number| harness.client(0, &peer(number))).collect();
    harness.exchange();
    harness.transport.record(harness.link).room = 0;
    for client in &all {
        let granted = harness.transport.record(*client).granted as usize;
        harness.data(*client, &vec![b'r'; granted]);
        let held = harness.relay.status().buffered_bytes;
        assert!(held <= 2 << 20, "at most 2 MiB should be held: {held} bytes");
    }
    harness.transport.record(harness.link).room = 1 << 30;
    harness.event(harness.link, Event::Room);
    while !harness.exchange().is_empty() {
        jump_ahead(&mut harness, Duration::from_millis(1));
    }
    assert_eq!(harness.relay.buffered_bytes(), 0);
}

/// The transport's queues are measured at the beginning of a turn, and the next turn may begin much later.
#[test]
fn connection_lost_within_a_turn_is_not_counted_afterwards() {
    let mut harness = harness();
    let all = open_clients(&mut harness, 2);
    harness.transport.record(all[0]).stuck = true;
    send_reply(&mut harness, 1, 50_000);
    jump_ahead(&mut harness, Duration::from_millis(1));
    assert_eq!(harness.relay.status().buffered_bytes, 50_000);
    let now = harness.now;
    harness.relay.handle(now, all[1], Event::Data { end: 5, bytes: b"get x" }, &mut harness.transport);
    harness.transport.record(all[0]).aborted = true;
    harness.relay.handle(now, all[0], Event::Lost(LostReason::Reset), &mut harness.transport);
    harness.relay.end_of_turn(now, &mut harness.transport);
    assert_eq!(harness.relay.status().buffered_bytes, 0);
}
