//! The end of a session whose last messages are lost with their carrier: only a client that closed in order learns so.

mod world;

use std::time::Duration;

use spillway_auth::{Key, Prover, prove};
use spillway_session::{Opened, OpeningMessage};
use spillway_wire::preamble::Role;
use spillway_wire::session::{Opening, Reconnect};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};
use world::World;

/// A session whose client has sent 150 bytes, of which 100 are acknowledged.
fn begun() -> World {
    let mut world = World::new();
    world.connect();
    world.settle();
    world.client_writes(100);
    world.server_writes(100);
    world.settle();
    world.client_writes(50);
    world
}

/// The client closes; the server receives everything and closes; the server's *close* is lost.
fn closes_and_hears_nothing(world: &mut World) {
    world.client_closes(CloseReason::Normal);
    let path = world.current.unwrap();
    while world.server_hears(path) {}
    assert_eq!(world.server_app.heard_close, Some(CloseReason::Normal));
    world.server_closes(CloseReason::Normal);
    assert!(world.table.is_empty() && !world.client.is_over());
    world.cut(path);
}

fn last_reconnect(world: &World) -> Reconnect {
    match world.said.last() {
        Some(Control::Reconnect(reconnect)) => *reconnect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_closed_and_lost_the_answer_is_told_on_another_carrier() {
    for is_acknowledged in [false, true] {
        let mut world = begun();
        if is_acknowledged {
            world.settle();
        }
        closes_and_hears_nothing(&mut world);
        let known = if is_acknowledged { 150 } else { 100 };
        assert_eq!((world.client.acknowledged(), world.client.written()), (known, 150));
        // Also if the repeated answers are lost.
        for _ in 0..3 {
            let path = world.connect();
            while world.server_hears(path) {}
            world.cut(path);
            assert!(!world.client.is_over());
        }
        world.connect();
        world.settle();
        assert!(world.client.is_over() && world.gone.is_none() && world.refused.is_empty());
        assert_eq!((world.client.acknowledged(), world.server_app.read), (150, 150));
        assert!(world.table.is_empty(), "nothing has begun again");
    }
}

#[test]
fn who_reset_and_lost_the_answer_is_told_too() {
    let mut world = begun();
    let path = world.current.unwrap();
    while world.server_hears(path) {}
    world.client_closes(CloseReason::Reset);
    while world.server_hears(path) {}
    world.server_closes(CloseReason::Normal);
    assert!(world.table.is_empty());
    world.cut(path);
    world.connect();
    world.settle();
    assert!(world.client.is_over() && world.gone.is_none());
}

#[test]
fn words_that_are_replayed_after_the_end_are_stale() {
    let mut world = begun();
    world.connect();
    world.settle();
    closes_and_hears_nothing(&mut world);
    world.connect();
    world.settle();
    assert!(world.client.is_over() && world.refused.is_empty());
    let reconnects = world.said[1..].to_vec();
    assert_eq!(reconnects.len(), 2);
    for words in reconnects {
        world.replay(words);
        world.settle();
    }
    assert_eq!(world.refused, [RefuseReason::Stale; 2]);
}

#[test]
fn a_server_that_was_restarted_remembers_no_end() {
    let mut world = begun();
    closes_and_hears_nothing(&mut world);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(100), "it may not have had the rest");
    assert!(world.client.is_over());
}

#[test]
fn who_closed_when_all_was_acknowledged_needs_no_memory_of_the_server() {
    let mut world = begun();
    world.settle();
    closes_and_hears_nothing(&mut world);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.refused, [RefuseReason::Gone]);
    assert!(world.client.is_over() && world.gone.is_none());
    // A client that has not closed gets `Gone`, because replies may be missing.
    let mut world = begun();
    world.settle();
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(150));
    // So does a client that has reset the session.
    let mut world = begun();
    world.settle();
    world.client_closes(CloseReason::Reset);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(150));
}

/// A server may write its replies before it reads on: a client that has closed must not block it.
#[test]
fn replies_that_nobody_wants_any_more_are_taken_until_close_is_said() {
    let mut world = begun();
    world.settle();
    let (path, session) = (world.current.unwrap(), world.session.unwrap());
    // The carrier is full after these pieces, so *close* waits for the last bytes.
    (0..8).for_each(|_| world.client_writes(1));
    world.client_writes(100);
    world.client_closes(CloseReason::Normal);
    world.server_writes(300);
    assert_eq!(world.table.room(session), 0);
    while world.client_hears() {}
    while world.server_hears(path) {}
    assert!(world.server_app.heard_room && world.table.room(session) > 0);
    assert!(world.server_app.read < 258 && !world.client.is_over());
    world.settle();
    assert!(world.client.is_over() && world.server_app.read == 258);
    assert_eq!(world.client_app.read, 100, "the application that has closed gets nothing");
}

#[test]
fn the_end_of_another_life_is_not_told() {
    let mut world = World::new();
    world.connect();
    world.settle();
    // A replayed *connect* begins the session again at the restarted server, and its sender closes it.
    world.restart_server();
    let ghost = world.replay(world.said[0]);
    world.paths[ghost].to_server.push_back(world::Frame::Control(Control::Close(CloseReason::Normal)));
    while world.server_hears(ghost) {}
    world.server_closes(CloseReason::Normal);
    assert!(world.table.is_empty());
    world.connect();
    world.settle();
    assert_eq!((world.refused.as_slice(), world.gone), (&[RefuseReason::Gone][..], Some(0)));
}

#[test]
fn what_was_written_before_any_server_answered_arrives_after_close() {
    for has_said_words in [false, true] {
        let mut world = World::new();
        if has_said_words {
            let path = world.connect();
            world.client_writes(70);
            world.client_closes(CloseReason::Normal);
            world.cut(path);
        } else {
            world.client_writes(70);
            world.client_closes(CloseReason::Normal);
        }
        assert!(!world.client.is_over());
        world.connect();
        world.settle();
        assert!(world.client.is_over() && world.server_app.read == 70);
    }
    // A session that was never opened and has no bytes to deliver is over at once.
    for (bytes, reason) in [(0, CloseReason::Normal), (70, CloseReason::Reset)] {
        let mut world = World::new();
        world.client_writes(bytes);
        world.client_closes(reason);
        assert!(world.client.is_over());
    }
}

#[test]
fn an_end_is_remembered_only_so_long() {
    for (since, gone) in [(29, None), (31, Some(100))] {
        let mut world = begun();
        closes_and_hears_nothing(&mut world);
        world.pass(Duration::from_secs(since));
        world.connect();
        world.settle();
        assert_eq!(world.gone, gone, "after {since} s");
    }
}

#[test]
fn a_server_that_closed_before_it_had_all_does_not_say_that_it_has() {
    let mut world = begun();
    // Both close while 50 bytes are in flight, which the server does not read any more.
    world.server_closes(CloseReason::Normal);
    world.client_closes(CloseReason::Normal);
    let path = world.current.unwrap();
    while world.server_hears(path) {}
    assert!(world.table.is_empty() && world.server_app.read == 100);
    world.cut(path);
    world.connect();
    world.settle();
    assert_eq!((world.refused.as_slice(), world.gone), (&[RefuseReason::Gone][..], Some(100)));
}

#[test]
fn an_end_is_told_only_to_who_knows_the_key() {
    let mut world = begun();
    world.connect();
    world.settle();
    world.client_writes(20);
    closes_and_hears_nothing(&mut world);
    let path = world.connect();
    let honest = last_reconnect(&world);
    world.paths[path].to_server.clear();
    let alterations: [fn(&mut Reconnect); 8] = [
        |r| r.opening.life += 1,
        |r| r.opening.epoch += 1,
        |r| r.opening.position.received -= 1,
        |r| r.opening.position.sent -= 1,
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
    world.settle();
    assert_eq!(world.refused, [RefuseReason::Forbidden; 8]);
    // Another client with its own key, which the server accepts, uses the same id; all else is valid.
    let other = Key::from_secret([8; 32]);
    world.ring.accept(Role::Client, other.clone());
    let mut stolen = Opening { key: other.id(), ..honest.opening };
    let session_key = other.derive(b"spillway session 1\0", &stolen.session.0);
    stolen.proof = prove(&session_key, Prover::Opener, &stolen.proven(Kind::Reconnect, honest.client));
    let words = OpeningMessage { carrier: 99, kind: Kind::Reconnect, client: honest.client, opening: stolen };
    let opened = world.table.open(world.now, &world.ring, &words);
    assert!(matches!(opened, Opened::Refused(RefuseReason::Forbidden)), "{opened:?}");
    // The client's unaltered message gets the answer.
    world.paths[path].to_server.push_back(world::Frame::Control(Control::Reconnect(honest)));
    world.settle();
    assert!(world.client.is_over() && world.gone.is_none());
}
