//! Clients that violate the protocol or flood the relay with control messages: only these clients are closed or
//! throttled, and the server receives little of what they send.

use core::time::Duration;

use spillway_batch::{CloseReason, Control, Id, Limits};
use spillway_transport::Application;

use crate::client::{Client, connections, frames, jump_ahead};
use crate::harness::{Harness, Observed, config};

#[test]
fn malformed_frames_reset_only_their_client() {
    let mut harness = Harness::new(config());
    let mut other = Client::new(&mut harness);
    other.open();
    let malformed = Client::new(&mut harness);
    harness.data(malformed.conn, &[0x7f; 50]);
    assert!(harness.transport.record(malformed.conn).aborted, "the malformed client should be reset");
    other.exchange(&mut harness).unwrap();
    assert_eq!(harness.exchange().len(), 1);
    assert_eq!(harness.relay.status().services[0].counters.reset.protocol, 1);
}

#[test]
fn drain_from_a_client_is_a_protocol_error() {
    let mut harness = Harness::new(config());
    let mut client = Client::unencrypted(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.data(client.conn, &frames([Control::Drain { deadline_ms: 0 }]));
    assert!(harness.transport.record(client.conn).aborted, "the client should be reset");
    assert_eq!(harness.exchange(), [Observed::Closed(1, CloseReason::Reset)]);
}

/// Data beyond the server's credit closes the connection at the helper, and is not relayed.
#[test]
fn data_over_credit_ends_at_the_helper() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let mut client = Client::unencrypted(&mut harness);
    let id = client.open();
    assert_eq!(client.link.compose(id, &[1; 1000]), 1000);
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    let mut frame = vec![1, 0, 1];
    frame.extend_from_slice(&1_u32.to_be_bytes());
    frame.push(b'x');
    for _ in 0..100 {
        harness.data(client.conn, &frame);
    }
    let observed = harness.exchange();
    assert_eq!(observed, [Observed::Closed(1, CloseReason::OverCredit)]);
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed.last().map(String::as_str), Some("closed OverCredit"));
    assert_eq!(harness.relay.status().services[0].counters.connections_broken, 1);
    // The ids are free when both ends have closed.
    client.link.close(id, CloseReason::Normal);
    harness.server.close(Id(1), CloseReason::Normal);
    harness.exchange();
    assert_eq!(connections(&harness), 0);
    client.open();
    client.exchange(&mut harness).unwrap();
    assert!(
        matches!(harness.exchange()[..], [Observed::Connect(..)]),
        "the connection should reach the server"
    );
}

#[test]
fn repeated_credit_is_forwarded_once_in_a_batch() {
    let mut harness = Harness::new(config());
    let mut client = Client::unencrypted(&mut harness);
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    let before = harness.relay.status().services[0].traffic.bytes_sent;
    for round in 0..50 {
        let batch = frames((0..1000).map(|step| Control::Credit((1 << 20) + round * 1000 + step)));
        harness.transport.record(client.conn).granted += batch.len() as u64;
        harness.data(client.conn, &batch);
    }
    harness.exchange();
    let sent = harness.relay.status().services[0].traffic.bytes_sent - before;
    // One message of 15 bytes for each batch, in a record with a sealed length of 18 bytes and a tag of 16.
    assert!(
        sent <= 50 * (15 + 18 + 16),
        "each batch should have one credit message: {sent} bytes in 50 batches"
    );
    assert_eq!(harness.server.room(Id(1)), (1 << 20) + 49_999);
}

/// A flood of control messages is read at the pace of its client's allowance, and another client's requests at once.
#[test]
fn a_flood_of_control_messages_is_read_slowly_and_other_clients_at_once() {
    let mut harness = Harness::new(config());
    let mut flooder = Client::unencrypted(&mut harness);
    flooder.open();
    flooder.exchange(&mut harness).unwrap();
    let other = harness.client(0, "10.9.0.1:4000");
    harness.exchange();
    let empty = [1, 0, 0, 0, 0, 0, 1].repeat(512);
    let unknown = [1, 0, 1, 0, 0, 0, 9, b'x'].repeat(512);
    let credit = frames((0..512).map(|_| Control::Credit(1 << 20)));
    let mut sent = harness.transport.record(flooder.conn).granted - 64 * 1024;
    for flood in [empty, unknown, credit] {
        let (began_at, before) = (harness.now, sent);
        while harness.now < began_at + Duration::from_secs(10) {
            while harness.transport.record(flooder.conn).granted >= sent + flood.len() as u64 {
                harness.data(flooder.conn, &flood);
                sent += flood.len() as u64;
                assert!(sent - before < 1 << 20, "the flooder should be throttled");
            }
            jump_ahead(&mut harness, Duration::from_millis(20));
            harness.data(other, b"get x\r\n");
            let observed = harness.exchange();
            assert!(
                observed.contains(&Observed::Data(2, b"get x\r\n".to_vec())),
                "the other client's request should be forwarded at once: {observed:?}"
            );
        }
        // Reading a throttled client pauses for 1 s at most; then the client is granted 64 KiB.
        let read = sent - before;
        assert!(
            (100_000..11 * 65_536).contains(&read),
            "100,000 to 720,896 bytes should be read in ten seconds, not {read}"
        );
        assert!(!harness.transport.record(flooder.conn).aborted, "the flooder should not be reset");
    }
    // Data is not throttled.
    jump_ahead(&mut harness, Duration::from_secs(2));
    let bytes = [7; 60_000];
    let id = Id(1);
    for _ in 0..20 {
        assert_eq!(flooder.link.compose(id, &bytes), bytes.len());
        flooder.exchange(&mut harness).unwrap();
        harness.exchange();
        harness.server.consumed(Id(1), bytes.len()).unwrap();
        harness.exchange();
        flooder.exchange(&mut harness).unwrap();
    }
    assert_eq!(harness.relay.poll_timeout(), None, "the throttle timer should not run");
}
