use core::time::Duration;

use super::*;
use crate::budget::Budget;
use crate::test_flow::{flow, site};

fn ms(milliseconds: u64) -> Time {
    Time::ZERO + Duration::from_millis(milliseconds)
}

fn seen(status: Status, state: FlowState, generation: u64, is_ours: bool) -> Seen {
    Seen { status, state, generation, is_ours }
}

fn parts() -> (MoveTimes, HeldFrames) {
    (MoveTimes::default(), HeldFrames::new(&Budget::new(1 << 20)))
}

fn asking() -> Source {
    let mut source = Source::new(Time(0), flow(1), 7, None, parts());
    assert!(matches!(source.poll(Time(0)), Some(Request::Prepare { replaces: 7, .. })));
    source
}

fn exporting() -> Source {
    let mut source = asking();
    assert_eq!(source.handle_prepared(Time(1), 8, Import::Ready(site())), Some(Outcome::Export));
    source
}

fn sending() -> Source {
    let mut source = exporting();
    source.exported(Time(0), Chunks::from(&b"state"[..]), Window::new());
    source
}

/// Calls both polls at each of the source's times up to `until`. Returns the requests with their times.
fn requests_until(source: &mut Source, until: Time) -> alloc::vec::Vec<(u64, Request)> {
    let mut all = alloc::vec::Vec::new();
    let mut now = Time(0);
    while let Some(at) = source.poll_timeout().map(|at| at.max(now)).filter(|at| *at <= until) {
        now = at;
        while source.poll_part(now).is_some() {}
        all.extend(source.poll(now).map(|request| (now.as_nanos() / 1_000_000, request)));
    }
    all
}

#[test]
fn prepare_is_sent_five_times_and_then_the_entry_is_asked() {
    let mut source = Source::new(Time(0), flow(1), 7, None, parts());
    let requests = requests_until(&mut source, ms(63));
    let times: alloc::vec::Vec<_> = requests.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [0, 1, 3, 7, 15, 31, 47, 63]);
    let is_prepare = |(_, request): &(u64, Request)| matches!(request, Request::Prepare { .. });
    assert!(requests[..5].iter().all(is_prepare));
    assert!(requests[5..].iter().all(|(_, request)| matches!(request, Request::Get { .. })));
}

#[test]
fn a_state_whose_parts_are_not_acknowledged_leads_to_own_every_16_ms() {
    let requests = requests_until(&mut sending(), ms(70));
    let own = Request::Own { flow: flow(1), replaces: 8 };
    assert_eq!(requests, [(31, own), (47, own), (63, own)]);
}

#[test]
fn a_target_that_has_the_state_and_is_silent_is_doubted() {
    let mut source = sending();
    assert!(source.poll_part(Time(0)).is_some());
    source.handle_received(ms(1), 9, Received { through: 1, beyond: 0 });
    source.handle_received(ms(2), 8, Received { through: 1, beyond: 0 });
    source.handle_received(ms(20), 8, Received { through: 1, beyond: 0 });
    let own = Request::Own { flow: flow(1), replaces: 8 };
    assert_eq!(requests_until(&mut source, ms(40)), [(33, own)], "31 ms after the first acknowledgement");
}

#[test]
fn accepted_ends_the_move_whatever_the_source_waits_for() {
    let mut source = sending();
    assert_eq!(source.handle_accepted(9), None, "another move");
    assert_eq!(source.handle_accepted(8), Some(Outcome::Moved));
    source.doubt(ms(1));
    assert_eq!(source.handle_accepted(8), Some(Outcome::Moved));
    assert_eq!(exporting().handle_accepted(8), None, "nothing was exported");
}

#[test]
fn prepared_of_an_earlier_move_or_a_second_time_changes_nothing() {
    assert_eq!(asking().handle_prepared(Time(1), 7, Import::Ready(site())), None);
    assert_eq!(sending().handle_prepared(Time(1), 8, Import::Ready(site())), None);
    assert_eq!(exporting().handle_prepared(Time(1), 8, Import::Ready(site())), None);
}

#[test]
fn a_source_that_gives_up_before_the_export_takes_the_flow_back() {
    let mut source = Source::new(Time(0), flow(1), 7, None, parts());
    requests_until(&mut source, ms(31));
    assert_eq!(source.handle_answer(ms(32), seen(Status::Ok, FlowState::Asked, 8, true)), None);
    assert!(matches!(source.poll(ms(32)), Some(Request::Own { replaces: 8, .. })));
    let kept = source.handle_answer(ms(33), seen(Status::Ok, FlowState::Owned, 9, true));
    assert_eq!(kept, Some(Outcome::Kept { generation: 9 }));
}

#[test]
fn a_late_prepared_is_answered_by_own() {
    let mut source = Source::new(Time(0), flow(1), 7, None, parts());
    requests_until(&mut source, ms(31));
    assert_eq!(source.handle_prepared(ms(32), 8, Import::Ready(site())), None, "no export");
    assert!(matches!(source.poll(ms(32)), Some(Request::Own { replaces: 8, .. })));
}

#[test]
fn refusals_leave_the_connection_where_it_is() {
    let refused = asking().handle_prepared(Time(1), 9, Import::Refused);
    assert_eq!(refused, Some(Outcome::Kept { generation: 9 }));
    let full = seen(Status::Full, FlowState::None, 0, false);
    assert_eq!(asking().handle_answer(Time(1), full), Some(Outcome::Kept { generation: 0 }));
    let stale = seen(Status::Stale, FlowState::Owned, 20, true);
    assert_eq!(asking().handle_answer(Time(1), stale), Some(Outcome::Kept { generation: 20 }));
    let foreign = seen(Status::Forbidden, FlowState::Owned, 20, false);
    assert_eq!(asking().handle_answer(Time(1), foreign), Some(Outcome::LetGo));
}

#[test]
fn in_doubt_only_a_confirmed_own_continues_the_connection() {
    let answer = |status, state, is_ours| {
        let mut source = sending();
        source.doubt(ms(1));
        source.handle_answer(ms(2), seen(status, state, 9, is_ours))
    };
    assert_eq!(answer(Status::Ok, FlowState::Owned, true), Some(Outcome::Returned { generation: 9 }));
    assert_eq!(answer(Status::Forbidden, FlowState::Owned, false), Some(Outcome::Moved));
    // The target may have owned the flow, and died.
    assert_eq!(answer(Status::Stale, FlowState::Owned, true), Some(Outcome::LetGo));
    assert_eq!(answer(Status::NoEntry, FlowState::None, false), Some(Outcome::LetGo));
    assert_eq!(answer(Status::NoOwner, FlowState::None, false), None);
    assert_eq!(answer(Status::Replayed, FlowState::Owned, true), None);
}

#[test]
fn a_refused_state_leads_to_own_at_once() {
    let mut source = sending();
    assert_eq!(source.handle_refused(Time(2), 7, Reason::NoRoom), None);
    assert_eq!(source.poll(Time(2)), None, "another move was refused");
    assert_eq!(source.handle_refused(Time(2), 8, Reason::NoRoom), None);
    assert_eq!(source.refusal(), Some(Reason::NoRoom));
    assert!(matches!(source.poll(Time(2)), Some(Request::Own { replaces: 8, .. })));
}

#[test]
fn the_cause_of_a_kept_connection_is_known() {
    let mut source = asking();
    assert_eq!(source.obstacle(), Obstacle::Silence);
    source.handle_answer(Time(1), seen(Status::NoOwner, FlowState::None, 0, false));
    assert_eq!(source.obstacle(), Obstacle::Switch(Status::NoOwner));
    source.handle_refused(Time(2), 7, Reason::NoService);
    source.handle_prepared(Time(2), 8, Import::Refused);
    assert_eq!(source.obstacle(), Obstacle::Target(None), "the reason was that of an earlier move");
    source.handle_refused(Time(2), 8, Reason::NoRoom);
    assert_eq!(source.obstacle(), Obstacle::Target(Some(Reason::NoRoom)));
    let mut source = exporting();
    source.not_exported(Time(1));
    assert_eq!(source.obstacle(), Obstacle::NotExported);
}

/// A source that the loss of the switch's entries has found with an exported connection.
fn stranded() -> Source {
    let mut source = sending();
    assert_eq!(source.handle_lost_entries(ms(1), ms(101)), None);
    source
}

#[test]
fn without_entries_the_target_is_asked_whether_it_has_the_connection() {
    let mut source = stranded();
    let mut times = alloc::vec::Vec::new();
    while times.len() < 3 {
        let now = source.poll_timeout().unwrap();
        assert_eq!(source.poll(now), None, "the switch has no entry");
        let (to, body) = source.poll_part(now).unwrap();
        assert!(to.generation == 8 && matches!(body, Body::State(_)) && source.poll_part(now).is_none());
        times.push(now.as_nanos() / 1_000_000);
    }
    assert_eq!(times, [1, 17, 33]);
    assert!(source.state().is_some() && !source.is_expired(ms(100)) && source.is_expired(ms(101)));
    assert_eq!(source.handle_accepted(8), Some(Outcome::Moved));
    assert_eq!(source.handle_refused(ms(2), 7, Reason::NoMove), None, "of another move");
    let returned = Some(Outcome::Returned { generation: 0 });
    assert_eq!(source.handle_refused(ms(2), 8, Reason::NoMove), returned);
}

#[test]
fn a_target_that_had_refused_before_the_entries_were_lost_cannot_have_the_connection() {
    let mut source = sending();
    source.handle_refused(Time(2), 8, Reason::NoRoom);
    let returned = Some(Outcome::Returned { generation: 0 });
    assert_eq!(source.handle_lost_entries(ms(1), ms(101)), returned);
}

/// A target that has given the flow back answers each part that arrives later.
#[test]
fn the_answers_to_late_parts_do_not_hide_why_the_target_has_refused() {
    let mut source = sending();
    for reason in [Reason::Late, Reason::NoMove] {
        source.handle_refused(Time(2), 8, reason);
        assert_eq!(source.refusal(), Some(Reason::Late));
    }
    let mut source = sending();
    for reason in [Reason::NoMove, Reason::Late] {
        source.handle_refused(Time(2), 8, reason);
        assert_eq!(source.refusal(), Some(reason));
    }
}

/// The target has had no room at first, or the datagram is one of an earlier move.
#[test]
fn a_refusal_before_prepared_says_nothing_about_a_target_that_is_ready() {
    let mut source = asking();
    source.handle_refused(Time(1), 8, Reason::NoRoom);
    assert_eq!(source.handle_prepared(Time(1), 9, Import::Ready(site())), Some(Outcome::Export));
    source.exported(Time(2), Chunks::from(&b"state"[..]), Window::new());
    assert_eq!(source.handle_lost_entries(ms(1), ms(101)), None, "the target is asked");
    assert!(source.is_stranded());
}

/// The earlier run may have continued the connection: a *refused* of the new one says nothing about that.
#[test]
fn without_entries_a_restarted_target_is_not_believed() {
    assert_eq!(stranded().handle_new_run(ms(2)), Some(Outcome::LetGo));
    let mut source = sending();
    assert_eq!(source.handle_new_run(ms(1)), None, "the entry decides");
    assert_eq!(source.handle_lost_entries(ms(2), ms(102)), Some(Outcome::LetGo));
    let mut source = exporting();
    source.handle_new_run(ms(1));
    source.exported(ms(2), Chunks::from(&b"state"[..]), Window::new());
    assert_eq!(source.handle_lost_entries(ms(3), ms(103)), None, "the target has never had the state");
}

#[test]
fn without_entries_what_was_not_exported_stays() {
    let kept = Some(Outcome::Kept { generation: 0 });
    assert_eq!(asking().handle_lost_entries(ms(1), ms(2)), kept);
    let mut source = exporting();
    source.not_exported(Time(1));
    assert!(matches!(source.poll(Time(1)), Some(Request::Own { replaces: 8, .. })));
}
