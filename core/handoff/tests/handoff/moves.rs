//! Moves between servers behind the switch of core/rules: what is lost, late, repeated or of an earlier run.

use crate::rack::{Rack, flow, segment_at};
use spillway_handoff::{Cause, Event, Limits, MoveError, MoveResult, Obstacle, Sorted};
use spillway_rules::FlowState;
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Kind, ServerId, Status, View};

const STATE: &[u8] = b"the state of a connection";

fn import(state: &[u8], frames: Vec<Vec<u8>>, is_return: bool) -> Event {
    Event::Import { flow: flow(), state: Chunks::from(state), frames, is_return }
}

/// Server 2 has refused a move of server 1.
fn refused(reason: Reason) -> Event {
    Event::Refused { flow: flow(), source: ServerId(1), reason }
}

fn is_kind(payload: &[u8], kind: Kind) -> bool {
    payload.try_into().is_ok_and(|bytes: &[u8; 128]| View::of(&bytes[..]).is_ok_and(|v| v.kind() == Ok(kind)))
}

fn owner(rack: &Rack) -> (FlowState, ServerId) {
    let entry = rack.entry().expect("the flow has an entry");
    (entry.state, entry.owner.server)
}

#[test]
fn a_connection_moves_with_its_early_and_its_late_packets() {
    let mut rack = Rack::new();
    let (_, late) = rack.client_sends(1);
    rack.prepare(1, 2);
    assert_eq!(rack.client_reaches(2), (2, Sorted::Held));
    assert_eq!(rack.sort(1, &segment_at(1, 0)), Sorted::Stack, "before the export the connection is here");
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(STATE));
    assert_eq!(rack.sort(1, &late), Sorted::Forwarded);
    rack.deliver();
    let generation = rack.entry().unwrap().generation;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    let events = rack.events(2);
    assert_eq!(events[1..], [import(STATE, vec![segment_at(2, 2), segment_at(2, 1)], false)]);
    assert!(rack.may_transmit(2) && !rack.agent(1).may_continue(&flow()));
    assert_eq!((owner(&rack), rack.client_reaches(3)), ((FlowState::Owned, ServerId(2)), (2, Sorted::Stack)));
    // An even later packet reaches the connection, which is at the target now.
    assert_eq!(rack.sort(1, &segment_at(1, 4)), Sorted::Forwarded);
    rack.deliver();
    assert_eq!(rack.events(2), [Event::Deliver { flow: flow(), frames: vec![segment_at(2, 4)] }]);
    rack.advance(100);
    assert_eq!(rack.sort(1, &segment_at(1, 5)), Sorted::Held, "100 ms after the export");
}

#[test]
fn a_large_state_arrives_although_every_third_datagram_is_lost_and_all_are_repeated() {
    let mut rack = Rack::new();
    let state: Vec<u8> = (0..300_000).map(|at| (at % 249) as u8).collect();
    rack.prepare(1, 2);
    let mut sent = 0;
    rack.is_lost = Box::new(move |_, to, _| {
        sent += u32::from(to.is_some());
        to.is_some() && sent % 3 == 0
    });
    rack.copies = 2;
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(&state[..]));
    rack.advance(25);
    let events = rack.events(2);
    let [Event::Check { generation, state: arrived, .. }] = &events[..] else { panic!("{}", events.len()) };
    assert_eq!(arrived.to_vec(), state);
    let now = rack.now;
    rack.agent(2).checked(now, flow(), *generation, Ok(()));
    rack.advance(50);
    assert_eq!(rack.events(2), [import(&state, Vec::new(), false)], "one import");
    assert_eq!(rack.events(1), []);
    assert!(!rack.agent(1).may_continue(&flow()));
}

#[test]
fn a_connection_moves_on_and_back() {
    let mut rack = Rack::new();
    for (from, to) in [(1, 2), (2, 3), (3, 1), (1, 3)] {
        assert_eq!(rack.complete(from, to, STATE), [import(STATE, Vec::new(), false)]);
        assert_eq!(owner(&rack), (FlowState::Owned, ServerId(to)));
        assert_eq!(rack.client_reaches(u32::from(to)), (to, Sorted::Stack));
    }
}

#[test]
fn a_refused_state_comes_back_with_the_packets_that_the_target_held() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    assert_eq!(rack.client_reaches(7), (2, Sorted::Held));
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Err(Reason::TooLarge));
    // *own* of the source is on its way, and the switch still sends packets to the target.
    assert_eq!(rack.client_reaches(8), (2, Sorted::Forwarded));
    rack.is_lost = Box::new(|from, to, _| from == 1 && to.is_none());
    rack.deliver();
    rack.no_losses();
    rack.advance(20);
    let events: Vec<Event> = std::iter::from_fn(|| rack.agent(1).poll_event()).collect();
    let ended = Event::Ended { flow: flow(), result: MoveResult::Returned(Some(Reason::TooLarge)) };
    assert_eq!(events, [import(STATE, vec![segment_at(1, 7), segment_at(1, 8)], true), ended]);
    assert_eq!(rack.events(2), [refused(Reason::TooLarge)]);
    assert_eq!(rack.client_reaches(9), (1, Sorted::Stack));
}

#[test]
fn a_target_without_a_state_for_100_ms_gives_the_flow_back() {
    let mut rack = Rack::new();
    rack.prepare(1, 2);
    assert_eq!(rack.client_reaches(7), (2, Sorted::Held));
    rack.advance(101);
    assert_eq!(rack.events(2), [refused(Reason::Late)]);
    assert_eq!(
        rack.events(1),
        [Event::Deliver { flow: flow(), frames: vec![segment_at(1, 7)] }],
        "not exported yet"
    );
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(STATE));
    rack.deliver();
    assert_eq!(rack.events(1), [import(STATE, Vec::new(), true)]);
    assert_eq!(rack.client_reaches(8), (1, Sorted::Stack));
}

#[test]
fn a_source_takes_the_connection_back_from_a_target_that_stops() {
    let mut rack = Rack::new();
    rack.export(1, 2, STATE);
    rack.cut(2);
    rack.advance(50);
    assert_eq!(rack.events(1), [import(STATE, Vec::new(), true)]);
    assert_eq!(rack.client_reaches(1), (1, Sorted::Stack));
    // The target comes back: its *own* is stale.
    rack.no_losses();
    let (now, generation) = (rack.now, rack.entry().unwrap().generation);
    rack.agent(2).checked(now, flow(), generation - 1, Ok(()));
    rack.advance(150);
    assert_eq!(rack.events(2), [refused(Reason::Lost)]);
    assert!(!rack.may_transmit(2) && rack.may_transmit(1));
}

#[test]
fn a_source_whose_prepare_is_not_answered_keeps_the_connection() {
    let mut rack = Rack::new();
    rack.is_answer_lost = Box::new(|to, payload| to == 1 && is_kind(payload, Kind::Prepared));
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.deliver();
    assert_eq!(rack.entry().map(|entry| entry.state), Some(FlowState::Held));
    assert_eq!(rack.client_reaches(7), (2, Sorted::Held));
    rack.advance(60);
    assert_eq!(owner(&rack), (FlowState::Owned, ServerId(1)));
    assert_eq!(
        rack.agent(1).poll_event(),
        Some(Event::Ended { flow: flow(), result: MoveResult::Kept(Obstacle::Silence) })
    );
    rack.no_losses();
    rack.advance(150);
    assert_eq!(rack.client_reaches(8), (1, Sorted::Stack));
}

#[test]
fn a_move_that_the_target_refuses_before_prepared_ends_with_its_reason() {
    let mut rack = Rack::new();
    rack.agent(2).set_load(0, 0);
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.deliver();
    let kept = MoveResult::Kept(Obstacle::Target(Some(Reason::NoRoom)));
    assert_eq!(rack.agent(1).poll_event(), Some(Event::Ended { flow: flow(), result: kept }));
    assert_eq!(rack.events(2), [refused(Reason::NoRoom)]);
    assert_eq!((rack.agent(2).counters().refused(), rack.client_reaches(1)), (1, (1, Sorted::Stack)));
}

/// The source may rely on it that a server which has refused a move never owns the flow by it.
#[test]
fn a_server_that_has_refused_a_move_does_not_accept_its_repetition() {
    let mut rack = Rack::new();
    rack.agent(2).set_load(0, 0);
    // The relayed refusal and the datagram with its reason are lost.
    rack.cut_answers_of(2);
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.deliver();
    assert_eq!(rack.events(2), [refused(Reason::NoRoom)]);
    rack.agent(2).set_load(0, 10);
    rack.no_losses();
    rack.advance(100);
    assert_eq!(rack.events(2), []);
    let kept = MoveResult::Kept(Obstacle::Silence);
    assert_eq!(rack.agent(1).poll_event(), Some(Event::Ended { flow: flow(), result: kept }));
    assert_eq!(rack.client_reaches(1), (1, Sorted::Stack));
}

#[test]
fn a_move_to_a_server_that_the_switch_does_not_know_as_alive_ends_with_this_reason() {
    let mut rack = Rack::new();
    rack.cut(2);
    rack.advance(1_100);
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.advance(60);
    let kept = MoveResult::Kept(Obstacle::Switch(Status::NoOwner));
    assert_eq!(rack.agent(1).poll_event(), Some(Event::Ended { flow: flow(), result: kept }));
}

#[test]
fn a_late_prepared_changes_nothing() {
    let mut rack = Rack::new();
    rack.prepare(1, 2);
    let now = rack.now;
    rack.agent(1).not_exported(now, flow());
    rack.deliver();
    let before = rack.entry();
    rack.advance(300);
    assert_eq!(owner(&rack), (FlowState::Owned, ServerId(1)));
    assert_eq!(rack.entry().map(|entry| entry.generation), before.map(|entry| entry.generation));
    assert!(rack.may_transmit(1));
}

#[test]
fn a_source_that_does_not_hear_accepted_learns_from_the_entry_that_the_target_owns_the_flow() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    rack.is_lost = Box::new(|from, to, _| from == 2 && to == Some(1));
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert!(rack.agent(1).may_continue(&flow()), "the source keeps the state until the move has ended");
    rack.advance(60);
    assert!(!rack.agent(1).may_continue(&flow()));
    assert_eq!((rack.events(1), owner(&rack)), (vec![], (FlowState::Owned, ServerId(2))));
}

#[test]
fn a_target_whose_own_is_not_answered_asks_again_and_imports_once() {
    let mut rack = Rack::new();
    let generation = rack.export(1, 2, STATE);
    rack.is_answer_lost = Box::new(|to, payload| to == 2 && is_kind(payload, Kind::Own));
    let now = rack.now;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.advance(20);
    assert_eq!((rack.events(2), rack.may_transmit(2)), (vec![], false), "not confirmed");
    rack.no_losses();
    rack.advance(40);
    assert_eq!(rack.events(2), [import(STATE, Vec::new(), false)]);
}

#[test]
fn a_repeated_prepare_leaves_a_move_alone() {
    let mut rack = Rack::new();
    rack.is_answer_lost = {
        let mut lost = 2;
        Box::new(move |to, payload| {
            let is_lost = to == 1 && is_kind(payload, Kind::Prepared) && lost > 0;
            lost -= i32::from(is_lost);
            is_lost
        })
    };
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.deliver();
    assert_eq!(rack.client_reaches(7), (2, Sorted::Held));
    let generation = rack.entry().unwrap().generation;
    rack.advance(4);
    assert_eq!(rack.events(1), [Event::Export { flow: flow() }]);
    assert_eq!(rack.entry().unwrap().generation, generation);
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(STATE));
    rack.deliver();
    rack.events(2);
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(2), [import(STATE, vec![segment_at(2, 7)], false)], "the held packet is there");
}

/// The path from the switch may repeat a datagram, and so may an attacker who has recorded it.
#[test]
fn messages_of_the_switch_that_arrive_again_change_nothing() {
    let mut rack = Rack::new();
    let (sender, recorded) = std::sync::mpsc::channel();
    rack.is_answer_lost = Box::new(move |to, payload| {
        sender.send((to, payload.to_vec())).unwrap();
        false
    });
    rack.complete(1, 2, STATE);
    rack.complete(2, 1, STATE);
    for server in [1, 2] {
        while rack.agent(server).poll_event().is_some() {}
    }
    let entry = rack.entry();
    for (to, payload) in recorded.try_iter().collect::<Vec<_>>() {
        rack.receive(to, &payload);
        rack.deliver();
    }
    assert_eq!([1, 2].map(|server| rack.agent(server).poll_event()), [None, None]);
    assert_eq!(rack.entry().map(|entry| entry.generation), entry.map(|entry| entry.generation));
}

#[test]
fn messages_of_an_earlier_move_or_run_that_arrive_again_change_nothing() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.complete(2, 1, STATE);
    let earlier = std::mem::take(&mut rack.seen);
    let entry = rack.entry();
    for (to, payload) in &earlier {
        rack.receive(*to, payload);
    }
    rack.deliver();
    rack.restart_server(2);
    rack.advance(100);
    rack.events(1);
    for (to, payload) in &earlier {
        rack.receive(*to, payload);
    }
    rack.deliver();
    assert_eq!([1, 2].map(|server| rack.events(server)), [vec![], vec![]]);
    assert_eq!(rack.entry().map(|entry| entry.generation), entry.map(|entry| entry.generation));
}

#[test]
fn a_source_takes_the_connection_back_from_a_target_that_restarts() {
    let mut rack = Rack::new();
    rack.export(1, 2, STATE);
    rack.restart_server(2);
    rack.advance(100);
    assert_eq!(rack.events(1), [import(STATE, Vec::new(), true)]);
    assert_eq!(rack.events(2), []);
    assert_eq!(rack.client_reaches(1), (1, Sorted::Stack));
}

#[test]
fn of_two_sources_only_the_owner_moves_the_flow() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    let not_owned = Err(MoveError::NotOwned);
    assert_eq!(rack.agent(3).request_move(now, flow(), Some(ServerId(1))), not_owned);
    assert_eq!(rack.agent(1).request_move(now, flow(), Some(ServerId(3))), not_owned);
    assert_eq!(owner(&rack), (FlowState::Owned, ServerId(2)));
    rack.export(2, 3, STATE);
    assert_eq!(rack.agent(2).request_move(now, flow(), None), Err(MoveError::Moving));
}

/// The last acknowledgement of the client has not reached server 2, whose connection waits for it.
#[test]
fn a_server_whose_entry_a_fresh_syn_has_ended_drops_its_connection_and_imports_the_new_one() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.client_opens_again();
    assert_eq!(rack.sort_syn(70_000), Sorted::Held);
    rack.deliver();
    assert!(matches!(rack.events(1)[..], [Event::LoanEnded { .. }]), "the entry has ended");
    rack.prepare(1, 2);
    assert_eq!(rack.events(2), [Event::Drop { flow: flow(), cause: Cause::Foreign }]);
    assert!(!rack.may_transmit(2), "server 1 owns the flow");
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(&b"another state"[..]));
    rack.deliver();
    let generation = rack.entry().unwrap().generation;
    rack.agent(2).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(2)[1..], [import(b"another state", Vec::new(), false)]);
    assert_eq!(owner(&rack), (FlowState::Owned, ServerId(2)));
}

/// The operator has ended the entry, or a fresh SYN has, and server 1 moves no new connection.
#[test]
fn a_server_whose_entry_has_ended_gives_its_connection_up_when_it_is_to_move() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.client_opens_again();
    let now = rack.now;
    rack.agent(2).request_move(now, flow(), Some(ServerId(3))).unwrap();
    rack.deliver();
    assert_eq!(rack.events(2), [Event::Drop { flow: flow(), cause: Cause::Doubt }]);
    assert!(!rack.may_transmit(2) && rack.entry().is_none());
}

/// While server 2 asks for a move of the old connection.
#[test]
fn a_server_whose_entry_a_fresh_syn_has_ended_ends_its_move_of_the_old_connection() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.client_opens_again();
    rack.sort_syn(70_000);
    rack.deliver();
    rack.events(1);
    rack.cut_answers_of(2);
    let now = rack.now;
    rack.agent(2).request_move(now, flow(), Some(ServerId(3))).unwrap();
    rack.deliver();
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    rack.deliver();
    let events: Vec<Event> = std::iter::from_fn(|| rack.agent(2).poll_event()).collect();
    let dropped = Event::Drop { flow: flow(), cause: Cause::Foreign };
    let ended = Event::Ended { flow: flow(), result: MoveResult::LetGo };
    assert_eq!(events, [dropped, ended]);
    rack.no_losses();
    rack.advance(5);
    assert_eq!(rack.events(1), [Event::Export { flow: flow() }]);
}

/// The old connection has ended at server 2, which has not released its flow yet.
#[test]
fn a_server_imports_a_connection_with_the_ends_of_one_that_has_ended_there() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    let now = rack.now;
    rack.agent(2).connection_ended(now, flow());
    rack.client_opens_again();
    rack.sort_syn(70_000);
    rack.deliver();
    rack.events(1);
    assert_eq!(rack.complete(1, 2, STATE), [import(STATE, Vec::new(), false)]);
    rack.advance(2_000);
    assert_eq!(
        owner(&rack),
        (FlowState::Owned, ServerId(2)),
        "the flow of the new connection is not released"
    );
}

/// The switch does not answer for longer than the time after which an ended connection's flow is released.
#[test]
fn an_unsettled_move_of_a_connection_that_has_ended_lets_its_server_sleep_until_the_flow_can_be_released() {
    let mut rack = Rack::new();
    rack.complete(1, 2, STATE);
    rack.is_lost =
        Box::new(|from, to, payload| from == 2 && to.is_none() && !is_kind(payload, Kind::Heartbeat));
    let now = rack.now;
    rack.agent(2).request_move(now, flow(), Some(ServerId(3))).unwrap();
    rack.agent(2).connection_ended(now, flow());
    for _ in 0..1_500 {
        rack.advance(1);
        let now = rack.now;
        assert!(rack.agent(2).poll_timeout() > now, "everything that was due has been handled");
    }
    assert_eq!(owner(&rack), (FlowState::Owned, ServerId(2)));
    rack.no_losses();
    rack.advance(200);
    assert_eq!(rack.entry(), None);
}

#[test]
fn moves_and_their_memory_are_bounded() {
    let mut rack = Rack::with_limits(Limits { moves_max: 0, ..Limits::default() });
    let now = rack.now;
    assert_eq!(rack.agent(1).request_move(now, flow(), None), Err(MoveError::TooMany));
    let mut rack = Rack::with_limits(Limits { state_bytes_max: 10, held_bytes_max: 60, ..Limits::default() });
    rack.prepare(1, 2);
    assert_eq!(rack.client_reaches(1), (2, Sorted::Held), "58 bytes");
    assert_eq!(rack.client_reaches(2), (2, Sorted::Dropped));
    let now = rack.now;
    rack.agent(1).exported(now, flow(), Chunks::from(STATE));
    rack.deliver();
    let events: Vec<Event> = std::iter::from_fn(|| rack.agent(1).poll_event()).collect();
    let ended = Event::Ended { flow: flow(), result: MoveResult::Returned(Some(Reason::NoRoom)) };
    assert!(events.contains(&ended), "{events:?}");
}

/// Server 2 announces a connection that is to come from server 1. Returns the move's generation.
fn announced(rack: &mut Rack) -> u64 {
    rack.agent(2).announce_arrivals();
    let now = rack.now;
    rack.agent(1).request_move(now, flow(), Some(ServerId(2))).unwrap();
    // A repeated *prepare* is the same move.
    rack.advance(3);
    let events: Vec<Event> = std::iter::from_fn(|| rack.agent(2).poll_event()).collect();
    let [Event::Expect { generation, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(owner(rack).0, FlowState::Asked, "the switch sends no packet here before *prepared*");
    generation
}

#[test]
fn a_target_whose_packets_do_not_pass_the_agent_is_prepared_when_it_holds_them() {
    let mut rack = Rack::new();
    let generation = announced(&mut rack);
    let now = rack.now;
    rack.agent(2).expected(now, flow(), generation - 1, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(1), [], "an answer to an earlier move");
    rack.agent(2).expected(now, flow(), generation, Ok(()));
    rack.deliver();
    assert_eq!(rack.events(1), [Event::Export { flow: flow() }]);
}

#[test]
fn a_target_that_cannot_hold_packets_refuses() {
    let mut rack = Rack::new();
    let generation = announced(&mut rack);
    let now = rack.now;
    rack.agent(2).expected(now, flow(), generation, Err(Reason::NoRoom));
    rack.deliver();
    assert_eq!(rack.events(2), [refused(Reason::NoRoom)]);
    let kept = MoveResult::Kept(Obstacle::Target(Some(Reason::NoRoom)));
    assert_eq!(rack.agent(1).poll_event(), Some(Event::Ended { flow: flow(), result: kept }));
}
