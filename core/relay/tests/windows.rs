//! Windows of plain clients: small at first, larger for clients that read, and bounded in total.

mod world;

use spillway_batch::Id;
use spillway_relay::Config;
use spillway_transport::{Conn, Event};
use world::{World, config};

const FIRST: usize = 16 * 1024;
const MOST: usize = 256 * 1024;
/// Bytes after which the relay sends new credit.
const RESTATED: usize = 64 * 1024;

/// Lets the server send an endless reply until its credit is used up. Returns the number of bytes.
fn send_until_out_of_credit(world: &mut World, id: u32) -> usize {
    let mut sent = 0;
    loop {
        let bytes: Vec<u8> = (sent..sent + (1 << 20)).map(|at| (at % 251) as u8).collect();
        let taken = world.server.compose(Id(id), &bytes);
        if taken == 0 {
            return sent;
        }
        sent += taken;
        world.exchange();
    }
}

/// Lets the client read all waiting bytes.
fn take(world: &mut World, conn: Conn) -> Vec<u8> {
    let mut received = world.transport.take(conn);
    while std::mem::take(&mut world.transport.record(conn).wants_room) {
        world.event(conn, Event::Room);
        received.extend(world.transport.take(conn));
    }
    world.exchange();
    received
}

/// Clients that request long replies and never read hold little memory. They are not closed, because they would
/// reconnect and request the same replies again.
#[test]
fn clients_that_never_read_hold_little_and_are_not_closed() {
    let limit = 64 << 20;
    let mut world = World::new(Config { memory_bytes_max: limit, ..config() });
    let clients: Vec<Conn> = (1..=600).map(|number| world.client(0, &format!("10.9.0.1:{number}"))).collect();
    world.exchange();
    for (id, client) in (1..).zip(&clients) {
        world.transport.record(*client).stuck = true;
        let sent = send_until_out_of_credit(&mut world, id);
        assert!(sent >= FIRST, "{sent}");
    }
    assert!(world.relay.status().buffered_bytes >= clients.len() * FIRST);
    assert!(!world.relay.status().memory_is_scarce, "{:?}", world.relay.status().buffered_bytes);
    assert!(clients.iter().all(|client| !world.transport.record(*client).aborted));
    // A client that reads is served at the same time, whatever the length of its reply.
    let reader = world.client(0, "10.9.0.2:1");
    world.exchange();
    let (mut sent, mut got) = (0, 0);
    while got < 2_000_000 {
        sent += world.server.compose(Id(601), &vec![b'v'; 1 << 20]);
        world.exchange();
        let more = take(&mut world, reader).len();
        assert!(more > 0, "no progress after {got} bytes");
        got += more;
    }
    assert_eq!(sent, got);
    // When they disconnect, other clients can use their windows.
    for client in clients {
        world.event(client, Event::Lost(spillway_transport::LostReason::Reset));
    }
    for _ in 0..10 {
        assert!(world.server.compose(Id(601), &vec![b'v'; MOST]) > 0);
        world.exchange();
        take(&mut world, reader);
    }
    assert!(world.server.compose(Id(601), &vec![b'v'; 2 * MOST]) >= MOST - RESTATED);
}

#[test]
fn the_window_of_a_client_that_reads_grows_and_every_byte_comes_once() {
    let mut world = World::new(config());
    let client = world.client(0, "10.9.0.1:1");
    world.exchange();
    let mut at_once = Vec::new();
    for _ in 0..8 {
        at_once.push(world.server.compose(Id(1), &vec![b'v'; 1 << 20]));
        world.exchange();
        world.transport.take(client);
        world.exchange();
    }
    assert_eq!(at_once[0], FIRST);
    assert_eq!(at_once.iter().max(), Some(&MOST), "{at_once:?}");
    // When the client stops reading, at most twice its window waits for it, and nothing is lost.
    world.transport.record(client).stuck = true;
    let sent = send_until_out_of_credit(&mut world, 1);
    assert!((MOST - RESTATED..=2 * MOST).contains(&sent), "{sent}");
    assert!(world.transport.record(client).sent.len() <= MOST, "the transport gets at most one window");
    assert!(world.transport.record(client).wants_room);
    let got = take(&mut world, client);
    assert_eq!(got.len(), sent);
    assert!(got.iter().zip(0..sent).all(|(byte, at)| usize::from(*byte) == at % 251));
    assert!(world.server.room(Id(1)) >= MOST - RESTATED, "credit came back");
}
