//! The end of a session whose last messages are lost with their carrier.

mod world;

use std::time::Duration;

use spillway_auth::{Key, Prover, prove};
use spillway_session::{Opened, OpeningMessage};
use spillway_wire::preamble::Role;
use spillway_wire::session::{Opening, Reconnect};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};
use world::World;

/// A session whose client has sent 150 bytes, of which 100 are acknowledged.
fn session_in_progress() -> World {
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
fn close_and_lose_the_answer(world: &mut World) {
    world.client_closes(CloseReason::Normal);
    let path = world.current.unwrap();
    while world.server_receives(path) {}
    assert_eq!(world.server_app.received_close, Some(CloseReason::Normal));
    world.server_closes(CloseReason::Normal);
    assert!(
        world.table.is_empty() && !world.client.is_over(),
        "the server should have ended, and the client not"
    );
    world.lose_carrier(path);
}

fn last_reconnect(world: &World) -> Reconnect {
    match world.opening_messages.last() {
        Some(Control::Reconnect(reconnect)) => *reconnect,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_answer_to_close_is_repeated_on_another_carrier() {
    for is_acknowledged in [false, true] {
        let mut world = session_in_progress();
        if is_acknowledged {
            world.settle();
        }
        close_and_lose_the_answer(&mut world);
        let acknowledged = if is_acknowledged { 150 } else { 100 };
        assert_eq!(
            (world.client.acknowledged(), world.client.written()),
            (acknowledged, 150),
            "the lost answer should acknowledge nothing"
        );
        // The repeated answers are lost, too.
        for _ in 0..3 {
            let path = world.connect();
            while world.server_receives(path) {}
            world.lose_carrier(path);
            assert!(!world.client.is_over(), "the client should wait for the answer");
        }
        world.connect();
        world.settle();
        assert!(
            world.client.is_over() && world.gone.is_none() && world.refused.is_empty(),
            "the session should end in order"
        );
        assert_eq!(
            (world.client.acknowledged(), world.server_app.read),
            (150, 150),
            "all bytes should be acknowledged"
        );
        assert!(world.table.is_empty(), "no session should have begun again");
    }
}

#[test]
fn a_lost_answer_to_a_reset_is_repeated_on_another_carrier() {
    let mut world = session_in_progress();
    let path = world.current.unwrap();
    while world.server_receives(path) {}
    world.client_closes(CloseReason::Reset);
    while world.server_receives(path) {}
    world.server_closes(CloseReason::Normal);
    assert!(world.table.is_empty(), "the server should have ended");
    world.lose_carrier(path);
    world.connect();
    world.settle();
    assert!(world.client.is_over() && world.gone.is_none(), "the client should end");
}

#[test]
fn opening_messages_replayed_after_the_end_are_refused_as_stale() {
    let mut world = session_in_progress();
    world.connect();
    world.settle();
    close_and_lose_the_answer(&mut world);
    world.connect();
    world.settle();
    assert!(world.client.is_over() && world.refused.is_empty(), "the session should end in order");
    let reconnects = world.opening_messages[1..].to_vec();
    assert_eq!(reconnects.len(), 2);
    for message in reconnects {
        world.replay(message);
        world.settle();
    }
    assert_eq!(world.refused, [RefuseReason::Stale; 2]);
}

#[test]
fn after_a_server_restart_the_client_gets_gone() {
    let mut world = session_in_progress();
    close_and_lose_the_answer(&mut world);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(100), "only the acknowledged bytes should be reported");
    assert!(world.client.is_over(), "the client should end");
}

#[test]
fn a_client_that_closed_with_all_acknowledged_ends_in_order_after_a_server_restart() {
    let mut world = session_in_progress();
    world.settle();
    close_and_lose_the_answer(&mut world);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.refused, [RefuseReason::Gone]);
    assert!(world.client.is_over() && world.gone.is_none(), "the session should end in order");
    // A client that has not closed gets `Gone`, because replies may be missing.
    let mut world = session_in_progress();
    world.settle();
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(150));
    // A client that has reset the session gets `Gone`, too.
    let mut world = session_in_progress();
    world.settle();
    world.client_closes(CloseReason::Reset);
    world.restart_server();
    world.connect();
    world.settle();
    assert_eq!(world.gone, Some(150));
}

/// A server may write its replies before it reads on: a client that has closed must not block it.
#[test]
fn a_closed_client_accepts_and_drops_replies_until_its_close_is_sent() {
    let mut world = session_in_progress();
    world.settle();
    let (path, session) = (world.current.unwrap(), world.session.unwrap());
    // The carrier is full after these writes, so *close* waits for the last bytes.
    (0..8).for_each(|_| world.client_writes(1));
    world.client_writes(100);
    world.client_closes(CloseReason::Normal);
    world.server_writes(300);
    assert_eq!(world.table.room(session), 0);
    while world.client_receives() {}
    while world.server_receives(path) {}
    assert!(
        world.server_app.got_room && world.table.room(session) > 0,
        "the server should get room for replies"
    );
    assert!(
        world.server_app.read < 258 && !world.client.is_over(),
        "the server should not have read all bytes yet"
    );
    world.settle();
    assert!(
        world.client.is_over() && world.server_app.read == 258,
        "the client should end when the server has read all bytes"
    );
    assert_eq!(world.client_app.read, 100, "an application that has closed should get no more bytes");
}

#[test]
fn the_end_of_another_life_of_the_session_is_not_reported() {
    let mut world = World::new();
    world.connect();
    world.settle();
    // A replayed *connect* begins the session again at the restarted server, and its sender closes it.
    world.restart_server();
    let replayed = world.replay(world.opening_messages[0]);
    world.paths[replayed].to_server.push_back(world::Frame::Control(Control::Close(CloseReason::Normal)));
    while world.server_receives(replayed) {}
    world.server_closes(CloseReason::Normal);
    assert!(world.table.is_empty(), "the table should be empty");
    world.connect();
    world.settle();
    assert_eq!((world.refused.as_slice(), world.gone), (&[RefuseReason::Gone][..], Some(0)));
}

#[test]
fn bytes_written_before_the_first_answer_arrive_after_close() {
    for has_opened in [false, true] {
        let mut world = World::new();
        if has_opened {
            let path = world.connect();
            world.client_writes(70);
            world.client_closes(CloseReason::Normal);
            world.lose_carrier(path);
        } else {
            world.client_writes(70);
            world.client_closes(CloseReason::Normal);
        }
        assert!(!world.client.is_over(), "the client should wait for the first answer");
        world.connect();
        world.settle();
        assert!(world.client.is_over() && world.server_app.read == 70, "all bytes should arrive");
    }
    // A session that was never opened and has no bytes to deliver is over at once.
    for (bytes, reason) in [(0, CloseReason::Normal), (70, CloseReason::Reset)] {
        let mut world = World::new();
        world.client_writes(bytes);
        world.client_closes(reason);
        assert!(world.client.is_over(), "the client should end");
    }
}

#[test]
fn an_end_is_remembered_for_30_seconds() {
    for (seconds, gone) in [(29, None), (31, Some(100))] {
        let mut world = session_in_progress();
        close_and_lose_the_answer(&mut world);
        world.advance_time(Duration::from_secs(seconds));
        world.connect();
        world.settle();
        assert_eq!(world.gone, gone, "the end should be remembered for 30 s, here after {seconds} s");
    }
}

#[test]
fn a_server_that_closed_before_it_received_all_bytes_answers_gone() {
    let mut world = session_in_progress();
    // Both ends close while 50 bytes are in flight; the server does not read these bytes any more.
    world.server_closes(CloseReason::Normal);
    world.client_closes(CloseReason::Normal);
    let path = world.current.unwrap();
    while world.server_receives(path) {}
    assert!(
        world.table.is_empty() && world.server_app.read == 100,
        "the session should end with 100 bytes read"
    );
    world.lose_carrier(path);
    world.connect();
    world.settle();
    assert_eq!((world.refused.as_slice(), world.gone), (&[RefuseReason::Gone][..], Some(100)));
}

#[test]
fn an_end_is_repeated_only_to_the_holder_of_the_key() {
    let mut world = session_in_progress();
    world.connect();
    world.settle();
    world.client_writes(20);
    close_and_lose_the_answer(&mut world);
    let path = world.connect();
    let genuine = last_reconnect(&world);
    world.paths[path].to_server.clear();
    let alterations: [fn(&mut Reconnect); 8] = [
        |reconnect| reconnect.opening.life += 1,
        |reconnect| reconnect.opening.epoch += 1,
        |reconnect| reconnect.opening.position.received -= 1,
        |reconnect| reconnect.opening.position.sent -= 1,
        |reconnect| reconnect.opening.position.credit += 1,
        |reconnect| reconnect.opening.position.finish_received = true,
        |reconnect| reconnect.opening.proof[31] ^= 1,
        |reconnect| reconnect.client.set_port(1),
    ];
    for alter in alterations {
        let mut forged = genuine;
        alter(&mut forged);
        world.replay(Control::Reconnect(forged));
    }
    world.settle();
    assert_eq!(world.refused, [RefuseReason::Forbidden; 8]);
    // Another client with its own key, which the server accepts, uses the same id; the other fields
    // of its message are valid.
    let other = Key::from_secret([8; 32]);
    world.ring.accept(Role::Client, other.clone());
    let mut attacker_opening = Opening { key: other.id(), ..genuine.opening };
    let session_key = other.derive(b"spillway session 1\0", &attacker_opening.session.0);
    attacker_opening.proof = prove(
        &session_key,
        Prover::Opener,
        &attacker_opening.bytes_under_proof(Kind::Reconnect, genuine.client),
    );
    let message = OpeningMessage {
        carrier: 99,
        kind: Kind::Reconnect,
        client: genuine.client,
        opening: attacker_opening,
    };
    let opened = world.table.open(world.now, &world.ring, &message);
    assert!(
        matches!(opened, Opened::Refused(RefuseReason::Forbidden)),
        "a client without the session's key should be refused: {opened:?}"
    );
    // The client's unaltered message gets the answer.
    world.paths[path].to_server.push_back(world::Frame::Control(Control::Reconnect(genuine)));
    world.settle();
    assert!(world.client.is_over() && world.gone.is_none(), "the session should end in order");
}
