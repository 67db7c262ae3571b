//! Requests are handed off with their connections, and executed once.

use std::time::Duration;

use spillway_moves::RequestOutcome;
use spillway_transport::LostReason;
use spillway_wire::switch::ServerId;

use crate::divided::{Afterwards, Divided, REQUEST_BYTES};
use crate::rack::{OWNER_TIMEOUT, Rack};

fn rack(afterwards: Afterwards) -> Rack<Divided> {
    Rack::with_applications(Divided::pair(afterwards), 100)
}

/// Runs until the client has this number of replies.
#[track_caller]
fn run_requests(rack: &mut Rack<Divided>, requests: u64) {
    let until = rack.client.returned + requests * REQUEST_BYTES as u64;
    rack.run_until("all requests are answered", |rack| rack.client.returned >= until);
}

/// The servers that have executed the requests, in the order of the requests.
#[track_caller]
fn servers(rack: &Rack<Divided>) -> Vec<u8> {
    let mut executed = rack.hosts[0].echo.executed.borrow().clone();
    executed.sort_unstable();
    let numbers = executed.iter().map(|(number, _)| *number);
    assert!(numbers.eq(0..executed.len() as u64), "each request is executed once: {executed:?}");
    executed.into_iter().map(|(_, server)| server).collect()
}

fn is_alternating(servers: &[u8]) -> bool {
    servers.iter().zip([1, 2].into_iter().cycle()).all(|(server, expected)| *server == expected)
}

#[test]
fn each_request_is_executed_by_the_server_that_has_its_object() {
    let mut rack = rack(Afterwards::Stays);
    run_requests(&mut rack, 200);
    rack.client_sends = false;
    rack.run(Duration::from_millis(20));
    let servers = servers(&rack);
    assert!(servers.len() >= 200 && is_alternating(&servers), "{servers:?}");
    assert_eq!(rack.client.returned, (servers.len() * REQUEST_BYTES) as u64);
    // Each hand-off is one request, which the other server reports.
    let moves = rack.counters(1).moved + rack.counters(2).moved;
    let outcomes: Vec<_> = rack.hosts.iter().map(|host| host.echo.outcomes.clone()).collect();
    assert!(outcomes[0].iter().all(|outcome| *outcome == RequestOutcome::Served(ServerId(2))));
    assert!(outcomes[1].iter().all(|outcome| *outcome == RequestOutcome::Served(ServerId(1))));
    assert_eq!(outcomes[0].len() + outcomes[1].len(), moves as usize);
    assert_eq!(rack.hosts.iter().map(|host| host.echo.stayed).sum::<u32>(), 0);
}

#[test]
fn a_connection_returns_after_each_request() {
    let mut rack = rack(Afterwards::Returns);
    run_requests(&mut rack, 100);
    assert!(is_alternating(&servers(&rack)));
    assert!(rack.counters(1).moved >= 50 && rack.counters(2).moved >= 49);
    let host = &rack.hosts[0];
    assert_eq!(host.echo.outcomes, [], "the state of the connection tells that the request was served");
    assert!(host.server.agent().unwrap().requests_away() <= 1);
}

#[test]
fn a_request_that_is_declined_is_executed_by_its_origin() {
    let mut rack = rack(Afterwards::Declines);
    run_requests(&mut rack, 20);
    assert!(servers(&rack).iter().all(|server| *server == 1));
    assert!(rack.hosts[0].echo.declined >= 9);
}

#[test]
fn a_request_stays_if_the_other_server_does_not_serve_or_is_silent() {
    let [first, mut second] = Divided::pair(Afterwards::Stays);
    second.serves = false;
    let mut rack = Rack::with_applications([first, second], 100);
    run_requests(&mut rack, 10);
    assert!(servers(&rack).iter().all(|server| *server == 1));
    assert!(rack.hosts[0].echo.stayed >= 4 && rack.counters(1).returned >= 4);
    rack.host(2).is_paused = true;
    run_requests(&mut rack, 10);
    assert!(servers(&rack).iter().all(|server| *server == 1));
    assert!(rack.counters(1).kept >= 4, "{:?}", rack.counters(1));
    rack.client_sends = false;
    rack.run(Duration::from_secs(5));
    assert_eq!(rack.hosts[0].server.agent().unwrap().requests_away(), 0);
}

#[test]
fn requests_survive_lost_datagrams_between_servers() {
    let mut rack = rack(Afterwards::Returns);
    let mut random = 1_u64;
    rack.is_lost = Box::new(move |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.is_multiple_of(3)
    });
    run_requests(&mut rack, 200);
    servers(&rack);
}

/// The server executes the request, answers it, and aborts the connection in the same turn.
#[test]
fn a_request_that_was_executed_just_before_the_connection_ended_is_reported_as_served() {
    let mut rack = rack(Afterwards::Stays);
    // Server 2 executes requests with odd numbers.
    let executed = rack.hosts[0].echo.executed.borrow().len() as u64;
    rack.host(2).echo.aborts_after = Some((executed + 4) & !1);
    rack.host(1).echo.outcomes.clear();
    rack.run_until("the connection is reset", |rack| rack.client.lost.is_some());
    rack.run_until("server 1 learns it", |rack| !rack.hosts[0].echo.outcomes.is_empty());
    rack.run(Duration::from_millis(20));
    let outcomes = &rack.hosts[0].echo.outcomes;
    assert!(outcomes.iter().all(|outcome| *outcome == RequestOutcome::Served(ServerId(2))), "{outcomes:?}");
    assert_eq!(rack.client.lost, Some(LostReason::Reset));
}

/// Server 2 dies with the connection. Server 1 does not know whether the request was executed.
#[test]
fn the_outcome_is_unknown_if_the_server_that_has_the_connection_dies() {
    let mut rack = rack(Afterwards::Stays);
    rack.host(2).echo.is_stuck = true;
    let imported = rack.counters(2).imported;
    rack.run_until("a request is at server 2", |rack| rack.counters(2).imported > imported);
    rack.host(1).echo.outcomes.clear();
    rack.is_lost = Box::new(|from| from == 2);
    rack.host(2).is_paused = true;
    rack.run(OWNER_TIMEOUT * 3);
    assert!(rack.client.lost.is_some(), "server 1 resets the client");
    assert_eq!(rack.hosts[0].echo.outcomes, [RequestOutcome::Unknown]);
}
