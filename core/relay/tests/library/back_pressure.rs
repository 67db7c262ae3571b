//! Back-pressure: what the relay buffers while a client or the server's link takes no bytes, and in which order it
//! forwards the bytes later.

use core::time::Duration;

use spillway_batch::{CloseReason, Connect, Control, Id, Limits, RefuseReason, Role};
use spillway_relay::{Config, Notice, ResetReason};
use spillway_transport::{Application, Event};

use crate::client::{Client, frames, jump_ahead};
use crate::harness::{Harness, Observed, client_key, config};

#[test]
fn client_whose_unread_replies_exceed_the_buffer_is_reset() {
    let mut harness = Harness::new(Config { connection_buffer_bytes: 100_000, ..config() });
    let endless_window = Limits { window_bytes: u32::MAX, ..Limits::default() };
    let mut client = Client::connecting(&mut harness, client_key(), Role::Client, endless_window);
    client.exchange(&mut harness).unwrap();
    client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(client.conn).room = 0;
    let mut steps = 0;
    while !harness.transport.record(client.conn).aborted {
        assert!(harness.relay.buffered_bytes() <= 100_000, "replies should be buffered within the bound");
        harness.server.compose(Id(1), &[1; 10_000]);
        harness.exchange();
        steps += 1;
        // Ten replies of 10,000 bytes fill the buffer.
        assert!(steps < 20, "the client should be reset within 20 steps");
    }
    assert_eq!(harness.relay.buffered_bytes(), 0);
    let notices: Vec<Notice> = std::iter::from_fn(|| harness.relay.poll_notice()).collect();
    assert!(
        matches!(notices.last(), Some(Notice::ClientReset { why: ResetReason::Buffer, .. })),
        "the client should be reset because of its unread replies: {notices:?}"
    );
}

/// A library client gets no grants while the server's link is stalled, and no byte is lost.
#[test]
fn stalled_link_stops_grants_of_library_clients() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let mut client = Client::new(&mut harness);
    let id = client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(harness.link).room = 0;
    assert_eq!(client.link.compose(id, &[5; 5_000]), 5_000);
    client.exchange(&mut harness).unwrap();
    let granted = harness.transport.record(client.conn).granted;
    assert_eq!(client.link.compose(id, &[5; 50_000]), 50_000);
    client.exchange(&mut harness).unwrap();
    assert_eq!(harness.transport.record(client.conn).granted, granted);
    harness.transport.record(harness.link).room = 1 << 20;
    harness.event(harness.link, Event::Room);
    let received: usize = harness
        .exchange()
        .iter()
        .map(|observed| if let Observed::Data(_, bytes) = observed { bytes.len() } else { 0 })
        .sum();
    assert_eq!(received, 55_000);
    assert!(
        harness.transport.record(client.conn).granted > granted,
        "the client should be granted more after the stall"
    );
}

/// When the server refuses a connection, later bytes of the same turn wait behind those that could not be forwarded,
/// because the records of an encrypted link must be opened in order.
#[test]
fn bytes_after_a_refusal_are_handled_after_stored_ones() {
    let mut harness = Harness::with_server(config(), Limits { window_bytes: 8 << 20, ..Limits::default() });
    let mut client = Client::new(&mut harness);
    let id = client.open();
    client.exchange(&mut harness).unwrap();
    harness.exchange();
    harness.transport.record(harness.link).room = 0;
    for _ in 0..60 {
        assert_eq!(client.link.compose(id, &[5; 100_000]), 100_000);
        client.exchange(&mut harness).unwrap();
    }
    let held = harness.relay.buffered_bytes();
    assert!(held > 1_000_000, "more than 1 MB should wait behind the link's batch, not {held} bytes");
    harness.server.refuse(Id(1), RefuseReason::Full);
    let refusal = harness.server.flush(harness.now).unwrap();
    assert_eq!(client.link.compose(id, &[5; 1_000]), 1_000);
    let latest = client.link.flush(harness.now).unwrap();
    harness.relay.handle(
        harness.now,
        harness.link,
        Event::Data { end: 0, bytes: refusal.as_slice() },
        &mut harness.transport,
    );
    harness.data(client.conn, latest.as_slice());
    client.exchange(&mut harness).unwrap();
    assert_eq!(client.observed, ["refused Full"]);
    assert!(!harness.transport.record(client.conn).aborted, "the client's records should be opened in order");
}

/// The client requests connections that the helper refuses, and does not read the refusals.
#[test]
fn client_that_does_not_read_refusals_is_no_longer_read() {
    let mut harness = Harness::new(config());
    let mut other = Client::new(&mut harness);
    let mut flooder = Client::unencrypted(&mut harness);
    let id = flooder.open();
    flooder.link.close(id, CloseReason::Reset);
    drop(flooder.link.flush(harness.now));
    harness.transport.record(flooder.conn).room = 0;
    let foreign = Connect { client: "10.1.1.1:1".parse().unwrap(), server: None, credit: 0, session: None };
    let batch = frames((0..1000).map(|_| Control::Connect(foreign)));
    let (mut sent, mut rounds) = (0, 0);
    for _ in 0..1000 {
        while sent + batch.len() as u64 <= harness.transport.record(flooder.conn).granted {
            harness.data(flooder.conn, &batch);
            sent += batch.len() as u64;
            rounds += 1;
            assert!(rounds < 100, "the client that does not read should not be read without limit");
        }
        // The relay throttles a flood of control messages: let the allowance recover.
        jump_ahead(&mut harness, Duration::from_secs(2));
    }
    let held = harness.relay.buffered_bytes();
    assert!(held < 256 * 1024, "the relay should buffer little: {held} bytes");
    let id = other.open();
    other.assert_request_is_forwarded(&mut harness, id);
    // When the client reads its refusals, the relay reads the client's requests again.
    let granted = harness.transport.record(flooder.conn).granted;
    harness.transport.record(flooder.conn).room = 1 << 20;
    harness.event(flooder.conn, Event::Room);
    assert!(harness.transport.record(flooder.conn).granted > granted, "the client should be read again");
    assert_eq!(harness.relay.buffered_bytes(), 0);
}
