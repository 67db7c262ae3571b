//! Peers without a key at link ports.

mod world;

use std::time::Duration;

use spillway_batch::unauthenticated::YOUNG_MAX;
use spillway_transport::{Application, Conn, Event, LostReason};
use world::{World, config};

fn open(world: &mut World, strangers: &[Conn]) -> usize {
    strangers.iter().filter(|conn| !world.transport.record(**conn).aborted).count()
}

/// Rejected peers get the reason and may close by themselves. Those that do not close are bounded like other
/// unauthenticated peers, and are evicted before peers that have named a key.
#[test]
fn rejected_strangers_that_stay_are_bounded() {
    let mut world = World::new(config());
    let rejected = |world: &mut World, port: usize| {
        let conn = world.client(1, &format!("10.9.0.1:{port}"));
        world.data(
            conn,
            b"GET / HTTP/1.1\r\nHost: cache.example\r\n\r\nand more bytes, up to the length of a link's first message",
        );
        conn
    };
    let strangers: Vec<Conn> = (0..YOUNG_MAX + 100).map(|port| rejected(&mut world, 6000 + port)).collect();
    assert_eq!(world.relay.status().services[0].counters.refused.handshake as usize, strangers.len());
    assert_eq!(open(&mut world, &strangers), YOUNG_MAX);
    assert_eq!(world.relay.clients() as usize, YOUNG_MAX);
    assert_eq!(world.relay.status().services[0].counters.refused.crowded, 0, "each peer is rejected once");
    // Peers that have closed make room for others.
    for conn in &strangers[100..200] {
        world.event(*conn, Event::Lost(LostReason::Closed));
    }
    let others: Vec<Conn> = (0..100).map(|port| rejected(&mut world, 9000 + port)).collect();
    assert_eq!(open(&mut world, &others), 100);
    assert_eq!(open(&mut world, &strangers[200..]), YOUNG_MAX - 100);
    world.now = world.now + Duration::from_secs(60);
    world.relay.handle_timeout(world.now, &mut world.transport);
    assert_eq!((open(&mut world, &others), world.relay.clients()), (0, 0));
}
