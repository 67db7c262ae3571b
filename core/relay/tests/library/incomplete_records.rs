//! Incomplete records of encrypted links: they count as memory of their clients, and clients that withhold the ends of
//! records are closed.

use core::time::Duration;

use spillway_batch::Id;
use spillway_relay::Config;
use spillway_transport::Conn;

use crate::client::Client;
use crate::harness::{Harness, config};

/// Library clients that send only parts of long records are closed at the memory bound.
#[test]
fn incomplete_records_count_against_the_memory_limit() {
    let limit = 200_000;
    let mut harness = Harness::new(Config { memory_bytes_max: limit, ..config() });
    let mut complete = Client::new(&mut harness);
    let id = complete.open();
    let mut withholding = Vec::new();
    for _ in 0..40 {
        let mut client = Client::new(&mut harness);
        let id = client.open();
        client.link.compose(id, &[b'x'; 16_000]);
        let batch = client.link.flush(harness.now).unwrap();
        // The record's length and half of its bytes.
        harness.data(client.conn, &batch.as_slice()[..8_000]);
        assert!(
            harness.relay.status().buffered_bytes <= limit,
            "incomplete records should count against the memory limit: {}",
            harness.relay.status().buffered_bytes
        );
        withholding.push(client.conn);
    }
    let closed = withholding.iter().filter(|conn| harness.transport.record(**conn).aborted).count();
    // An incomplete record holds the memory of a whole one, 16,000 bytes: 12 of 40 fit 200,000.
    assert!((25..=30).contains(&closed), "25 to 30 of 40 clients should be closed, not {closed}");
    assert_eq!(harness.relay.status().services[0].counters.reset.memory, closed as u64);
    complete.assert_request_is_forwarded(&mut harness, id);
}

/// The first part of an incomplete record counts as memory of its client, which can be closed for it.
#[test]
fn client_with_the_largest_incomplete_record_is_closed_at_the_memory_limit() {
    let mut harness = Harness::new(Config { memory_bytes_max: 20_000, ..config() });
    let send_part_of_record = |harness: &mut Harness, bytes: usize| {
        let mut client = Client::new(harness);
        let id = client.open();
        assert_eq!(client.link.compose(id, &vec![5; bytes]), bytes);
        let batch = client.link.flush(harness.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(bytes - 100);
        harness.data(client.conn, first);
        (client.conn, rest.to_vec())
    };
    let (complete, rest) = send_part_of_record(&mut harness, 9_000);
    send_part_of_record(&mut harness, 5_000);
    let held = harness.relay.buffered_bytes();
    assert!((14_000..18_000).contains(&held), "both incomplete records should be counted: {held} bytes");
    harness.data(complete, &rest);
    harness.exchange();
    let held = harness.relay.buffered_bytes();
    assert!((5_000..7_000).contains(&held), "a complete record should be forwarded, not held: {held} bytes");
    let (largest, _) = send_part_of_record(&mut harness, 15_000);
    assert!(
        harness.transport.record(largest).aborted && !harness.transport.record(complete).aborted,
        "only the client with the largest incomplete record should be closed"
    );
    assert_eq!(harness.relay.status().services[0].counters.reset.memory, 1);
}

/// The reader's reply has waited for a shorter time than the clients have withheld the ends of their records.
#[test]
fn clients_that_withhold_records_are_closed_before_readers() {
    let mut harness =
        Harness::new(Config { memory_bytes_max: 100_000, first_window_bytes: 64 * 1024, ..config() });
    let reader = harness.client(0, "10.9.0.2:6000");
    harness.exchange();
    let send_part_of_record = |harness: &mut Harness| {
        let mut client = Client::new(harness);
        let id = client.open();
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(harness.now).unwrap();
        harness.data(client.conn, &batch.as_slice()[..14_000]);
        client.conn
    };
    let withholding: Vec<Conn> = (0..5).map(|_| send_part_of_record(&mut harness)).collect();
    harness.advance(Duration::from_millis(10));
    // This client holds most memory, but for the shortest time.
    harness.transport.record(reader).room = 0;
    assert_eq!(harness.server.compose(Id(1), &[b'v'; 30_000]), 30_000);
    harness.exchange();
    assert!(!harness.transport.record(reader).aborted, "the reader should stay");
    assert!(
        withholding.iter().any(|conn| harness.transport.record(*conn).aborted),
        "a client that withholds a record should be closed"
    );
}

/// A client that withholds the end of a record is closed even while memory is sufficient.
#[test]
fn client_that_withholds_the_end_of_a_record_is_closed() {
    let mut harness = Harness::new(config());
    let mut client = Client::new(&mut harness);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
    let batch = client.link.flush(harness.now).unwrap();
    let (first, rest) = batch.as_slice().split_at(14_000);
    harness.data(client.conn, &first[..13_999]);
    harness.advance(Duration::from_secs(6));
    harness.data(client.conn, &first[13_999..]);
    assert!(!harness.transport.record(client.conn).aborted, "the client should stay until the timeout");
    harness.advance(Duration::from_secs(5));
    assert!(
        harness.transport.record(client.conn).aborted,
        "a client that withholds {} bytes should be reset",
        rest.len()
    );
    assert_eq!(harness.relay.buffered_bytes(), 0);
    // A client that completes its records stays.
    let mut client = Client::new(&mut harness);
    let id = client.open();
    for _ in 0..5 {
        assert_eq!(client.link.compose(id, &[5; 15_000]), 15_000);
        let batch = client.link.flush(harness.now).unwrap();
        let (first, rest) = batch.as_slice().split_at(14_000);
        harness.data(client.conn, first);
        harness.advance(Duration::from_secs(4));
        harness.data(client.conn, rest);
    }
    assert!(
        !harness.transport.record(client.conn).aborted,
        "the client that completes its record should stay"
    );
}
