//! Owners that are cut off, and a switch that loses its entries.

use crate::rack::{Rack, flow, segment_at, syn};
use spillway_handoff::{Cause, Event, MoveResult, Sorted};
use spillway_wire::Chunks;
use spillway_wire::switch::{Kind, ServerId, View};

const STATE: &[u8] = b"state";

#[test]
fn an_owner_that_is_cut_off_is_mute_before_it_loses_its_flows() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.cut(2);
    rack.advance(450);
    assert!(rack.may_transmit(2));
    rack.advance(100);
    assert!(!rack.may_transmit(2), "half of the timeout has passed");
    assert_eq!(rack.client_sends(1).0, 2, "the switch still waits for the owner");
    rack.advance(600);
    assert_eq!(rack.client_sends(2).0, 1);
    rack.no_losses();
    rack.advance(100);
    assert_eq!(rack.events(2), [Event::Drop { flow: flow(), cause: Cause::Silence }]);
}

#[test]
fn an_owner_takes_its_flow_back_after_the_switch_has_lost_all_entries() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.advance(200);
    rack.restart_switch();
    assert_eq!(rack.client_reaches(1), (1, Sorted::Held), "the packet is stray");
    rack.advance(300);
    assert_eq!(rack.client_reaches(2), (2, Sorted::Stack));
    assert_eq!(rack.agent(2).counters().reclaimed, 1);
    assert!(rack.may_transmit(2));
}

/// A copy of the client's SYN, which the network delivers late or somebody forges, must not open a second connection
/// beside the one that has moved: that one's owner could not take its flow back, and the second one's stack would reset
/// the client.
#[test]
fn a_late_syn_at_the_original_owner_leaves_the_moved_connection_alone() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.advance(200);
    assert_eq!(rack.sort_syn(1), Sorted::Held);
    assert_eq!(rack.sort(1, &segment_at(1, 7)), Sorted::Dropped);
    rack.advance(20);
    assert_eq!(rack.events(1), [], "the entry names server 2");
    rack.restart_switch();
    assert_eq!(rack.sort_syn(1), Sorted::Held);
    rack.advance(300);
    assert_eq!(rack.events(1), [], "server 2 takes the flow back");
    assert_eq!((rack.agent(2).counters().reclaimed, rack.client_sends(2).0), (1, 2));
}

#[test]
fn a_new_connection_waits_until_the_switch_has_confirmed_that_the_moved_one_has_ended() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    rack.agent(2).connection_ended(now, flow());
    rack.advance(2_000);
    assert!(rack.entry().is_none());
    assert_eq!(rack.sort_syn(1), Sorted::Held);
    rack.deliver();
    assert_eq!(rack.events(1), [Event::LoanEnded { flow: flow(), frames: vec![syn(1)] }]);
    assert_eq!(rack.client_reaches(2), (1, Sorted::Stack));
}

#[test]
fn an_owner_that_never_takes_its_flow_back_blocks_it_for_a_few_seconds_only() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.restart_server(2);
    rack.restart_switch();
    rack.advance(1_000);
    assert_eq!(rack.sort_syn(1), Sorted::Held);
    rack.advance(5_000);
    assert_eq!(rack.events(1), [], "server 2 may still have taken the flow back");
    assert_eq!(rack.sort_syn(2), Sorted::Held);
    rack.deliver();
    assert_eq!(rack.events(1), [Event::LoanEnded { flow: flow(), frames: vec![syn(2)] }]);
}

/// The original owner's stack may reset the client only when no other server can transmit for the flow.
#[test]
fn a_loan_to_a_silent_server_ends_when_the_flow_has_returned() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.cut(2);
    rack.advance(900);
    let stray = segment_at(1, 1);
    assert_eq!(rack.sort(1, &stray), Sorted::Held);
    rack.advance(20);
    assert_eq!(rack.events(1), [], "the entry names server 2");
    rack.advance(200);
    assert!(!rack.may_transmit(2));
    let (server, frame) = rack.client_sends(2);
    assert_eq!((server, rack.sort(1, &frame)), (1, Sorted::Held), "the switch has not answered yet");
    assert_eq!(rack.sort(1, &stray), Sorted::Dropped, "one packet waits");
    rack.deliver();
    assert_eq!(rack.events(1), [Event::LoanEnded { flow: flow(), frames: vec![frame] }]);
    assert_eq!(rack.client_reaches(3), (1, Sorted::Stack));
}

fn import(is_return: bool) -> Event {
    Event::Import { flow: flow(), state: Chunks::from(STATE), frames: Vec::new(), is_return }
}

/// The target has not owned the flow, and says so: the source continues the connection.
#[test]
fn a_connection_returns_when_the_switch_loses_its_entries_during_the_move() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    rack.restart_switch();
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.advance(300);
    assert_eq!(rack.events(1), [import(true)]);
    assert!(matches!(rack.events(2)[..], [Event::Refused { .. }]));
    assert!(![1, 2].into_iter().any(|server| rack.agent(server).may_continue(&flow())));
    assert_eq!((rack.may_transmit(1), rack.may_transmit(2)), (true, false));
    assert_eq!(rack.client_reaches(1), (1, Sorted::Stack));
}

/// As above, between two servers that are not the original owner: the source requests the flow from the original owner.
#[test]
fn a_connection_of_another_server_returns_too_when_the_switch_loses_its_entries() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.export(2, 3, STATE);
    rack.restart_switch();
    rack.advance(300);
    assert!(rack.events(2).contains(&import(true)));
    assert_eq!(rack.agent(2).counters().reclaimed, 1);
    assert_eq!([1, 2, 3].map(|server| rack.may_transmit(server)), [true, true, false]);
    assert_eq!(rack.client_reaches(1), (2, Sorted::Stack));
}

/// The target has owned the flow; only *accepted* was lost.
#[test]
fn a_connection_that_had_moved_when_the_switch_lost_its_entries_stays_moved() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    rack.is_lost = Box::new(|from, to, _| (from, to) == (2, Some(1)));
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(2), [import(false)]);
    rack.restart_switch();
    rack.no_losses();
    for seq in 0..300 {
        rack.advance(1);
        // The client sends all the time, also between *accepted* and the target's *reclaim*.
        rack.client_reaches(seq);
    }
    assert_eq!(rack.events(1), []);
    assert_eq!((rack.agent(2).counters().reclaimed, rack.may_transmit(2)), (1, true));
    assert_eq!(rack.client_reaches(1), (2, Sorted::Stack));
}

/// As above, and the target learns much later than the source that the entries are lost: until it requests the flow again, the
/// missing entry does not show that the connection has ended, and the client must not be reset.
#[test]
fn the_client_is_not_reset_before_the_target_takes_its_flow_back() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    rack.is_lost = Box::new(|from, to, _| (from, to) == (2, Some(1)));
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(2), [import(false)]);
    rack.restart_switch();
    rack.no_losses();
    rack.is_answer_lost = Box::new(|to, _| to == 2);
    for seq in 0..400 {
        rack.advance(1);
        rack.client_reaches(seq);
    }
    let events: Vec<Event> = std::iter::from_fn(|| rack.agent(1).poll_event()).collect();
    let moved = Event::Ended { flow: flow(), result: MoveResult::Moved };
    assert_eq!((events, rack.agent(2).counters().reclaimed), (vec![moved], 0));
    rack.no_losses();
    rack.advance(300);
    assert_eq!((rack.agent(2).counters().reclaimed, rack.may_transmit(2)), (1, true));
    assert_eq!((rack.client_reaches(1), rack.events(1)), ((2, Sorted::Stack), vec![]));
}

/// *prepared* always arrives too late, over a path that is narrow: the original owner begins one attempt after the other, and
/// there is one at any time. The connection's owner, which may not transmit meanwhile, gives up all the same, so that the client
/// is reset and does not wait for its own timeout.
#[test]
fn an_owner_whose_attempts_all_fail_gives_its_connection_up() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.restart_switch();
    rack.is_lost = Box::new(|from, to, payload| {
        let kind = View::of(payload).ok().and_then(|view| view.kind().ok());
        from == 2 && to.is_none() && kind == Some(Kind::Prepared)
    });
    rack.advance(2_900);
    let dropped = Event::Drop { flow: flow(), cause: Cause::Restart };
    assert!(!rack.may_transmit(2) && !rack.events(2).contains(&dropped));
    rack.advance(500);
    assert!(rack.events(2).contains(&dropped));
    rack.no_losses();
    rack.advance(6_000);
    assert!(![1, 2].into_iter().any(|server| rack.agent(server).may_continue(&flow())));
    rack.events(1);
    assert_eq!(rack.client_reaches(1), (1, Sorted::Held));
    rack.deliver();
    assert!(matches!(rack.events(1)[..], [Event::LoanEnded { .. }]));
}

/// The original owner cannot find out whether the target has the connection. It resets the client after a few seconds.
#[test]
fn a_connection_whose_target_is_silent_ends_when_the_switch_has_lost_its_entries() {
    let mut rack = Rack::new();
    rack.export(1, 2, STATE);
    rack.cut(2);
    rack.restart_switch();
    rack.advance(2_900);
    assert_eq!(rack.events(1), []);
    rack.advance(700);
    assert_eq!(rack.events(1), [Event::Gone { flow: flow(), cause: Cause::Restart }]);
    assert_eq!(rack.client_reaches(1), (1, Sorted::Held));
    rack.advance(5_100);
    assert_eq!(rack.events(1), [], "server 2 may still take the flow back");
    let (_, frame) = rack.client_sends(2);
    assert_eq!(rack.sort(1, &frame), Sorted::Held);
    rack.deliver();
    assert_eq!(rack.events(1), [Event::LoanEnded { flow: flow(), frames: vec![frame] }]);
}

#[test]
fn the_entry_ends_after_the_connection() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    rack.agent(2).connection_ended(now, flow());
    rack.advance(900);
    assert!(rack.entry().is_some(), "last segments may have to be repeated");
    rack.advance(200);
    assert!(rack.entry().is_none());
}

/// Otherwise packets of the client's next connection with the same ends would always go to the server that has none.
#[test]
fn the_entry_of_a_connection_that_had_ended_ends_also_after_the_switch_has_lost_its_entries() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    rack.agent(2).connection_ended(now, flow());
    rack.advance(500);
    rack.restart_switch();
    rack.advance(400);
    assert!(rack.entry().is_some(), "last segments may have to be repeated");
    assert_eq!(rack.agent(2).counters().reclaimed, 1);
    rack.advance(400);
    assert!(rack.entry().is_none());
    rack.advance(6_000);
    assert_eq!(rack.sort_syn(1), Sorted::Held);
    rack.deliver();
    assert_eq!(rack.events(1), [Event::LoanEnded { flow: flow(), frames: vec![syn(1)] }]);
}

/// A release with the generation of a lost entry would fail.
#[test]
fn the_release_of_a_flow_waits_until_it_is_taken_back() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    rack.agent(2).connection_ended(now, flow());
    rack.cut(1);
    rack.restart_switch();
    rack.advance(1_500);
    assert!(rack.entry().is_none() && rack.agent(2).counters().reclaimed == 0);
    rack.no_losses();
    rack.advance(1_000);
    assert_eq!(rack.agent(2).counters().reclaimed, 1);
    assert!(rack.entry().is_none(), "released");
}

#[test]
fn a_server_without_an_answered_heartbeat_begins_no_move() {
    let mut rack = Rack::new();
    rack.cut(1);
    rack.advance(600);
    let now = rack.now;
    assert!(rack.agent(1).request_move(now, flow(), Some(ServerId(2))).is_err());
    rack.agent(1).exported(now, flow(), Chunks::from(STATE));
    assert_eq!(rack.events(1), [], "answers to events that never were change nothing");
}
