//! Random sequences of events of a session and its carriers.

mod world;

use std::time::Duration;

use proptest::prelude::*;
use world::World;

#[derive(Clone, Debug)]
enum Action {
    ClientWrites(u64),
    ServerWrites(u64),
    ServerAccepts,
    /// The server receives the next frame of one of the newest paths.
    ServerReceives(usize),
    ClientReceives,
    Connect,
    LoseCarrier(usize),
    Replay(usize),
    AdvanceTime(u64),
    ClientFinishes,
    ServerFinishes,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1..200u64).prop_map(Action::ClientWrites),
        6 => (1..200u64).prop_map(Action::ServerWrites),
        2 => Just(Action::ServerAccepts),
        30 => (0..3usize).prop_map(Action::ServerReceives),
        20 => Just(Action::ClientReceives),
        3 => Just(Action::Connect),
        2 => (0..3usize).prop_map(Action::LoseCarrier),
        1 => (0..5usize).prop_map(Action::Replay),
        5 => (1..60u64).prop_map(Action::AdvanceTime),
        1 => Just(Action::ClientFinishes),
        1 => Just(Action::ServerFinishes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes are not lost, repeated, reordered or altered (the world checks each), and all arrive once a carrier works.
    #[test]
    fn all_bytes_arrive_once_in_order_and_unaltered(actions in proptest::collection::vec(action(), 1..400)) {
        let mut world = World::new();
        world.connect();
        for action in actions {
            let path_of_age = |age: usize, world: &World| world.paths.len().saturating_sub(1 + age);
            match action {
                Action::ClientWrites(bytes_max) => if !world.client_app.has_finished { world.client_writes(bytes_max) },
                Action::ServerWrites(bytes_max) => if !world.server_app.has_finished { world.server_writes(bytes_max) },
                Action::ServerAccepts => world.server_accepts(),
                Action::ServerReceives(age) => { let path = path_of_age(age, &world); world.server_receives(path); }
                Action::ClientReceives => { world.client_receives(); }
                Action::Connect => { world.connect(); }
                Action::LoseCarrier(age) => { let path = path_of_age(age, &world); world.lose_carrier(path); }
                Action::Replay(index) => {
                    let message = world.opening_messages[index % world.opening_messages.len()];
                    world.replay(message);
                }
                Action::AdvanceTime(ms) => world.advance_time(Duration::from_millis(ms)),
                Action::ClientFinishes => world.client_finishes(),
                Action::ServerFinishes => world.server_finishes(),
            }
        }
        prop_assert!(
            world.gone.is_none() && !world.abandoned,
            "the session should be neither gone nor abandoned"
        );
        // The last carrier works until everything has arrived.
        world.connect();
        world.settle();
        prop_assert_eq!(world.server_app.read, world.client_app.written);
        prop_assert_eq!(world.client_app.read, world.server_app.written);
        prop_assert_eq!(world.server_app.received_finish, world.client_app.has_finished);
        prop_assert_eq!(world.client_app.received_finish, world.server_app.has_finished);
        prop_assert_eq!(world.client.unacknowledged_bytes(), 0);
        prop_assert!(
            world.client_app.is_accepted && world.table.len() == 1,
            "the session should be accepted and in the table"
        );
    }
}
