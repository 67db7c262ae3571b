//! One test for each race in section "Sessions" of `docs/architecture.md`.

mod world;

use std::time::Duration;

use spillway_auth::Key;
use spillway_session::{ClientEvent, ClientSession, Opened, OpeningMessage};
use spillway_wire::session::{Reconnect, Resumed, SessionId};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};
use world::{Frame, LIMITS, World};

/// An accepted session after 100 bytes in each direction.
fn begun() -> World {
    let mut world = World::new();
    world.connect();
    world.settle();
    world.client_writes(100);
    world.server_writes(100);
    world.settle();
    assert_eq!((world.server_app.read, world.client_app.read), (100, 100));
    assert!(world.client_app.is_accepted);
    world
}

/// A client's opening message arrives on this carrier.
fn connects(world: &mut World, client: &mut ClientSession, carrier: usize) -> Opened<usize> {
    let words = client.open(world.now, world::client_address(), None);
    let (kind, client, opening) = match words {
        Control::Connect(connect) => (Kind::Connect, connect.client, connect.session.unwrap()),
        Control::Reconnect(reconnect) => (Kind::Reconnect, reconnect.client, reconnect.opening),
        other => panic!("{other:?}"),
    };
    world.table.open(world.now, &world.ring, &OpeningMessage { carrier, kind, client, opening })
}

#[test]
fn bytes_pass_both_ways_and_are_let_go_when_acknowledged() {
    let mut world = begun();
    assert_eq!(world.client.kept(), 0);
    assert_eq!(world.table.info(world.session.unwrap()).unwrap().bytes_kept, 0);
    // Many times the buffers' size.
    for _ in 0..100 {
        world.client_writes(300);
        world.server_writes(300);
        world.settle();
    }
    assert_eq!((world.server_app.read, world.client_app.read), (30_100, 30_100));
}

#[test]
fn what_was_under_way_on_a_lost_carrier_is_sent_again() {
    let mut world = begun();
    let lost = world.current.unwrap();
    world.client_writes(70);
    world.server_writes(80);
    // The requests arrive; their replies and acknowledgements do not.
    while world.server_hears(lost) {}
    world.cut(lost);
    world.client_writes(30);
    world.connect();
    world.settle();
    assert_eq!((world.server_app.read, world.client_app.read), (200, 180));
}

#[test]
fn an_old_carrier_that_was_only_slow_harms_nobody() {
    let mut world = begun();
    let old = world.current.unwrap();
    world.client_writes(60);
    world.connect();
    // The frames of the new carrier arrive before those of the old one.
    let new = world.current.unwrap();
    while world.server_hears(new) {}
    while world.server_hears(old) {}
    world.settle();
    assert_eq!(world.server_app.read, 160);
    assert!(world.paths[old].is_closed);
}

#[test]
fn two_reconnects_that_race_leave_the_newer_one() {
    let mut world = begun();
    let first = world.connect();
    let second = world.connect();
    world.client_writes(10);
    while world.server_hears(second) {}
    while world.server_hears(first) {}
    assert_eq!(world.refused, [RefuseReason::Stale]);
    world.settle();
    world.client_writes(10);
    world.settle();
    assert_eq!(world.server_app.read, 120);
}

#[test]
fn first_words_that_are_replayed_move_nothing() {
    let mut world = begun();
    world.connect();
    world.settle();
    let carrier = world.table.info(world.session.unwrap()).unwrap().carrier;
    for words in world.said.clone() {
        let path = world.replay(words);
        world.settle();
        assert!(world.paths[path].is_closed);
    }
    assert_eq!(world.refused, [RefuseReason::Stale; 2]);
    assert_eq!(world.table.info(world.session.unwrap()).unwrap().carrier, carrier);
}

#[test]
fn nobody_without_the_key_takes_a_session() {
    let mut world = begun();
    // Another client of the same server uses the same id with its own key, which the server accepts.
    let other = Key::from_secret([8; 32]);
    world.ring.accept(spillway_wire::preamble::Role::Client, other.clone());
    let mut thief = ClientSession::new(other, SessionId([3; 16]), LIMITS);
    let mut words = thief.open(world.now, world::client_address(), None);
    for _ in 0..5 {
        words = thief.open(world.now, world::client_address(), None);
    }
    world.replay(words);
    // The client's own message, altered in one field.
    world.connect();
    let Some(Control::Reconnect(honest)) = world.said.last().copied() else { panic!("a reconnect") };
    let alterations: [fn(&mut Reconnect); 8] = [
        |r| r.opening.life += 1,
        |r| r.opening.epoch += 1,
        |r| r.opening.position.received -= 1,
        |r| r.opening.position.sent += 1,
        |r| r.opening.position.credit += 1,
        |r| r.opening.position.finish_received = true,
        |r| r.opening.proof[31] ^= 1,
        |r| r.client.set_port(1),
    ];
    for alter in alterations {
        let mut forged = honest;
        alter(&mut forged);
        world.replay(Control::Reconnect(forged));
    }
    for path in 1..world.paths.len() {
        if Some(path) != world.current {
            while world.server_hears(path) {}
        }
    }
    assert_eq!(world.refused, [RefuseReason::Forbidden; 9]);
    world.settle();
    world.client_writes(5);
    world.settle();
    assert_eq!(world.server_app.read, 105, "the honest one goes on");
}

#[test]
fn a_server_that_was_restarted_says_gone_and_the_client_knows_up_to_where() {
    let mut world = begun();
    world.client_writes(50);
    while world.server_hears(0) {}
    // The server has received all 150 bytes and acknowledged only 100.
    world.restart_server();
    world.connect();
    while world.server_hears(1) {}
    while world.client_hears() {}
    assert_eq!(world.gone, Some(100));
    assert!(world.client.is_over());
    assert_eq!(world.client.write(b"more"), 0);
}

#[test]
fn connect_may_be_said_again_until_the_server_has_answered() {
    let mut world = World::new();
    let first = world.connect();
    while world.server_hears(first) {}
    world.server_accepts();
    world.server_writes(20);
    // The answers are lost.
    world.cut(first);
    world.client_writes(30);
    let second = world.connect();
    assert!(matches!(world.said[1], Control::Connect(_)));
    world.settle();
    assert_eq!((world.server_app.read, world.client_app.read), (30, 20));
    assert!(world.client_app.is_accepted);
    assert_eq!(world.table.len(), 1);
    world.cut(second);
    world.connect();
    assert!(matches!(world.said[2], Control::Reconnect(_)));
}

#[test]
fn no_byte_travels_before_the_server_has_answered() {
    let mut world = World::new();
    world.client_writes(30);
    let path = world.connect();
    world.client_writes(30);
    assert_eq!(world.paths[path].to_server.len(), 1);
    world.settle();
    assert_eq!(world.server_app.read, 60);
}

#[test]
fn a_forged_answer_is_not_believed() {
    let mut world = begun();
    let old = world.paths[0].to_client.pop_back();
    assert!(old.is_none());
    world.connect();
    while world.server_hears(1) {}
    let Some(Frame::Control(Control::Resumed(honest))) = world.paths[1].to_client.pop_front() else {
        panic!("an answer")
    };
    let alterations: [fn(&mut Resumed); 4] =
        [|r| r.epoch -= 1, |r| r.life += 1, |r| r.position.received += 1, |r| r.proof[0] ^= 1];
    for alter in alterations {
        let mut forged = honest;
        alter(&mut forged);
        assert!(world.client.handle_control(world.now, &Control::Resumed(forged)).is_err());
    }
    let attached = world.client.handle_control(world.now, &Control::Resumed(honest));
    assert_eq!(attached, Ok(Some(ClientEvent::Attached { room: false })));
}

#[test]
fn a_finish_is_told_once_however_often_the_carrier_is_lost() {
    let mut world = begun();
    world.client_writes(10);
    world.client_finishes();
    for _ in 0..3 {
        let path = world.current.unwrap();
        while world.server_hears(path) {}
        world.cut(path);
        world.connect();
    }
    world.settle();
    assert!(world.server_app.heard_finish);
    world.server_writes(40);
    world.server_finishes();
    world.settle();
    assert_eq!(world.client_app.read, 140, "the other direction is open");
    assert!(world.client_app.heard_finish);
}

#[test]
fn what_was_written_before_close_arrives_over_a_new_carrier() {
    let mut world = begun();
    world.server_writes(90);
    world.server_closes(CloseReason::Normal);
    world.cut(0);
    assert_eq!(world.table.len(), 1, "it lingers");
    world.connect();
    world.settle();
    assert_eq!(world.client_app.read, 190);
    assert_eq!(world.client_app.heard_close, Some(CloseReason::Normal));
    assert!(world.client.is_over() && world.table.is_empty());
}

#[test]
fn a_reset_delivers_nothing_more() {
    let mut world = begun();
    world.client_writes(20);
    world.client_closes(CloseReason::Reset);
    world.settle();
    assert_eq!(world.server_app.heard_close, Some(CloseReason::Reset));
    assert!(world.client.is_over() && world.table.is_empty());
}

#[test]
fn room_that_comes_with_a_new_carrier_is_told() {
    let mut world = begun();
    // Both ends write until their buffers are full; some bytes arrive, but no acknowledgement.
    for _ in 0..2 {
        world.client_writes(200);
        world.server_writes(200);
    }
    let session = world.session.unwrap();
    assert_eq!((world.client.room(), world.table.room(session)), (0, 0));
    assert!(world.server_hears(0) && world.client_hears());
    world.cut(0);
    assert!(!world.client_app.heard_room && !world.server_app.heard_room);
    let path = world.connect();
    while world.server_hears(path) {}
    assert!(world.server_app.heard_room && world.table.room(session) > 0);
    while world.client_hears() {}
    assert!(world.client_app.heard_room && world.client.room() > 0);
}

#[test]
fn without_a_carrier_nothing_is_due() {
    let mut world = begun();
    world.client_writes(10);
    while world.server_hears(0) {}
    let session = world.session.unwrap();
    assert!(world.table.poll_transmit_timeout(session).is_some(), "an acknowledgement is owed");
    world.cut(0);
    assert_eq!(world.table.poll_transmit_timeout(session), None);
    world.connect();
    world.settle();
    assert_eq!(world.server_app.read, 110);
}

#[test]
fn who_never_returns_is_given_up() {
    let mut world = begun();
    world.cut(0);
    world.pass(Duration::from_secs(59));
    assert!(!world.abandoned);
    // The client returns once, which restarts the time.
    world.connect();
    world.settle();
    world.cut(1);
    world.pass(Duration::from_secs(59));
    assert!(!world.abandoned);
    world.pass(Duration::from_secs(2));
    assert!(world.abandoned && world.table.is_empty());
    world.connect();
    while world.server_hears(2) {}
    while world.client_hears() {}
    assert_eq!(world.gone, Some(100));
}

#[test]
fn a_closed_session_lingers_only_so_long() {
    let mut world = begun();
    world.server_writes(90);
    world.server_closes(CloseReason::Normal);
    world.cut(0);
    world.pass(Duration::from_secs(31));
    assert!(world.table.is_empty() && !world.abandoned);
}

#[test]
fn a_full_table_refuses_and_the_others_go_on() {
    let mut world = begun();
    for n in 0..5 {
        let mut other = ClientSession::new(Key::from_secret([7; 32]), SessionId([100 + n; 16]), LIMITS);
        let opened = connects(&mut world, &mut other, 1000 + usize::from(n));
        let is_full = matches!(opened, Opened::Refused(RefuseReason::Full));
        assert_eq!(is_full, n >= 3);
    }
    world.client_writes(9);
    world.settle();
    assert_eq!(world.server_app.read, 109);
}

#[test]
fn who_is_taken_back_may_begin_later_and_who_is_refused_may_not() {
    let mut world = World::new();
    let id = SessionId([100; 16]);
    let mut client = ClientSession::new(Key::from_secret([7; 32]), id, LIMITS);
    // More often than the table's bound: each time the slot is free again.
    for carrier in 0..10 {
        let Opened::New { session, .. } = connects(&mut world, &mut client, carrier) else {
            panic!("it is new each time")
        };
        world.table.take_back(session);
        assert!(world.table.is_empty() && !world.table.knows(id) && !world.table.contains(session));
        let refused = client.handle_control(world.now, &Control::Refused(RefuseReason::Unavailable));
        assert_eq!(refused, Ok(Some(ClientEvent::Refused(RefuseReason::Unavailable))));
        assert!(!client.is_over(), "it may try again");
        // The session no longer exists, so a second call has no effect.
        world.table.take_back(session);
    }
    let Opened::New { session, answer } = connects(&mut world, &mut client, 10) else {
        panic!("there is room now")
    };
    assert_eq!(client.handle_control(world.now, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    world.table.refuse(session);
    assert!(world.table.is_empty() && world.table.knows(id));
    let again = connects(&mut world, &mut client, 11);
    assert!(matches!(again, Opened::Refused(RefuseReason::Gone)), "{again:?}");
}

#[test]
fn words_that_come_after_the_end_begin_nothing() {
    // Also if the session was the only one and lasted long.
    for lasted in [Duration::ZERO, Duration::from_secs(3600)] {
        let mut world = begun();
        let late = world.said[0];
        world.now = world.now + lasted;
        world.client_closes(CloseReason::Normal);
        world.settle();
        assert!(world.table.is_empty() && world.client.is_over());
        let path = world.replay(late);
        world.settle();
        assert!(world.paths[path].is_closed && world.table.is_empty());
        assert_eq!(world.refused, [RefuseReason::Gone]);
    }
}

#[test]
fn who_loses_carriers_without_end_costs_one_timer() {
    let mut world = begun();
    for _ in 0..1000 {
        world.now = world.now + Duration::from_millis(1);
        let path = world.connect();
        while world.server_hears(path) {}
        world.cut(path);
    }
    // The queue of timers prunes stale entries from 64 entries on, so it stays below 100.
    let mut wakes = 0;
    while let Some(at) = world.table.poll_timeout() {
        world.now = world.now.max(at);
        wakes += 1;
        if world.table.poll_expired(world.now).is_some() {
            break;
        }
    }
    assert!(world.table.is_empty() && wakes < 100, "{wakes} timers");
}

#[test]
fn a_session_begun_again_by_late_words_is_another_one() {
    let mut world = begun();
    // The server is restarted, and an old *connect* arrives before the client returns.
    world.restart_server();
    let ghost = world.replay(world.said[0]);
    while world.server_hears(ghost) {}
    assert_eq!(world.table.len(), 1);
    world.connect();
    let path = world.current.unwrap();
    while world.server_hears(path) {}
    while world.client_hears() {}
    assert_eq!(world.gone, Some(100));
}

#[test]
fn a_reset_is_told_over_a_new_carrier() {
    let mut world = begun();
    // The server never receives these bytes, and they are not retransmitted.
    world.client_writes(20);
    world.client_closes(CloseReason::Reset);
    world.cut(0);
    world.connect();
    world.settle();
    assert_eq!(world.server_app.read, 100);
    assert_eq!(world.server_app.heard_close, Some(CloseReason::Reset));
    assert!(world.client.is_over() && world.table.is_empty());
}
