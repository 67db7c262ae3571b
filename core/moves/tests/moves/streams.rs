//! A stream continues over moves.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use spillway_handoff::{MoveResult, Obstacle};
use spillway_moves::{Order, OrderResult};
use spillway_transport::LostReason;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::ServerId;

use crate::rack::{OWNER_TIMEOUT, Rack, place};

/// Stops the client, and checks that all bytes return before the connection closes.
#[track_caller]
fn finish(rack: &mut Rack) {
    rack.client_sends = false;
    rack.run_until("the whole stream returns", |rack| rack.client.has_all());
    rack.client.finish();
    rack.run_until("the connection ends", |rack| rack.client.lost.is_some());
    assert_eq!(rack.client.lost, Some(LostReason::Closed));
}

#[test]
fn a_stream_survives_a_hundred_moves() {
    let mut rack = Rack::new(100);
    for number in 0..100 {
        let (from, to) = if number % 2 == 0 { (1, 2) } else { (2, 1) };
        rack.order(from, to).unwrap();
        rack.run_until("the connection moves", |rack| rack.host(to).echo.here.len() == 1);
        let returned = rack.client.returned;
        rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
        assert_eq!(rack.host(from).results, [OrderResult::Ended(MoveResult::Moved)]);
        rack.host(from).results.clear();
    }
    assert_eq!((rack.counters(1).moved, rack.counters(2).moved), (50, 50));
    assert_eq!((rack.counters(1).imported, rack.counters(2).imported), (50, 50));
    assert_eq!((rack.host(1).echo.arrivals, rack.host(2).echo.arrivals), (50, 50));
    finish(&mut rack);
}

/// As in host mode: replies do not pass the switch.
#[test]
fn a_stream_continues_if_the_servers_reply_under_the_services_address() {
    let mut rack = Rack::new(100);
    rack.replies_pass_by = true;
    rack.host(2).server.reply_as(place(1), place(2));
    for number in 0..10 {
        let (from, to) = if number % 2 == 0 { (1, 2) } else { (2, 1) };
        rack.order(from, to).unwrap();
        rack.run_until("the connection moves", |rack| rack.host(to).echo.here.len() == 1);
        let returned = rack.client.returned;
        rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
    }
    finish(&mut rack);
    assert_eq!(rack.from_place, 0);
}

#[test]
fn a_stream_survives_lost_datagrams_between_servers() {
    let mut rack = Rack::new(100);
    let mut random = 1_u64;
    rack.is_lost = Box::new(move |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.is_multiple_of(3)
    });
    let mut moved = 0;
    for _ in 0..30 {
        let from = if rack.host(1).echo.here.is_empty() { 2 } else { 1 };
        rack.order(from, 3 - from).unwrap();
        rack.run_until("the order ends", |rack| !rack.host(from).results.is_empty());
        let result = rack.host(from).results.remove(0);
        moved += u32::from(result == OrderResult::Ended(MoveResult::Moved));
        rack.run_until("one server has the connection", |rack| {
            rack.hosts.iter().map(|host| host.echo.here.len()).sum::<usize>() == 1
        });
        let returned = rack.client.returned;
        rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
    }
    assert!(moved > 5, "{moved} of 30 moves");
    finish(&mut rack);
}

#[test]
fn a_connection_comes_back_from_a_server_that_has_no_room() {
    let mut rack = Rack::new(0);
    rack.order(1, 2).unwrap();
    rack.run_until("the order ends", |rack| !rack.host(1).results.is_empty());
    let result = OrderResult::Ended(MoveResult::Returned(Some(Reason::NoRoom)));
    let kept = OrderResult::Ended(MoveResult::Kept(Obstacle::Target(Some(Reason::NoRoom))));
    assert!([result, kept].contains(&rack.host(1).results[0]), "{:?}", rack.host(1).results);
    assert_eq!(rack.counters(2).imported, 0);
    finish(&mut rack);
}

#[test]
fn a_connection_comes_back_from_an_application_that_does_not_know_its_attachment() {
    let mut rack = Rack::new(100);
    rack.host(2).echo.is_older = true;
    rack.order(1, 2).unwrap();
    rack.run_until("the order ends", |rack| !rack.host(1).results.is_empty());
    let result = OrderResult::Ended(MoveResult::Returned(Some(Reason::Feature)));
    assert_eq!(rack.host(1).results[0], result);
    assert_eq!((rack.host(1).echo.returns, rack.counters(2).imported), (1, 0));
    finish(&mut rack);
}

/// The target is ready, but the device of the source still has frames to send. Meanwhile the switch ends the move.
#[test]
fn a_connection_whose_move_ends_before_the_export_stays() {
    let mut rack = Rack::new(100);
    rack.host(1).is_device_busy = true;
    rack.order(1, 2).unwrap();
    rack.run_until("the source is to export", |rack| rack.host(1).server.has_exports());
    rack.restart_switch();
    rack.run(Duration::from_secs(1));
    assert!(rack.host(1).server.has_exports());
    rack.host(1).is_device_busy = false;
    let returned = rack.client.returned;
    rack.run_until("the stream continues", |rack| rack.client.returned > returned + 10_000);
    assert_eq!((rack.host(1).echo.here.len(), rack.counters(1).moved), (1, 0));
    finish(&mut rack);
}

#[test]
fn moved_connections_may_be_aborted_by_the_application() {
    let mut rack = Rack::new(100);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    let conn = *rack.host(2).echo.here.iter().next().unwrap();
    spillway_transport::Transport::abort(rack.host(2).server.connections_mut(), conn);
    rack.run_until("the client is reset", |rack| rack.client.lost.is_some());
    assert_eq!(rack.client.lost, Some(LostReason::Reset));
    rack.run(Duration::from_secs(2));
    for number in [1, 2] {
        assert_eq!(rack.host(number).server.connections().flows().count(), 0, "server {number}");
    }
}

/// The new owner falls silent. The original owner resets the client as soon as the switch has returned the flow, and not
/// before.
#[test]
fn a_client_is_reset_when_its_connection_is_lost_with_a_silent_server() {
    let mut rack = Rack::new(100);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    rack.run(Duration::from_millis(200));
    rack.host(2).is_paused = true;
    rack.run(OWNER_TIMEOUT);
    assert_eq!(rack.client.lost, None, "server 2 may own the flow");
    // The client's retransmission timer has doubled a few times.
    rack.run(2 * OWNER_TIMEOUT);
    assert_eq!(rack.client.lost, Some(LostReason::Reset));
    rack.host(2).is_paused = false;
    rack.run_until("server 2 drops the connection", |rack| rack.host(2).echo.here.is_empty());
    assert_eq!(rack.counters(2).lost, 1);
}

/// Server 1 has room for 100 connections, and for half-open ones besides.
#[test]
fn half_open_connections_take_no_places_of_those_that_move() {
    let mut rack = Rack::new(100);
    rack.order(1, 2).unwrap();
    rack.run_until("the connection moves", |rack| rack.host(2).echo.here.len() == 1);
    rack.open_halfway(150);
    rack.run(Duration::from_millis(10));
    let connections = rack.host(1).server.connections();
    assert_eq!((connections.stack().connections(), connections.established()), (150, 0));
    rack.order(2, 1).unwrap();
    rack.run_until("the order ends", |rack| !rack.host(2).results.is_empty());
    assert_eq!(rack.host(2).results, [OrderResult::Ended(MoveResult::Moved)]);
}

/// Requests for thousands of flows at once would overflow the buffers of sockets.
#[test]
fn flows_are_requested_one_after_the_other_when_the_switch_has_lost_its_entries() {
    const CLIENTS: usize = 13;
    let mut rack = Rack::new(100);
    rack.connect_others(CLIENTS as u8 - 1);
    let flows: Vec<_> = rack.host(1).server.connections().flows().collect();
    for flow in flows {
        rack.host(1).server.order(Order { flow, to: Some(ServerId(2)) }).unwrap();
    }
    rack.run_until("all connections move", |rack| rack.host(2).echo.here.len() == CLIENTS);
    rack.run(Duration::from_millis(200));
    let sent = Rc::new(Cell::new(0));
    let counter = Rc::clone(&sent);
    rack.is_lost = Box::new(move |from| {
        counter.set(counter.get() + u32::from(from == 2));
        false
    });
    rack.restart_switch();
    let mut most = 0;
    for _ in 0..20_000 {
        sent.set(0);
        rack.turn();
        most = most.max(sent.get());
    }
    assert!((1..=4).contains(&most), "{most} datagrams of server 2 in a turn");
    let reclaimed = rack.host(2).server.agent().unwrap().counters().reclaimed;
    assert_eq!((reclaimed, rack.counters(2).lost), (CLIENTS as u64, 0));
}
