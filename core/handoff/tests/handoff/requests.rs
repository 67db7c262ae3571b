//! Requests move with their connections, and their origins learn how they ended.

use spillway_handoff::{
    Event, HandedRequest, Limits, MoveError, MoveResult, Obstacle, Purpose, RequestOutcome,
};
use spillway_wire::Chunks;
use spillway_wire::switch::ServerId;

use crate::rack::{Rack, flow};

const STATE: &[u8] = b"state";

/// Server `from` hands the request off to server `to`. Returns the request in the state.
fn hand_off(rack: &mut Rack, from: u8, to: u8, request: Option<HandedRequest>) -> HandedRequest {
    let now = rack.now;
    rack.agent(from).hand_off(now, flow(), ServerId(to), request).unwrap();
    take(rack, from, to)
}

/// Server `from` returns the request.
fn hand_back(rack: &mut Rack, from: u8, request: HandedRequest, is_served: bool) -> HandedRequest {
    let now = rack.now;
    rack.agent(from).hand_back(now, flow(), request, is_served).unwrap();
    take(rack, from, request.origin.0)
}

/// Completes the move that has begun.
fn take(rack: &mut Rack, from: u8, to: u8) -> HandedRequest {
    let (request, generation) = offer(rack, from, to);
    let now = rack.now;
    rack.agent(to).checked(now, flow(), generation, Ok(()));
    rack.deliver();
    assert!(matches!(rack.events(to)[..], [Event::Import { .. }]));
    rack.agent(to).request_arrived(&request);
    request
}

/// Exports. Returns the request, and the generation at which the target checks the state.
fn offer(rack: &mut Rack, from: u8, to: u8) -> (HandedRequest, u64) {
    rack.deliver();
    assert_eq!(rack.events(from), [Event::Export { flow: flow() }]);
    let now = rack.now;
    let request = rack.agent(from).leaving_request(&flow()).unwrap();
    rack.agent(from).exported(now, flow(), Chunks::from(STATE));
    rack.deliver();
    match rack.events(to)[..] {
        [Event::Check { generation, .. }] => (request, generation),
        ref other => panic!("{other:?}"),
    }
}

/// The outcomes of requests that a server has learned.
fn outcomes(rack: &mut Rack, server: u8) -> Vec<(u64, RequestOutcome)> {
    let outcome = |event| match event {
        Event::Request { number, outcome, .. } => Some((number, outcome)),
        _ => None,
    };
    rack.events(server).into_iter().filter_map(outcome).collect()
}

#[test]
fn a_request_is_served_by_another_server_and_its_origin_learns_it_once() {
    let mut rack = Rack::new();
    let request = hand_off(&mut rack, 1, 2, None);
    assert_eq!((request.origin, request.purpose, request.hops_left), (ServerId(1), Purpose::Serve, 3));
    let mut lost = 0;
    // The report is lost twice, and then arrives twice.
    rack.is_lost = Box::new(move |from, to, _| {
        lost += u8::from((from, to) == (2, Some(1)));
        lost < 3 && (from, to) == (2, Some(1))
    });
    rack.copies = 2;
    let now = rack.now;
    rack.agent(2).request_served(now, flow(), &request);
    rack.advance(20);
    assert_eq!(outcomes(&mut rack, 1), [(request.number, RequestOutcome::Served(ServerId(2)))]);
    assert_eq!(rack.agent(1).requests_away(), 0);
    let sent = rack.seen.len();
    rack.advance(20);
    assert_eq!(rack.seen.len(), sent, "the report was noted");
}

#[test]
fn a_request_goes_from_server_to_server_and_returns_with_its_outcome() {
    for is_served in [true, false] {
        let mut rack = Rack::new();
        let request = hand_off(&mut rack, 1, 2, None);
        let passed_on = hand_off(&mut rack, 2, 3, Some(request));
        assert_eq!(passed_on, HandedRequest { hops_left: 2, ..request });
        rack.advance(5);
        assert_eq!((outcomes(&mut rack, 1), rack.agent(1).requests_away()), (vec![], 1));
        let returned = hand_back(&mut rack, 3, passed_on, is_served);
        let purpose = if is_served { Purpose::Served } else { Purpose::NotServed };
        assert_eq!(returned, HandedRequest { purpose, ..passed_on });
        assert_eq!((outcomes(&mut rack, 1), rack.agent(1).requests_away()), (vec![], 0));
        assert_eq!(rack.entry().unwrap().owner.server, ServerId(1));
    }
}

#[test]
fn a_request_does_not_circle_for_ever() {
    let mut rack = Rack::with_limits(Limits { hops_max: 2, ..Limits::default() });
    let request = hand_off(&mut rack, 1, 2, None);
    let request = hand_off(&mut rack, 2, 3, Some(request));
    let now = rack.now;
    let again = rack.agent(3).hand_off(now, flow(), ServerId(2), Some(request));
    assert_eq!(again, Err(MoveError::TooManyHops));
    let request = hand_back(&mut rack, 3, request, false);
    let again = rack.agent(1).hand_off(now, flow(), ServerId(2), Some(request));
    assert_eq!(again, Err(MoveError::TooManyHops), "a return does not begin it anew");
}

#[test]
fn a_request_that_is_refused_stays_and_one_that_returns_from_a_silent_target_too() {
    // The target cannot import the state.
    let mut rack = Rack::new();
    let now = rack.now;
    rack.agent(1).hand_off(now, flow(), ServerId(2), None).unwrap();
    let (request, generation) = offer(&mut rack, 1, 2);
    let reason = spillway_wire::handoff::Reason::Feature;
    rack.agent(2).checked(now, flow(), generation, Err(reason));
    rack.advance(40);
    let returned = RequestOutcome::Stays(MoveResult::Returned(Some(reason)));
    assert_eq!(outcomes(&mut rack, 1), [(request.number, returned)]);

    // The target is silent before *prepared*.
    let mut rack = Rack::new();
    rack.cut(2);
    let now = rack.now;
    rack.agent(1).hand_off(now, flow(), ServerId(2), None).unwrap();
    rack.advance(60);
    let stays = RequestOutcome::Stays(MoveResult::Kept(Obstacle::Silence));
    assert!(matches!(outcomes(&mut rack, 1)[..], [(_, outcome)] if outcome == stays));

    // It is silent before it owns the flow.
    let mut rack = Rack::new();
    let now = rack.now;
    rack.agent(1).hand_off(now, flow(), ServerId(2), None).unwrap();
    let (request, _) = offer(&mut rack, 1, 2);
    rack.cut(2);
    rack.advance(200);
    let returned = RequestOutcome::Stays(MoveResult::Returned(None));
    assert_eq!(outcomes(&mut rack, 1), [(request.number, returned)]);
    assert_eq!(rack.agent(1).requests_away(), 0);
}

#[test]
fn the_outcome_is_unknown_if_the_server_restarts_that_has_taken_the_request() {
    let mut rack = Rack::new();
    let request = hand_off(&mut rack, 1, 2, None);
    rack.restart_server(2);
    rack.advance(200);
    assert_eq!(outcomes(&mut rack, 1), [(request.number, RequestOutcome::Unknown)]);
}

#[test]
fn the_outcome_is_unknown_if_the_server_is_silent_that_has_taken_the_request() {
    let mut rack = Rack::new();
    let request = hand_off(&mut rack, 1, 2, None);
    rack.cut(2);
    rack.advance(1_200);
    assert_eq!(
        outcomes(&mut rack, 1),
        [],
        "no packet of the client has shown yet that the connection is lost"
    );
    // The client repeats its request, and the switch sends it to the original owner.
    rack.client_reaches(7);
    rack.advance(20);
    assert_eq!(outcomes(&mut rack, 1), [(request.number, RequestOutcome::Unknown)]);
}

#[test]
fn a_request_whose_connection_has_ended_is_abandoned() {
    let mut rack = Rack::new();
    let request = hand_off(&mut rack, 1, 2, None);
    let now = rack.now;
    rack.agent(2).request_abandoned(now, flow(), &request);
    rack.advance(5);
    assert_eq!(outcomes(&mut rack, 1), [(request.number, RequestOutcome::Abandoned(ServerId(2)))]);
}

#[test]
fn a_request_stays_if_the_switch_loses_its_entries_before_the_export() {
    for owner in [1, 2] {
        let mut rack = Rack::new();
        let first = (owner == 2).then(|| hand_off(&mut rack, 1, 2, None));
        let now = rack.now;
        rack.is_answer_lost = Box::new(move |to, _| to == 3);
        rack.agent(owner).hand_off(now, flow(), ServerId(3), first).unwrap();
        rack.deliver();
        rack.no_losses();
        rack.restart_switch();
        rack.advance(40);
        let stays = RequestOutcome::Stays(MoveResult::Kept(Obstacle::Restart));
        let [(number, outcome)] = outcomes(&mut rack, owner)[..] else {
            panic!("one outcome at server {owner}")
        };
        assert_eq!(outcome, stays, "server {owner}");
        assert!(first.is_none_or(|first| first.number == number));
    }
}

#[test]
fn requests_that_are_away_are_bounded() {
    let mut rack = Rack::with_limits(Limits { requests_max: 1, ..Limits::default() });
    let request = hand_off(&mut rack, 1, 2, None);
    let now = rack.now;
    assert_eq!(
        rack.agent(2).hand_off(now, flow(), ServerId(3), Some(request)),
        Ok(()),
        "it is not server 2's"
    );
    let other = crate::rack::flow_of(40_001);
    assert_eq!(rack.agent(1).hand_off(now, other, ServerId(2), None), Err(MoveError::TooManyRequests));
}

/// The client resets the connection, and connects again from the same port before the target is ready.
#[test]
fn a_request_does_not_leave_with_another_connection_of_the_client() {
    let mut rack = Rack::new();
    let now = rack.now;
    rack.agent(1).hand_off(now, flow(), ServerId(2), None).unwrap();
    rack.agent(1).connection_ended(now, flow());
    rack.agent(1).connection_opened(&flow());
    assert_eq!((rack.agent(1).leaving_request(&flow()), rack.agent(1).requests_away()), (None, 0));
    rack.deliver();
    assert_eq!(rack.events(1), [Event::Export { flow: flow() }]);
    rack.agent(1).not_exported(now, flow());
    rack.advance(40);
    assert_eq!(rack.events(1), [], "nothing has become of a request");
}

/// The connection had an entry, as it had moved and returned. The entry is not released while the next one lives.
#[test]
fn a_request_of_a_new_connection_is_handed_off_although_an_old_one_has_just_ended() {
    let mut rack = Rack::new();
    let request = hand_off(&mut rack, 1, 2, None);
    hand_back(&mut rack, 2, request, true);
    let now = rack.now;
    rack.agent(1).connection_ended(now, flow());
    assert_eq!(rack.agent(1).hand_off(now, flow(), ServerId(2), None), Err(MoveError::Ended));
    rack.agent(1).connection_opened(&flow());
    rack.advance(2_000);
    assert!(rack.entry().is_some(), "the entry is not released");
    hand_off(&mut rack, 1, 2, None);
}
