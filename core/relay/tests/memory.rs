//! When memory is short: who is paused, who is closed, and who is left alone.

mod world;

use core::time::Duration;

use spillway_batch::{Id, Limits};
use spillway_relay::{Config, Cut, Notice};
use spillway_transport::{Application, Conn, Event, LostReason};
use world::{World, config};

const LIMIT: usize = 400_000;

fn world() -> World {
    // Windows are large from the beginning: few clients are enough to make memory short.
    World::new(Config { memory_bytes_max: LIMIT, first_window_bytes: 256 * 1024, ..config() })
}

fn peer(number: u32) -> String {
    format!("10.9.0.1:{}", 5000 + number)
}

/// Clients 1.. in order; their ids at the server are the same.
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
    world.relay.handle_timeout(world.now, &mut world.wires);
    world.relay.end_of_turn(world.now, &mut world.wires);
}

fn aborted(world: &mut World, clients: &[Conn]) -> Vec<bool> {
    clients.iter().map(|conn| world.wires.line(*conn).aborted).collect()
}

fn closed(world: &mut World) -> Vec<(String, usize)> {
    let notices = std::iter::from_fn(|| world.relay.poll_notice());
    let closed = notices.filter_map(|notice| match notice {
        Notice::ClientCut { client, why: Cut::Memory(cut), .. } => Some((client.to_string(), cut.held_bytes)),
        _ => None,
    });
    closed.collect()
}

#[test]
fn the_one_that_holds_most_and_does_not_read_is_closed_and_nobody_else() {
    let mut world = world();
    let all = clients(&mut world, 5);
    for deaf in &all[..3] {
        world.wires.line(*deaf).room = 0;
    }
    reply(&mut world, 1, 50_000);
    reply(&mut world, 2, 200_000);
    world.now = world.now + Duration::from_millis(100);
    reply(&mut world, 3, 100_000);
    assert_eq!(aborted(&mut world, &all), [false; 5], "that is just within the limit");
    // The one whose bytes exceed it has read all the time; the one that sends holds nothing at all.
    reply(&mut world, 4, 200_000);
    world.data(all[4], b"get x\r\n");
    world.wires.line(all[3]).room = 0;
    world.wires.line(all[3]).sent.clear();
    reply(&mut world, 4, 50_000);
    assert_eq!(aborted(&mut world, &all), [false, true, false, false, false]);
    let closed = closed(&mut world);
    assert!(matches!(&closed[..], [(client, 200_000..=220_000)] if *client == peer(2)), "{closed:?}");
    let counters = world.relay.status().services[0].counters;
    assert_eq!((counters.cut.memory, counters.refused.memory), (1, 0));
}

#[test]
fn what_the_transport_has_queued_counts_too() {
    let mut world = world();
    let all = clients(&mut world, 3);
    for deaf in &all[..2] {
        world.wires.line(*deaf).stuck = true;
    }
    reply(&mut world, 1, 220_000);
    world.now = world.now + Duration::from_millis(1);
    reply(&mut world, 2, 170_000);
    assert_eq!(world.relay.buffered_bytes(), 0, "the transport took all of it");
    assert_eq!(aborted(&mut world, &all), [false; 3]);
    reply(&mut world, 2, 20_000);
    world.data(all[2], b"get x\r\n");
    assert_eq!(aborted(&mut world, &all), [true, false, false]);
    assert!(world.relay.status().buffered_bytes <= LIMIT);
}

/// The bound is found to be exceeded when a turn begins, and that turn begins with a new client.
#[test]
fn a_client_that_comes_when_the_bound_is_exceeded_is_taken_and_the_largest_closed() {
    let mut world = world();
    let all = clients(&mut world, 2);
    for deaf in &all {
        world.wires.line(*deaf).stuck = true;
    }
    reply(&mut world, 1, 220_000);
    world.now = world.now + Duration::from_millis(1);
    // One turn without an event after it.
    assert_eq!(world.server.compose(Id(2), &[b'v'; 200_000]), 200_000);
    let batch = world.server.flush(world.now).unwrap();
    let now = world.now;
    world.relay.handle(now, world.link, Event::Data { end: 0, bytes: batch.as_slice() }, &mut world.wires);
    world.relay.end_of_turn(now, &mut world.wires);
    assert_eq!(aborted(&mut world, &all), [false; 2]);
    let newcomer = world.client(0, &peer(9));
    assert!(!world.wires.line(newcomer).aborted);
    assert_eq!(aborted(&mut world, &all), [true, false]);
}

#[test]
fn who_does_not_read_is_paused_first_and_goes_on_when_there_is_room() {
    let mut world = world();
    let all = clients(&mut world, 3);
    let (deaf, other) = (all[0], all[2]);
    world.wires.line(deaf).room = 0;
    world.wires.line(all[1]).room = 0;
    reply(&mut world, 1, 150_000);
    reply(&mut world, 2, 200_000);
    assert!(world.relay.status().memory_is_scarce);
    let granted = |world: &mut World, conn: Conn| world.wires.line(conn).granted;
    let before = granted(&mut world, deaf);
    for conn in [deaf, other] {
        world.data(conn, &[b'r'; 40_000]);
        world.exchange();
    }
    assert_eq!(granted(&mut world, deaf), before, "its requests are not read");
    world.data(other, &[b'r'; 24_000]);
    world.exchange();
    assert!(granted(&mut world, other) > 64 * 1024, "it has read everything");
    assert!(
        granted(&mut world, other) <= 64 * 1024 + 4 * 1024,
        "and is granted little while memory is scarce"
    );
    assert_eq!(world.relay.status().paused, 1);
    // The other one that does not read goes by itself: there is enough again.
    world.event(all[1], Event::Lost(spillway_transport::LostReason::Reset));
    assert!(!world.relay.status().memory_is_scarce);
    assert!(granted(&mut world, deaf) > before, "it is read again");
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
    for deaf in &all {
        world.wires.line(*deaf).room = 0;
    }
    reply(&mut world, 1, 100_000);
    reply(&mut world, 2, 240_000);
    world.data(all[0], &[b'r'; 64 * 1024]);
    world.exchange();
    let before = world.wires.line(all[0]).granted;
    world.wires.line(all[0]).room = 1 << 20;
    world.event(all[0], Event::Room);
    assert!(world.wires.line(all[0]).granted > before);
}

#[test]
fn never_readers_are_closed_while_memory_is_scarce_and_the_door_stays_open() {
    let mut world = world();
    let all = clients(&mut world, 3);
    for (deaf, bytes) in [(1, 20_000), (2, 200_000), (3, 120_000)] {
        world.wires.line(all[deaf as usize - 1]).room = 0;
        reply(&mut world, deaf, bytes);
    }
    assert!(world.relay.status().memory_is_scarce);
    let newcomer = world.client(0, &peer(9));
    assert!(!world.wires.line(newcomer).aborted, "it holds nothing");
    for _ in 0..9 {
        later(&mut world, Duration::from_secs(1));
    }
    assert_eq!(aborted(&mut world, &all), [false; 3]);
    later(&mut world, Duration::from_secs(2));
    assert_eq!(aborted(&mut world, &all), [false, true, false], "the largest is enough");
    assert!(!world.relay.status().memory_is_scarce);
    assert_eq!(world.relay.poll_timeout(), None, "nothing is looked for while there is enough");
}

#[test]
fn a_lower_limit_closes_the_largest_and_no_active_client() {
    let mut world = world();
    let all = clients(&mut world, 4);
    for (deaf, bytes) in [(1, 50_000), (2, 130_000), (3, 80_000)] {
        world.wires.line(all[deaf as usize - 1]).room = 0;
        reply(&mut world, deaf, bytes);
    }
    world.now = world.now + Duration::from_millis(1);
    let lower = Config { memory_bytes_max: 200_000, first_window_bytes: 256 * 1024, ..config() };
    world.relay.reconfigure(world.now, lower, Duration::from_secs(9), &mut world.wires).unwrap();
    assert_eq!(aborted(&mut world, &all), [false, true, false, false]);
    world.data(all[3], b"get x\r\n");
    world.exchange();
    assert_eq!(aborted(&mut world, &all), [false, true, false, false]);
}

/// The bytes of requests that a server's link does not take are somebody's, and bounded.
#[test]
fn requests_behind_a_link_that_is_stuck_are_within_the_bound() {
    let mut base = config();
    base.services[0].limits = Limits { pending_bytes_max: 4 << 20, ..Limits::default() };
    let mut world = World::new(Config { memory_bytes_max: 2 << 20, ..base });
    let all: Vec<Conn> = (1..=200).map(|number| world.client(0, &peer(number))).collect();
    world.exchange();
    world.wires.line(world.link).room = 0;
    for client in &all {
        let granted = world.wires.line(*client).granted as usize;
        world.data(*client, &vec![b'r'; granted]);
        let held = world.relay.status().buffered_bytes;
        assert!(held <= 2 << 20, "{held}");
    }
    world.wires.line(world.link).room = 1 << 30;
    world.event(world.link, Event::Room);
    while !world.exchange().is_empty() {
        later(&mut world, Duration::from_millis(1));
    }
    assert_eq!(world.relay.buffered_bytes(), 0);
}

/// What the transport holds is looked at when a turn begins, and there may be no other turn for long.
#[test]
fn a_connection_that_is_lost_within_a_turn_holds_nothing_after_it() {
    let mut world = world();
    let all = clients(&mut world, 2);
    world.wires.line(all[0]).stuck = true;
    reply(&mut world, 1, 50_000);
    later(&mut world, Duration::from_millis(1));
    assert_eq!(world.relay.status().buffered_bytes, 50_000);
    let now = world.now;
    world.relay.handle(now, all[1], Event::Data { end: 5, bytes: b"get x" }, &mut world.wires);
    world.wires.line(all[0]).aborted = true;
    world.relay.handle(now, all[0], Event::Lost(LostReason::Reset), &mut world.wires);
    world.relay.end_of_turn(now, &mut world.wires);
    assert_eq!(world.relay.status().buffered_bytes, 0);
}
