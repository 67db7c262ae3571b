//! Windows of plain clients: small at first, larger for clients that read, and bounded in total.

mod harness;

use harness::{Harness, config};
use spillway_batch::Id;
use spillway_relay::Config;
use spillway_transport::{Conn, Event};

const WINDOW_MIN: usize = 16 * 1024;
const WINDOW_MAX: usize = 256 * 1024;
/// The relay sends new credit after this number of bytes.
const CREDIT_STEP: usize = 64 * 1024;

/// Lets the server send a long reply until its credit is used up. Returns the number of bytes.
fn send_until_out_of_credit(harness: &mut Harness, id: u32) -> usize {
    let mut sent = 0;
    loop {
        let bytes: Vec<u8> = (sent..sent + (1 << 20)).map(|offset| (offset % 251) as u8).collect();
        let composed = harness.server.compose(Id(id), &bytes);
        if composed == 0 {
            return sent;
        }
        sent += composed;
        harness.exchange();
    }
}

/// Lets the client read all waiting bytes.
fn read_all(harness: &mut Harness, conn: Conn) -> Vec<u8> {
    let mut received = harness.transport.take(conn);
    while std::mem::take(&mut harness.transport.record(conn).wants_room) {
        harness.event(conn, Event::Room);
        received.extend(harness.transport.take(conn));
    }
    harness.exchange();
    received
}

/// Clients that request long replies and never read hold little memory. They are not closed, because they would
/// reconnect and request the same replies again.
#[test]
fn clients_that_never_read_hold_little_memory_and_are_not_closed() {
    let limit = 64 << 20;
    let mut harness = Harness::new(Config { memory_bytes_max: limit, ..config() });
    let clients: Vec<Conn> =
        (1..=600).map(|number| harness.client(0, &format!("10.9.0.1:{number}"))).collect();
    harness.exchange();
    for (id, client) in (1..).zip(&clients) {
        harness.transport.record(*client).stuck = true;
        let sent = send_until_out_of_credit(&mut harness, id);
        assert!(sent >= WINDOW_MIN, "the server should have credit for the initial window: {sent} bytes");
    }
    assert!(
        harness.relay.status().buffered_bytes >= clients.len() * WINDOW_MIN,
        "each client should have at least its smallest window"
    );
    assert!(
        !harness.relay.status().memory_is_scarce,
        "memory should be sufficient: {} bytes are held",
        harness.relay.status().buffered_bytes
    );
    assert!(
        clients.iter().all(|client| !harness.transport.record(*client).aborted),
        "no client should be reset"
    );
    // Meanwhile a client that reads gets a reply of any length.
    let reader = harness.client(0, "10.9.0.2:1");
    harness.exchange();
    let (mut sent, mut received) = (0, 0);
    while received < 2_000_000 {
        sent += harness.server.compose(Id(601), &vec![b'v'; 1 << 20]);
        harness.exchange();
        let more = read_all(&mut harness, reader).len();
        assert!(more > 0, "the reader should receive more than {received} bytes");
        received += more;
    }
    assert_eq!(sent, received);
    // When the other clients disconnect, their share of the windows' memory is free again.
    for client in clients {
        harness.event(client, Event::Lost(spillway_transport::LostReason::Reset));
    }
    for _ in 0..10 {
        assert!(
            harness.server.compose(Id(601), &vec![b'v'; WINDOW_MAX]) > 0,
            "the server should have room for a reply"
        );
        harness.exchange();
        read_all(&mut harness, reader);
    }
    assert!(
        harness.server.compose(Id(601), &vec![b'v'; 2 * WINDOW_MAX]) >= WINDOW_MAX - CREDIT_STEP,
        "the window should have grown to its maximum"
    );
}

#[test]
fn window_of_a_client_that_reads_grows_and_each_byte_arrives_once() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, "10.9.0.1:1");
    harness.exchange();
    let mut composed = Vec::new();
    for _ in 0..8 {
        composed.push(harness.server.compose(Id(1), &vec![b'v'; 1 << 20]));
        harness.exchange();
        harness.transport.take(client);
        harness.exchange();
    }
    assert_eq!(composed[0], WINDOW_MIN);
    assert_eq!(
        composed.iter().max(),
        Some(&WINDOW_MAX),
        "the window should grow to its maximum: {composed:?}"
    );
    // When the client stops reading, at most twice its window waits for it, and no byte is lost.
    harness.transport.record(client).stuck = true;
    let sent = send_until_out_of_credit(&mut harness, 1);
    assert!(
        (WINDOW_MAX - CREDIT_STEP..=2 * WINDOW_MAX).contains(&sent),
        "at least the window and at most twice its size should be sent: {sent}"
    );
    assert!(
        harness.transport.record(client).sent.len() <= WINDOW_MAX,
        "the transport should hold at most one window"
    );
    assert!(harness.transport.record(client).wants_room, "the transport should be asked for room");
    let received = read_all(&mut harness, client);
    assert_eq!(received.len(), sent);
    assert!(
        received.iter().zip(0..sent).all(|(byte, offset)| usize::from(*byte) == offset % 251),
        "each byte should arrive once and in order"
    );
    assert!(harness.server.room(Id(1)) >= WINDOW_MAX - CREDIT_STEP, "the server should have new credit");
}
