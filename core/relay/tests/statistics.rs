//! Counters and status of a relay.

mod world;

use core::time::Duration;

use spillway_batch::{CloseReason, Id, Limits, PolicyKind};
use spillway_relay::{ClientKind, Flow, LinkFailures, Stalls};
use spillway_transport::{Application, Conn, Event, LostReason};
use world::{Observed, World, config};

const CLIENT: &str = "10.9.0.1:5000";
const STEP: Duration = Duration::from_millis(3);

fn stalls(world: &World) -> Stalls {
    world.relay.status().services[0].counters.stalls
}

#[test]
fn a_stall_for_want_of_credit_is_counted_and_timed() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1000, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.data(client, &[b'x'; 600]);
    assert_eq!(stalls(&world), Stalls::default(), "a part of the grant is left");
    world.data(client, &[b'x'; 400]);
    world.exchange();
    assert_eq!(stalls(&world), Stalls { credit: 1, ..Stalls::default() });
    let (clients, _) = world.relay.client_statuses(None, 1);
    assert_eq!(clients[0].stalled_since, Some(world.now));
    world.now = world.now + STEP;
    world.server.consumed(Id(1), 700).unwrap();
    world.exchange();
    let ended = Stalls { credit: 1, credit_ns: 3_000_000, ..Stalls::default() };
    assert_eq!(stalls(&world), ended);
    world.now = world.now + STEP;
    assert_eq!(stalls(&world), ended, "the stall has ended");
    assert_eq!(world.relay.client_statuses(None, 1).0[0].stalled_since, None);
}

#[test]
fn a_stall_of_the_link_ends_with_its_client_too() {
    let mut world = World::with_server(config(), Limits { window_bytes: 1 << 20, ..Limits::default() });
    let client = world.client(0, CLIENT);
    world.exchange();
    world.transport.record(world.link).room = 10;
    for _ in 0..16 {
        world.data(client, &[b'x'; 4096]);
    }
    assert_eq!(stalls(&world), Stalls { link: 1, ..Stalls::default() });
    world.now = world.now + STEP;
    world.event(client, Event::Lost(LostReason::Reset));
    assert_eq!(stalls(&world), Stalls { link: 1, link_ns: 3_000_000, ..Stalls::default() });
}

#[test]
fn counters_survive_the_loss_of_a_link() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.data(client, b"get x\r\n");
    world.data(client, b"get y\r\n");
    world.exchange();
    world.server.compose(Id(1), b"END\r\n");
    world.exchange();
    let (clients, total) = world.relay.client_statuses(Some("cache"), 10);
    assert_eq!((clients[0].bytes_in, clients[0].bytes_out, total), (14, 5, 1));
    assert_eq!(clients[0].since, world.now);
    assert_eq!(world.relay.client_statuses(Some("other"), 10).1, 0, "no such service");
    assert_eq!(world.relay.client_statuses(None, 0), (vec![], 1), "the list is bounded, the total is not");

    let before = world.relay.status().services[0].clone();
    assert_eq!(before.counters.requests, Flow { bytes: 14, segments: 2 });
    assert_eq!(before.counters.replies, Flow { bytes: 5, segments: 1 });
    assert_eq!(before.batches.bytes.count(), before.traffic.batches_sent);
    assert_eq!(before.batches.bytes.sum(), before.traffic.bytes_sent);
    assert_eq!(before.batches.messages.sum(), before.traffic.messages_sent);
    world.event(world.link, Event::Lost(LostReason::Reset));
    let after = world.relay.status().services[0].clone();
    assert_eq!((after.batches, after.counters.requests), (before.batches, before.counters.requests));
    assert_eq!(after.counters.link_failures, LinkFailures { lost: 1, ..LinkFailures::default() });
    world.link_comes_up(Limits::default());
    let again = world.relay.status().services[0].clone();
    assert_eq!(again.counters.links_up, 2);
    assert!(again.batches.bytes.count() > after.batches.bytes.count());
}

#[test]
fn broken_connections_are_counted_and_lingering_clients_listed() {
    let mut world = World::new(config());
    let (broken, leaving) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    world.transport.record(leaving).room = 1;
    world.server.compose(Id(2), b"rest");
    world.server.close(Id(2), CloseReason::Normal);
    world.server.close(Id(1), CloseReason::Protocol);
    world.exchange();
    assert!(world.transport.record(broken).aborted);
    assert_eq!(world.relay.status().services[0].counters.connections_broken, 1);
    let (clients, total) = world.relay.client_statuses(None, 10);
    assert_eq!((clients[0].kind, clients[0].buffered, total), (ClientKind::Leaving, 3, 1));
    assert_eq!(clients[0].client, "10.9.0.1:5001".parse().unwrap());
}

/// Random turns with requests, replies, and clients that connect and disconnect.
#[test]
fn a_link_sends_one_batch_for_each_delay_at_most() {
    const DELAY: Duration = Duration::from_micros(300);
    const BYTES: usize = 64 * 1024;
    let mut world = World::new(config());
    let mut config = config();
    config.services[0].policy = PolicyKind::Fixed { delay: DELAY, bytes: BYTES };
    world.relay.reconfigure(world.now, config, Duration::ZERO, &mut world.transport).unwrap();
    let sent = |world: &World| world.relay.status().services[0].traffic.batches_sent;
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut clients: Vec<Conn> =
        (0..40).map(|n| world.client(0, &format!("10.9.0.1:{}", 1000 + n))).collect();
    let (first, begin, end) = (sent(&world), world.now, world.now + Duration::from_secs(1));
    let (mut latest, mut count, mut next_turn) = (begin, first, begin);
    while world.now < end {
        let due = world.relay.poll_timeout().filter(|due| *due < next_turn);
        world.now = due.map_or(next_turn, |due| due.max(world.now));
        if due.is_some() {
            world.relay.handle_timeout(world.now, &mut world.transport);
            world.relay.end_of_turn(world.now, &mut world.transport);
        } else {
            next_turn = world.now + Duration::from_nanos(1 + random(60_000));
            let chosen = random(40) as usize;
            if random(50) == 0 {
                world.event(clients[chosen], Event::Lost(LostReason::Closed));
                clients[chosen] = world.client(0, &format!("10.9.0.2:{}", 1000 + random(9000)));
            } else {
                world.data(clients[chosen], b"get x\r\n");
            }
        }
        for observed in world.exchange() {
            match observed {
                Observed::Data(id, bytes) => {
                    world.server.consumed(Id(id), bytes.len()).unwrap();
                    world.server.compose(Id(id), &[b'x'; 1000]);
                }
                Observed::Closed(id, reason) => world.server.close(Id(id), reason),
                _ => {}
            }
        }
        world.exchange();
        if sent(&world) > count {
            count += 1;
            assert_eq!(sent(&world), count, "one batch per turn");
            assert!(count == first + 1 || world.now.since(latest) >= DELAY, "{:?}", world.now.since(latest));
            latest = world.now;
        }
    }
    assert!((3_300..=3_334).contains(&(count - first)), "{} batches", count - first);

    // Full batches leave at once.
    let full = |world: &World| world.relay.status().services[0].batches.bytes;
    let before = full(&world);
    for client in &clients[..10] {
        world.data(*client, &[b'x'; BYTES / 5]);
    }
    let grown = full(&world).sum() - before.sum();
    assert_eq!(full(&world).count() - before.count(), 2);
    assert!(grown >= 2 * BYTES as u64, "{grown}");
}
