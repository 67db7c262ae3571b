//! When an order becomes a move, and how it ends otherwise.

use std::time::Duration;

use spillway_handoff::{MoveError, MoveResult, Obstacle};
use spillway_moves::{OrderError, OrderResult};
use spillway_wire::switch::ServerId;

use crate::rack::Rack;

#[test]
fn an_order_waits_for_the_end_of_a_request() {
    let mut rack = Rack::new(100);
    rack.host(1).echo.is_busy = true;
    rack.order(1, 2).unwrap();
    assert_eq!(rack.order(1, 2), Err(OrderError::Ordered));
    assert_eq!(rack.order(2, 1), Err(OrderError::NotHere));
    rack.run(Duration::from_millis(900));
    assert_eq!((rack.host(2).echo.here.len(), rack.host(1).results.len()), (0, 0));
    rack.host(1).echo.is_busy = false;
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
}

#[test]
fn an_order_ends_after_a_second_without_the_end_of_a_request() {
    let mut rack = Rack::new(100);
    rack.host(1).echo.is_busy = true;
    rack.order(1, 2).unwrap();
    rack.run(Duration::from_millis(1010));
    assert_eq!(rack.host(1).results, [OrderResult::Busy]);
    assert_eq!(rack.order(1, 2), Ok(()), "a connection whose order has ended should accept another one");
}

/// The target is ready, and buffers the connection's packets already.
#[test]
fn a_request_that_begins_before_the_export_stops_the_move_until_it_ends() {
    let mut rack = Rack::new(100);
    rack.host(1).echo.safe_answers.set(Some(1));
    rack.order(1, 2).unwrap();
    rack.run_until("the move is stopped", |rack| rack.counters(1).stopped > 0);
    let returned = rack.client.returned;
    rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
    assert_eq!(rack.host(1).results, []);
    rack.host(1).echo.safe_answers.set(None);
    rack.run_until("the order ends", |rack| !rack.host(1).results.is_empty());
    assert_eq!(rack.host(2).echo.here.len(), 1);
    assert_eq!(rack.host(1).results, [OrderResult::Ended(MoveResult::Moved)]);
}

#[test]
fn orders_of_connections_that_end_and_to_unknown_servers_are_refused() {
    let mut rack = Rack::new(100);
    rack.order(1, 3).unwrap();
    rack.turn();
    assert_eq!(rack.host(1).results, [OrderResult::Refused(MoveError::UnknownServer)]);
    rack.host(1).results.clear();
    rack.host(1).echo.is_busy = true;
    rack.order(1, 2).unwrap();
    rack.client_sends = false;
    rack.run_until("the whole stream returns", |rack| rack.client.has_all());
    rack.client.finish();
    rack.run_until("the connection ends", |rack| rack.host(1).echo.here.is_empty());
    assert_eq!(rack.host(1).results, [OrderResult::Closed]);
}

#[test]
fn results_beyond_1024_replace_the_oldest() {
    let mut rack = Rack::new(100);
    for unknown_server in [3].into_iter().chain(std::iter::repeat_n(4, 1024)) {
        rack.order(1, unknown_server).unwrap();
        let now = rack.now;
        let host = rack.host(1);
        host.server.end_turn(&mut host.echo, now);
    }
    let targets: Vec<_> = std::iter::from_fn(|| rack.host(1).server.poll_result())
        .map(|(order, result)| {
            assert_eq!(result, OrderResult::Refused(MoveError::UnknownServer));
            order.to
        })
        .collect();
    assert_eq!(targets, vec![Some(ServerId(4)); 1024]);
}

/// Server 2 is not the original owner, so its agent drops the move without an event.
#[test]
fn an_order_ends_when_the_switch_forgets_its_move() {
    let mut rack = Rack::new(100);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    rack.host(2).is_device_busy = true;
    rack.order(2, 1).unwrap();
    rack.run_until("the source is to export", |rack| rack.host(2).server.has_exports());
    rack.restart_switch();
    rack.run_until("the order ends", |rack| !rack.host(2).results.is_empty());
    assert_eq!(rack.host(2).results, [OrderResult::Ended(MoveResult::Kept(Obstacle::Restart))]);
    rack.host(2).is_device_busy = false;
    let returned = rack.client.returned;
    rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
    assert_eq!(rack.host(2).echo.here.len(), 1);
}
