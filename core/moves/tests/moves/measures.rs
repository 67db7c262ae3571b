//! What servers measure of their moves.

use std::sync::atomic::{AtomicU64, Ordering};

use spillway_moves::{End, Step, TracedMove};

use crate::rack::Rack;

/// A clock that advances with each reading, for both servers.
fn tick() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn steps_of_a_move_have_times_in_their_order_and_its_blackout_is_counted() {
    let mut rack = Rack::new(100);
    for number in [1, 2] {
        rack.host(number).server.trace_moves(tick, 8);
    }
    rack.order(1, 2).unwrap();
    rack.run_until("the move ends", |rack| !rack.host(1).results.is_empty());
    let traced: Vec<TracedMove> =
        [1, 2].into_iter().flat_map(|number| rack.host(number).server.take_traced()).collect();
    assert_eq!(traced.iter().map(|traced| traced.end).collect::<Vec<_>>(), [End::Source, End::Target]);
    assert_eq!(traced[0].generation, traced[1].generation);
    let times = Step::ALL.map(|step| traced.iter().find_map(|traced| traced.at(step)));
    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{times:?}");

    let [source, target] = [1, 2].map(|number| rack.host(number).server.blackouts().clone());
    assert_eq!((source.count(), target.count()), (1, 0));
    assert!(source.max >= crate::rack::TURN, "the state and its answer each take a turn: {source:?}");
}
