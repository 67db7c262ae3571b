//! Connections that are away, and may come back, while clients connect.

use std::time::Duration;

use spillway_handoff::MoveResult;
use spillway_moves::OrderResult;
use spillway_tcp::Stack;

use crate::rack::Rack;

/// The connection has left server 1, and its move is undecided: no datagram of server 1 arrives at server 2.
fn away() -> Rack {
    let mut rack = Rack::new(100);
    rack.is_lost = Box::new(|from| from == 1);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection has left", |rack| rack.host(1).echo.here.is_empty());
    rack
}

fn stack_1(rack: &mut Rack) -> &mut Stack {
    rack.host(1).server.connections_mut().stack_mut()
}

/// Checks that the move fails, the connection is at server 1 again, and its stream continues.
#[track_caller]
fn comes_back(rack: &mut Rack) {
    rack.run_until("the order ends", |rack| !rack.host(1).results.is_empty());
    let results = &rack.host(1).results;
    assert!(matches!(results[..], [OrderResult::Ended(MoveResult::Returned(_))]), "{results:?}");
    assert_eq!((rack.host(1).echo.returns, rack.counters(1).lost), (1, 0));
    let returned = rack.client.returned;
    rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
}

/// The stack of server 1 has one place. A client's SYN would get a cookie, and the client would return it.
#[test]
fn a_client_does_not_take_the_last_place_of_a_connection_that_comes_back() {
    let mut rack = away();
    stack_1(&mut rack).set_connections_max(1, 0);
    rack.connect_another();
    rack.run(Duration::from_millis(5));
    assert_eq!(stack_1(&mut rack).counters().connections_refused, 1, "the other client's SYN");
    comes_back(&mut rack);
    assert_eq!(rack.host(1).echo.here.len(), 1);
    rack.client_sends = false;
    rack.run_until("the whole stream returns", |rack| rack.client.has_all());
    rack.client.finish();
    rack.run_until("the other client connects", |rack| rack.others[0].is_open);
}

/// As above. The move succeeds, and the place is free again.
#[test]
fn the_place_of_a_connection_that_has_moved_is_free() {
    let mut rack = Rack::new(100);
    stack_1(&mut rack).set_connections_max(1, 0);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    rack.run(Duration::from_millis(1));
    rack.connect_another();
    rack.run(Duration::from_millis(5));
    assert!(rack.others[0].is_open);
}

/// A place is reserved from the check of the state on; server 1 owns the flow only when the switch has answered.
#[test]
fn a_client_does_not_take_the_last_place_of_a_connection_that_comes() {
    let mut rack = Rack::new(100);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    rack.run(Duration::from_millis(1));
    stack_1(&mut rack).set_connections_max(1, 0);
    rack.order(2, 1).unwrap();
    rack.run_until("the connection leaves", |rack| rack.host(2).echo.here.is_empty());
    rack.unanswered = Some(1);
    rack.connect_another();
    rack.run(Duration::from_millis(5));
    assert_eq!(stack_1(&mut rack).counters().connections_refused, 1, "the other client's SYN");
    rack.unanswered = None;
    rack.run_until("the connection moves", |rack| !rack.host(1).echo.here.is_empty());
    assert_eq!((rack.host(1).echo.arrivals, rack.counters(1).lost), (1, 0));
    let returned = rack.client.returned;
    rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
}

/// A SYN that has the ends of the connection reaches the source: a forged one, a late copy, or that of a client that has
/// restarted. The connection's owner answers it, as one in an established connection (RFC 9293 §3.10.7.4, RFC 5961 §4).
#[test]
fn a_syn_of_a_connection_that_is_away_waits_for_the_owner() {
    let mut rack = away();
    rack.unanswered = Some(1);
    for wait in [5, 110].map(Duration::from_millis) {
        rack.run(wait);
        // Its timestamp and its initial sequence number are newer than those of the connection.
        let syn = rack.repeated_syn();
        rack.pass_to(1, syn);
        rack.run(Duration::from_millis(1));
        assert_eq!(stack_1(&mut rack).connections(), 0, "the SYN opens no connection");
        assert!(rack.host(1).results.is_empty(), "the move is undecided");
    }
    rack.unanswered = None;
    comes_back(&mut rack);
    let counters = stack_1(&mut rack).counters();
    assert!(counters.challenges > 0, "the owner answers the SYN: {counters:?}");
}
