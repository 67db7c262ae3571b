//! Random sequences of all events that can happen to a session and its carriers.

mod world;

use std::time::Duration;

use proptest::prelude::*;
use world::World;

#[derive(Clone, Debug)]
enum Act {
    ClientWrites(u64),
    ServerWrites(u64),
    ServerAccepts,
    /// The server receives the next frame of one of the newest paths.
    ServerHears(usize),
    ClientHears,
    Connect,
    Cut(usize),
    Replay(usize),
    Pass(u64),
    ClientFinishes,
    ServerFinishes,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..200u64).prop_map(Act::ClientWrites),
        6 => (1..200u64).prop_map(Act::ServerWrites),
        2 => Just(Act::ServerAccepts),
        30 => (0..3usize).prop_map(Act::ServerHears),
        20 => Just(Act::ClientHears),
        3 => Just(Act::Connect),
        2 => (0..3usize).prop_map(Act::Cut),
        1 => (0..5usize).prop_map(Act::Replay),
        5 => (1..60u64).prop_map(Act::Pass),
        1 => Just(Act::ClientFinishes),
        1 => Just(Act::ServerFinishes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// No byte is lost, repeated, reordered or altered (the world checks each), and all bytes arrive once a carrier works.
    #[test]
    fn streams_stay_whole(acts in proptest::collection::vec(act(), 1..400)) {
        let mut world = World::new();
        world.connect();
        for act in acts {
            let newest = |n: usize, world: &World| world.paths.len().saturating_sub(1 + n);
            match act {
                Act::ClientWrites(most) => if !world.client_app.has_finished { world.client_writes(most) },
                Act::ServerWrites(most) => if !world.server_app.has_finished { world.server_writes(most) },
                Act::ServerAccepts => world.server_accepts(),
                Act::ServerHears(n) => { let path = newest(n, &world); world.server_hears(path); }
                Act::ClientHears => { world.client_hears(); }
                Act::Connect => { world.connect(); }
                Act::Cut(n) => { let path = newest(n, &world); world.cut(path); }
                Act::Replay(n) => {
                    let words = world.said[n % world.said.len()];
                    world.replay(words);
                }
                Act::Pass(ms) => world.pass(Duration::from_millis(ms)),
                Act::ClientFinishes => world.client_finishes(),
                Act::ServerFinishes => world.server_finishes(),
            }
        }
        prop_assert!(world.gone.is_none() && !world.abandoned);
        // One carrier that works.
        world.connect();
        world.settle();
        prop_assert_eq!(world.server_app.read, world.client_app.written);
        prop_assert_eq!(world.client_app.read, world.server_app.written);
        prop_assert_eq!(world.server_app.heard_finish, world.client_app.has_finished);
        prop_assert_eq!(world.client_app.heard_finish, world.server_app.has_finished);
        prop_assert_eq!(world.client.kept(), 0);
        prop_assert!(world.client_app.is_accepted && world.table.len() == 1);
    }
}
