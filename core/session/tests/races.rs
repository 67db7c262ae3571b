//! One test for each race in section "Sessions" of `docs/architecture.md`.

mod world;

use std::time::Duration;

use spillway_auth::Key;
use spillway_session::{ClientEvent, ClientSession, Opened, OpeningMessage};
use spillway_wire::session::{Reconnect, Resumed, SessionId};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};
use world::{Frame, LIMITS, World};

/// An accepted session after 100 bytes in each direction.
fn session_in_progress() -> World {
    let mut world = World::new();
    world.connect();
    world.settle();
    world.client_writes(100);
    world.server_writes(100);
    world.settle();
    assert_eq!((world.server_app.read, world.client_app.read), (100, 100));
    assert!(world.client_app.is_accepted, "the session should be accepted");
    world
}

/// A client's opening message arrives on this carrier.
fn open_on(world: &mut World, client: &mut ClientSession, carrier: usize) -> Opened<usize> {
    let message = client.open(world.now, world::client_address(), None);
    let (kind, client, opening) = match message {
        Control::Connect(connect) => (Kind::Connect, connect.client, connect.session.unwrap()),
        Control::Reconnect(reconnect) => (Kind::Reconnect, reconnect.client, reconnect.opening),
        other => panic!("{other:?}"),
    };
    world.table.open(world.now, &world.ring, &OpeningMessage { carrier, kind, client, opening })
}

#[test]
fn bytes_pass_in_both_directions_and_are_freed_when_acknowledged() {
    let mut world = session_in_progress();
    assert_eq!(world.client.unacknowledged_bytes(), 0);
    assert_eq!(world.table.info(world.session.unwrap()).unwrap().bytes_kept, 0);
    // Both ends write many times the size of the buffers.
    for _ in 0..100 {
        world.client_writes(300);
        world.server_writes(300);
        world.settle();
    }
    assert_eq!(
        (world.server_app.read, world.client_app.read),
        (30_100, 30_100),
        "all bytes should arrive in both directions"
    );
}

#[test]
fn bytes_in_flight_on_a_lost_carrier_are_retransmitted() {
    let mut world = session_in_progress();
    let lost = world.current.unwrap();
    world.client_writes(70);
    world.server_writes(80);
    // The requests arrive; their replies and acknowledgements do not.
    while world.server_receives(lost) {}
    world.lose_carrier(lost);
    world.client_writes(30);
    world.connect();
    world.settle();
    assert_eq!(
        (world.server_app.read, world.client_app.read),
        (200, 180),
        "the bytes in flight should be retransmitted"
    );
}

#[test]
fn late_frames_of_an_old_carrier_are_ignored() {
    let mut world = session_in_progress();
    let old = world.current.unwrap();
    world.client_writes(60);
    world.connect();
    // The frames of the new carrier arrive before those of the old one.
    let new = world.current.unwrap();
    while world.server_receives(new) {}
    while world.server_receives(old) {}
    world.settle();
    assert_eq!(world.server_app.read, 160);
    assert!(world.paths[old].is_closed, "the old carrier should be closed");
}

#[test]
fn of_two_racing_reconnects_the_newer_one_wins() {
    let mut world = session_in_progress();
    let first = world.connect();
    let second = world.connect();
    world.client_writes(10);
    while world.server_receives(second) {}
    while world.server_receives(first) {}
    assert_eq!(world.refused, [RefuseReason::Stale]);
    world.settle();
    world.client_writes(10);
    world.settle();
    assert_eq!(world.server_app.read, 120);
}

#[test]
fn replayed_opening_messages_are_refused_as_stale() {
    let mut world = session_in_progress();
    world.connect();
    world.settle();
    let carrier = world.table.info(world.session.unwrap()).unwrap().carrier;
    for message in world.opening_messages.clone() {
        let path = world.replay(message);
        world.settle();
        assert!(world.paths[path].is_closed, "the replay's carrier should be closed");
    }
    assert_eq!(world.refused, [RefuseReason::Stale; 2]);
    assert_eq!(world.table.info(world.session.unwrap()).unwrap().carrier, carrier);
}

#[test]
fn opening_messages_without_the_key_are_refused() {
    let mut world = session_in_progress();
    // Another client of the same server uses the same id with its own key, which the server accepts.
    let other = Key::from_secret([8; 32]);
    world.ring.accept(spillway_wire::preamble::Role::Client, other.clone());
    let mut attacker = ClientSession::new(other, SessionId([3; 16]), LIMITS);
    let mut message = attacker.open(world.now, world::client_address(), None);
    for _ in 0..5 {
        message = attacker.open(world.now, world::client_address(), None);
    }
    world.replay(message);
    // The client's own message, altered in one field.
    world.connect();
    let Some(Control::Reconnect(genuine)) = world.opening_messages.last().copied() else {
        panic!("the last message should be reconnect")
    };
    let alterations: [fn(&mut Reconnect); 8] = [
        |message| message.opening.life += 1,
        |message| message.opening.epoch += 1,
        |message| message.opening.position.received -= 1,
        |message| message.opening.position.sent += 1,
        |message| message.opening.position.credit += 1,
        |message| message.opening.position.finish_received = true,
        |message| message.opening.proof[31] ^= 1,
        |message| message.client.set_port(1),
    ];
    for alter in alterations {
        let mut forged = genuine;
        alter(&mut forged);
        world.replay(Control::Reconnect(forged));
    }
    for path in 1..world.paths.len() {
        if Some(path) != world.current {
            while world.server_receives(path) {}
        }
    }
    assert_eq!(world.refused, [RefuseReason::Forbidden; 9]);
    world.settle();
    world.client_writes(5);
    world.settle();
    assert_eq!(world.server_app.read, 105, "the genuine client should continue");
}

#[test]
fn after_a_server_restart_the_client_gets_gone_with_the_acknowledged_offset() {
    let mut world = session_in_progress();
    world.client_writes(50);
    while world.server_receives(0) {}
    // The server has received all 150 bytes and acknowledged only 100.
    world.restart_server();
    world.connect();
    while world.server_receives(1) {}
    while world.client_receives() {}
    assert_eq!(world.gone, Some(100));
    assert!(world.client.is_over(), "the client should end");
    assert_eq!(world.client.write(b"more"), 0);
}

#[test]
fn connect_is_repeated_until_the_server_has_answered() {
    let mut world = World::new();
    let first = world.connect();
    while world.server_receives(first) {}
    world.server_accepts();
    world.server_writes(20);
    // The answers are lost.
    world.lose_carrier(first);
    world.client_writes(30);
    let second = world.connect();
    assert!(
        matches!(world.opening_messages[1], Control::Connect(_)),
        "connect should be repeated before an answer"
    );
    world.settle();
    assert_eq!(
        (world.server_app.read, world.client_app.read),
        (30, 20),
        "all bytes should arrive in both directions"
    );
    assert!(world.client_app.is_accepted, "the session should be accepted");
    assert_eq!(world.table.len(), 1);
    world.lose_carrier(second);
    world.connect();
    assert!(
        matches!(world.opening_messages[2], Control::Reconnect(_)),
        "reconnect should follow after an answer"
    );
}

#[test]
fn no_data_is_sent_before_the_server_has_answered() {
    let mut world = World::new();
    world.client_writes(30);
    let path = world.connect();
    world.client_writes(30);
    assert_eq!(world.paths[path].to_server.len(), 1);
    world.settle();
    assert_eq!(world.server_app.read, 60);
}

#[test]
fn a_forged_answer_is_rejected() {
    let mut world = session_in_progress();
    let old = world.paths[0].to_client.pop_back();
    assert!(old.is_none(), "no answer should be in flight");
    world.connect();
    while world.server_receives(1) {}
    let Some(Frame::Control(Control::Resumed(genuine))) = world.paths[1].to_client.pop_front() else {
        panic!("the server should have answered")
    };
    let alterations: [fn(&mut Resumed); 4] = [
        |message| message.epoch -= 1,
        |message| message.life += 1,
        |message| message.position.received += 1,
        |message| message.proof[0] ^= 1,
    ];
    for alter in alterations {
        let mut forged = genuine;
        alter(&mut forged);
        assert!(
            world.client.handle_control(world.now, &Control::Resumed(forged)).is_err(),
            "a forged answer should be rejected"
        );
    }
    let attached = world.client.handle_control(world.now, &Control::Resumed(genuine));
    assert_eq!(attached, Ok(Some(ClientEvent::Attached { room: false })));
}

#[test]
fn finish_is_reported_once_although_carriers_are_lost() {
    let mut world = session_in_progress();
    world.client_writes(10);
    world.client_finishes();
    for _ in 0..3 {
        let path = world.current.unwrap();
        while world.server_receives(path) {}
        world.lose_carrier(path);
        world.connect();
    }
    world.settle();
    assert!(world.server_app.received_finish, "the server should get the finish");
    world.server_writes(40);
    world.server_finishes();
    world.settle();
    assert_eq!(world.client_app.read, 140, "the other direction should be open");
    assert!(world.client_app.received_finish, "the client should get the finish");
}

#[test]
fn bytes_written_before_close_arrive_on_a_new_carrier() {
    let mut world = session_in_progress();
    world.server_writes(90);
    world.server_closes(CloseReason::Normal);
    world.lose_carrier(0);
    assert_eq!(world.table.len(), 1, "the closed session should linger");
    world.connect();
    world.settle();
    assert_eq!(world.client_app.read, 190);
    assert_eq!(world.client_app.received_close, Some(CloseReason::Normal));
    assert!(world.client.is_over() && world.table.is_empty(), "both ends should be over");
}

#[test]
fn a_reset_ends_the_session_at_both_ends() {
    let mut world = session_in_progress();
    world.client_writes(20);
    world.client_closes(CloseReason::Reset);
    world.settle();
    assert_eq!(world.server_app.received_close, Some(CloseReason::Reset));
    assert!(world.client.is_over() && world.table.is_empty(), "both ends should be over");
}

#[test]
fn room_from_a_resumed_position_is_reported() {
    let mut world = session_in_progress();
    // Both ends write until their buffers are full; some bytes arrive, but no acknowledgement.
    for _ in 0..2 {
        world.client_writes(200);
        world.server_writes(200);
    }
    let session = world.session.unwrap();
    assert_eq!((world.client.room(), world.table.room(session)), (0, 0));
    assert!(world.server_receives(0) && world.client_receives(), "both ends should receive data");
    world.lose_carrier(0);
    assert!(
        !world.client_app.got_room && !world.server_app.got_room,
        "no room should be reported before the move"
    );
    let path = world.connect();
    while world.server_receives(path) {}
    assert!(
        world.server_app.got_room && world.table.room(session) > 0,
        "the server should report room after the move"
    );
    while world.client_receives() {}
    assert!(
        world.client_app.got_room && world.client.room() > 0,
        "the client should report room after the move"
    );
}

#[test]
fn without_a_carrier_no_acknowledgement_is_due() {
    let mut world = session_in_progress();
    world.client_writes(10);
    while world.server_receives(0) {}
    let session = world.session.unwrap();
    assert!(world.table.poll_transmit_timeout(session).is_some(), "an acknowledgement should be due");
    world.lose_carrier(0);
    assert_eq!(world.table.poll_transmit_timeout(session), None);
    world.connect();
    world.settle();
    assert_eq!(world.server_app.read, 110);
}

#[test]
fn a_client_that_does_not_return_is_given_up() {
    let mut world = session_in_progress();
    world.lose_carrier(0);
    world.advance_time(Duration::from_secs(59));
    assert!(!world.abandoned, "the session should stay at first");
    // The client returns once, which restarts the time.
    world.connect();
    world.settle();
    world.lose_carrier(1);
    world.advance_time(Duration::from_secs(59));
    assert!(!world.abandoned, "the session should stay until its time is over");
    world.advance_time(Duration::from_secs(2));
    assert!(world.abandoned && world.table.is_empty(), "the session should be given up");
    world.connect();
    while world.server_receives(2) {}
    while world.client_receives() {}
    assert_eq!(world.gone, Some(100));
}

#[test]
fn a_closed_session_lingers_for_a_limited_time() {
    let mut world = session_in_progress();
    world.server_writes(90);
    world.server_closes(CloseReason::Normal);
    world.lose_carrier(0);
    world.advance_time(Duration::from_secs(31));
    assert!(world.table.is_empty() && !world.abandoned, "a closed session should end without a report");
}

#[test]
fn a_full_table_refuses_new_sessions_only() {
    let mut world = session_in_progress();
    for number in 0..5 {
        let mut other = ClientSession::new(Key::from_secret([7; 32]), SessionId([100 + number; 16]), LIMITS);
        let opened = open_on(&mut world, &mut other, 1000 + usize::from(number));
        let is_full = matches!(opened, Opened::Refused(RefuseReason::Full));
        assert_eq!(is_full, number >= 3, "three more sessions should fit into the table's 4 slots");
    }
    world.client_writes(9);
    world.settle();
    assert_eq!(world.server_app.read, 109);
}

#[test]
fn a_withdrawn_session_may_begin_again_but_a_refused_one_may_not() {
    let mut world = World::new();
    let id = SessionId([100; 16]);
    let mut client = ClientSession::new(Key::from_secret([7; 32]), id, LIMITS);
    // More attempts than the table has slots, so each withdrawal must free the slot.
    for carrier in 0..10 {
        let Opened::New { session, .. } = open_on(&mut world, &mut client, carrier) else {
            panic!("the session should be new each time")
        };
        world.table.withdraw(session);
        assert!(
            world.table.is_empty() && !world.table.has_id(id) && !world.table.contains(session),
            "a withdrawn session should be forgotten"
        );
        let refused = client.handle_control(world.now, &Control::Refused(RefuseReason::Unavailable));
        assert_eq!(refused, Ok(Some(ClientEvent::Refused(RefuseReason::Unavailable))));
        assert!(!client.is_over(), "the client should be able to try again");
        // The session no longer exists, so a second call has no effect.
        world.table.withdraw(session);
    }
    let Opened::New { session, answer } = open_on(&mut world, &mut client, 10) else {
        panic!("there should be room")
    };
    assert_eq!(client.handle_control(world.now, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    world.table.refuse(session);
    assert!(world.table.is_empty() && world.table.has_id(id), "a refused session should be remembered");
    let again = open_on(&mut world, &mut client, 11);
    assert!(
        matches!(again, Opened::Refused(RefuseReason::Gone)),
        "a refused session should not begin again: {again:?}"
    );
}

#[test]
fn late_opening_messages_after_the_end_begin_no_session() {
    // The second session lasts far longer than an end is remembered.
    for lasted in [Duration::ZERO, Duration::from_secs(3600)] {
        let mut world = session_in_progress();
        let late = world.opening_messages[0];
        world.now = world.now + lasted;
        world.client_closes(CloseReason::Normal);
        world.settle();
        assert!(world.table.is_empty() && world.client.is_over(), "both ends should be over");
        let path = world.replay(late);
        world.settle();
        assert!(
            world.paths[path].is_closed && world.table.is_empty(),
            "the late message should begin no session"
        );
        assert_eq!(world.refused, [RefuseReason::Gone]);
    }
}

#[test]
fn timers_of_a_client_that_keeps_losing_carriers_are_bounded() {
    let mut world = session_in_progress();
    for _ in 0..1000 {
        world.now = world.now + Duration::from_millis(1);
        let path = world.connect();
        while world.server_receives(path) {}
        world.lose_carrier(path);
    }
    // The queue of timers prunes stale entries from 64 entries on, so it stays below 100.
    let mut timeouts = 0;
    while let Some(at) = world.table.poll_timeout() {
        world.now = world.now.max(at);
        timeouts += 1;
        if world.table.poll_expired(world.now).is_some() {
            break;
        }
    }
    assert!(world.table.is_empty() && timeouts < 100, "timers should be bounded: {timeouts} timeouts");
}

#[test]
fn a_session_that_a_late_connect_begins_again_has_another_life() {
    let mut world = session_in_progress();
    // The server is restarted, and an old *connect* arrives before the client returns.
    world.restart_server();
    let replayed = world.replay(world.opening_messages[0]);
    while world.server_receives(replayed) {}
    assert_eq!(world.table.len(), 1);
    world.connect();
    let path = world.current.unwrap();
    while world.server_receives(path) {}
    while world.client_receives() {}
    assert_eq!(world.gone, Some(100));
}

#[test]
fn a_reset_arrives_on_a_new_carrier() {
    let mut world = session_in_progress();
    // The server never receives these bytes, and they are not retransmitted.
    world.client_writes(20);
    world.client_closes(CloseReason::Reset);
    world.lose_carrier(0);
    world.connect();
    world.settle();
    assert_eq!(world.server_app.read, 100);
    assert_eq!(world.server_app.received_close, Some(CloseReason::Reset));
    assert!(world.client.is_over() && world.table.is_empty(), "both ends should be over");
}
