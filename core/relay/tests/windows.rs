//! How far a server may be ahead of what plain clients take: little at first, more for those that read, bounded for all.

mod world;

use spillway_batch::Id;
use spillway_relay::Config;
use spillway_transport::{Conn, Event};
use world::{World, config};

const FIRST: usize = 16 * 1024;
const MOST: usize = 256 * 1024;
/// Credit is restated after so many bytes.
const RESTATED: usize = 64 * 1024;

/// The server sends as much of this client's endless reply as it may, and so on until it may send no more.
fn send_all_it_may(world: &mut World, id: u32) -> usize {
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

/// The host of this client takes all that waits for it.
fn take(world: &mut World, conn: Conn) -> Vec<u8> {
    let mut got = world.wires.take(conn);
    while std::mem::take(&mut world.wires.line(conn).wants_room) {
        world.event(conn, Event::Room);
        got.extend(world.wires.take(conn));
    }
    world.exchange();
    got
}

/// Clients that ask for much and never read: they are not closed, for they do not hold much; so none of them comes again to
/// ask for the same once more.
#[test]
fn clients_that_never_read_hold_little_and_are_not_closed() {
    let limit = 64 << 20;
    let mut world = World::new(Config { memory_bytes_max: limit, ..config() });
    let clients: Vec<Conn> = (1..=600).map(|number| world.client(0, &format!("10.9.0.1:{number}"))).collect();
    world.exchange();
    for (id, client) in (1..).zip(&clients) {
        world.wires.line(*client).stuck = true;
        let sent = send_all_it_may(&mut world, id);
        assert!(sent >= FIRST, "{sent}");
    }
    assert!(world.relay.status().buffered_bytes >= clients.len() * FIRST);
    assert!(!world.relay.status().memory_is_scarce, "{:?}", world.relay.status().buffered_bytes);
    assert!(clients.iter().all(|client| !world.wires.line(*client).aborted));
    // One that reads is served beside them, however large its reply is.
    let reader = world.client(0, "10.9.0.2:1");
    world.exchange();
    let (mut sent, mut got) = (0, 0);
    while got < 2_000_000 {
        sent += world.server.compose(Id(601), &vec![b'v'; 1 << 20]);
        world.exchange();
        let more = take(&mut world, reader).len();
        assert!(more > 0, "it stands still after {got} bytes");
        got += more;
    }
    assert_eq!(sent, got);
    // They have gone, and what they were allowed is others'.
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
        world.wires.take(client);
        world.exchange();
    }
    assert_eq!(at_once[0], FIRST);
    assert_eq!(at_once.iter().max(), Some(&MOST), "{at_once:?}");
    // From here on it does not read. What waits for it is within twice its window, and it gets all of it when it reads.
    world.wires.line(client).stuck = true;
    let sent = send_all_it_may(&mut world, 1);
    assert!((MOST - RESTATED..=2 * MOST).contains(&sent), "{sent}");
    assert!(world.wires.line(client).sent.len() <= MOST, "the transport is not given more");
    assert!(world.wires.line(client).wants_room);
    let got = take(&mut world, client);
    assert_eq!(got.len(), sent);
    assert!(got.iter().zip(0..sent).all(|(byte, at)| usize::from(*byte) == at % 251));
    assert!(world.server.room(Id(1)) >= MOST - RESTATED, "credit came back");
}
