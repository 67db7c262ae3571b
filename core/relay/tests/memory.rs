//! Memory pressure: which clients are paused and closed, and which are not affected.

mod world;

use core::time::Duration;

use spillway_batch::{Id, Limits};
use spillway_relay::{Config, Cut, Notice};
use spillway_transport::{Application, Conn, Event, LostReason};
use world::{World, config};

const LIMIT: usize = 400_000;

fn world() -> World {
    // Large initial windows let few clients exhaust the memory.
    World::new(Config { memory_bytes_max: LIMIT, first_window_bytes: 256 * 1024, ..config() })
}

fn peer(number: u32) -> String {
    format!("10.9.0.1:{}", 5000 + number)
}

/// Opens `count` clients, whose ids at the server are 1, 2, ….
fn clients(world: &mut World, count: u32) -> Vec<Conn> {
    let clients = (1..=count).map(|number| world.client(0, &peer(number))).collect();
    world.exchange();
    clients
}

fn reply(world: &mut World, id: u32, bytes: usize) {
    assert_eq!(world.server.compose(Id(id), &vec![b'v'; bytes]), bytes);
    world.exchange();
}

fn later(world: &mut World, time: Duration) {
    world.now = world.now + time;
    world.relay.handle_timeout(world.now, &mut world.transport);
    world.relay.end_of_turn(world.now, &mut world.transport);
}

fn aborted(world: &mut World, clients: &[Conn]) -> Vec<bool> {
    clients.iter().map(|conn| world.transport.record(*conn).aborted).collect()
}

fn closed(world: &mut World) -> Vec<(String, usize)> {
    let notices = std::iter::from_fn(|| world.relay.poll_notice());
    let closed = notices.filter_map(|notice| match notice {
        Notice::ClientReset { client, why: Cut::Memory(cut), .. } => {
            Some((client.to_string(), cut.held_bytes))
        }
        _ => None,
    });
    closed.collect()
}

#[test]
fn only_the_client_that_holds_most_and_does_not_read_is_closed() {
    let mut world = world();
    let all = clients(&mut world, 5);
    for stalled in &all[..3] {
        world.transport.record(*stalled).room = 0;
    }
    reply(&mut world, 1, 50_000);
    reply(&mut world, 2, 200_000);
    world.now = world.now + Duration::from_millis(100);
    reply(&mut world, 3, 100_000);
    assert_eq!(aborted(&mut world, &all), [false; 5], "within the limit");
    // Client 4, whose bytes exceed the limit, has read until now; client 5 holds nothing.
    reply(&mut world, 4, 200_000);
    world.data(all[4], b"get x\r\n");
    world.transport.record(all[3]).room = 0;
    world.transport.record(all[3]).sent.clear();
    reply(&mut world, 4, 50_000);
    assert_eq!(aborted(&mut world, &all), [false, true, false, false, false]);
    let closed = closed(&mut world);
    assert!(matches!(&closed[..], [(client, 200_000..=220_000)] if *client == peer(2)), "{closed:?}");
    let counters = world.relay.status().services[0].counters;
    assert_eq!((counters.cut.memory, counters.refused.memory), (1, 0));
}

#[test]
fn the_transports_queues_count_too() {
    let mut world = world();
    let all = clients(&mut world, 3);
    for stalled in &all[..2] {
        world.transport.record(*stalled).stuck = true;
    }
    reply(&mut world, 1, 220_000);
    world.now = world.now + Duration::from_millis(1);
    reply(&mut world, 2, 170_000);
    assert_eq!(world.relay.buffered_bytes(), 0, "the transport has taken all bytes");
    assert_eq!(aborted(&mut world, &all), [false; 3]);
    reply(&mut world, 2, 20_000);
    world.data(all[2], b"get x\r\n");
    assert_eq!(aborted(&mut world, &all), [true, false, false]);
    assert!(world.relay.status().buffered_bytes <= LIMIT);
}

/// A turn that begins with a new client finds the bound exceeded.
#[test]
fn a_new_client_above_the_bound_is_accepted_and_the_largest_closed() {
    let mut world = world();
    let all = clients(&mut world, 2);
    for stalled in &all {
        world.transport.record(*stalled).stuck = true;
    }
    reply(&mut world, 1, 220_000);
    world.now = world.now + Duration::from_millis(1);
    // The bytes are queued in this turn and counted at the beginning of the next.
    assert_eq!(world.server.compose(Id(2), &[b'v'; 200_000]), 200_000);
    let batch = world.server.flush(world.now).unwrap();
    let now = world.now;
    world.relay.handle(
        now,
        world.link,
        Event::Data { end: 0, bytes: batch.as_slice() },
        &mut world.transport,
    );
    world.relay.end_of_turn(now, &mut world.transport);
    assert_eq!(aborted(&mut world, &all), [false; 2]);
    let new_client = world.client(0, &peer(9));
    assert!(!world.transport.record(new_client).aborted);
    assert_eq!(aborted(&mut world, &all), [true, false]);
}

#[test]
fn clients_that_do_not_read_are_paused_first_and_then_resumed() {
    let mut world = world();
    let all = clients(&mut world, 3);
    let (stalled, other) = (all[0], all[2]);
    world.transport.record(stalled).room = 0;
    world.transport.record(all[1]).room = 0;
    reply(&mut world, 1, 150_000);
    reply(&mut world, 2, 200_000);
    assert!(world.relay.status().memory_is_scarce);
    let granted = |world: &mut World, conn: Conn| world.transport.record(conn).granted;
    let before = granted(&mut world, stalled);
    for conn in [stalled, other] {
        world.data(conn, &[b'r'; 40_000]);
        world.exchange();
    }
    assert_eq!(granted(&mut world, stalled), before, "the paused client's requests are not read");
    world.data(other, &[b'r'; 24_000]);
    world.exchange();
    assert!(granted(&mut world, other) > 64 * 1024, "a client that reads is granted more");
    assert!(granted(&mut world, other) <= 64 * 1024 + 4 * 1024, "grants are small while memory is scarce");
    assert_eq!(world.relay.status().paused, 1);
    // The other client that does not read leaves, and memory is sufficient again.
    world.event(all[1], Event::Lost(spillway_transport::LostReason::Reset));
    assert!(!world.relay.status().memory_is_scarce);
    assert!(granted(&mut world, stalled) > before, "the paused client is read again");
    assert_eq!(aborted(&mut world, &all), [false; 3]);
    let notices: Vec<Notice> = std::iter::from_fn(|| world.relay.poll_notice()).collect();
    assert!(
        notices.iter().any(|notice| matches!(notice, Notice::MemoryScarce { clients: 3, .. })),
        "{notices:?}"
    );
    let last = notices.last();
    assert!(matches!(last, Some(Notice::MemoryEnough { paused: 1, closed: 0, .. })), "{last:?}");
}

#[test]
fn a_paused_client_that_reads_everything_is_read_again() {
    let mut world = world();
    let all = clients(&mut world, 2);
    for stalled in &all {
        world.transport.record(*stalled).room = 0;
    }
    reply(&mut world, 1, 100_000);
    reply(&mut world, 2, 240_000);
    world.data(all[0], &[b'r'; 64 * 1024]);
    world.exchange();
    let before = world.transport.record(all[0]).granted;
    world.transport.record(all[0]).room = 1 << 20;
    world.event(all[0], Event::Room);
    assert!(world.transport.record(all[0]).granted > before);
}

#[test]
fn clients_that_never_read_are_closed_while_memory_is_scarce_and_new_ones_accepted() {
    let mut world = world();
    let all = clients(&mut world, 3);
    for (stalled, bytes) in [(1, 20_000), (2, 200_000), (3, 120_000)] {
        world.transport.record(all[stalled as usize - 1]).room = 0;
        reply(&mut world, stalled, bytes);
    }
    assert!(world.relay.status().memory_is_scarce);
    let new_client = world.client(0, &peer(9));
    assert!(!world.transport.record(new_client).aborted, "new clients are accepted while memory is scarce");
    for _ in 0..9 {
        later(&mut world, Duration::from_secs(1));
    }
    assert_eq!(aborted(&mut world, &all), [false; 3]);
    later(&mut world, Duration::from_secs(2));
    assert_eq!(aborted(&mut world, &all), [false, true, false], "closing the largest client frees enough");
    assert!(!world.relay.status().memory_is_scarce);
    assert_eq!(world.relay.poll_timeout(), None, "no scan while memory is sufficient");
}

#[test]
fn a_lower_limit_closes_the_largest_and_no_active_client() {
    let mut world = world();
    let all = clients(&mut world, 4);
    for (stalled, bytes) in [(1, 50_000), (2, 130_000), (3, 80_000)] {
        world.transport.record(all[stalled as usize - 1]).room = 0;
        reply(&mut world, stalled, bytes);
    }
    world.now = world.now + Duration::from_millis(1);
    let lower = Config { memory_bytes_max: 200_000, first_window_bytes: 256 * 1024, ..config() };
    world.relay.reconfigure(world.now, lower, Duration::from_secs(9), &mut world.transport).unwrap();
    assert_eq!(aborted(&mut world, &all), [false, true, false, false]);
    world.data(all[3], b"get x\r\n");
    world.exchange();
    assert_eq!(aborted(&mut world, &all), [false, true, false, false]);
}

#[test]
fn requests_behind_a_stalled_link_are_within_the_bound() {
    let mut base = config();
    base.services[0].limits = Limits { pending_bytes_max: 4 << 20, ..Limits::default() };
    let mut world = World::new(Config { memory_bytes_max: 2 << 20, ..base });
    let all: Vec<Conn> = (1..=200).map(|number| world.client(0, &peer(number))).collect();
    world.exchange();
    world.transport.record(world.link).room = 0;
    for client in &all {
        let granted = world.transport.record(*client).granted as usize;
        world.data(*client, &vec![b'r'; granted]);
        let held = world.relay.status().buffered_bytes;
        assert!(held <= 2 << 20, "{held}");
    }
    world.transport.record(world.link).room = 1 << 30;
    world.event(world.link, Event::Room);
    while !world.exchange().is_empty() {
        later(&mut world, Duration::from_millis(1));
    }
    assert_eq!(world.relay.buffered_bytes(), 0);
}

/// The transport's queues are measured at the beginning of a turn, and the next turn may begin much later.
#[test]
fn a_connection_lost_within_a_turn_is_not_counted_after_it() {
    let mut world = world();
    let all = clients(&mut world, 2);
    world.transport.record(all[0]).stuck = true;
    reply(&mut world, 1, 50_000);
    later(&mut world, Duration::from_millis(1));
    assert_eq!(world.relay.status().buffered_bytes, 50_000);
    let now = world.now;
    world.relay.handle(now, all[1], Event::Data { end: 5, bytes: b"get x" }, &mut world.transport);
    world.transport.record(all[0]).aborted = true;
    world.relay.handle(now, all[0], Event::Lost(LostReason::Reset), &mut world.transport);
    world.relay.end_of_turn(now, &mut world.transport);
    assert_eq!(world.relay.status().buffered_bytes, 0);
}
