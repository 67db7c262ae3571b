//! Heartbeats, silence, and the pauses of the switch itself.

use core::time::Duration;

use spillway_rules::{FlowState, ServerId, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::ACK;
use crate::test_config::{config, place_of, service};
use crate::world::{LIFETIME, Message, World};

fn heartbeat(world: &mut World, server: u8) -> Status {
    world.send(Message::new(server, Kind::Heartbeat).load(1, 10, 1)).status()
}

/// Who owns the flow. The *get* that asks settles the entry.
fn owner(world: &World) -> Option<(ServerId, FlowState)> {
    let mut world = world.clone();
    world.send(Message::new(4, Kind::Get));
    world.entry().map(|entry| (entry.owner.server, entry.state))
}

#[test]
fn flows_of_a_dead_owner_return_to_the_original() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let generation = world.generation();
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_secs(1));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)), "exactly the timeout");
    world.pass(Duration::from_millis(10));
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!((decision.verdict, seen.target), (Verdict::ToOwner, service()));
    assert!(world.generation() > generation);
    assert_eq!(world.server_sends(2, place_of(2), ACK).0.verdict, Verdict::DropNotOwner);
}

#[test]
fn moves_to_a_dead_target_return_to_the_owner() {
    for is_ready in [false, true] {
        let mut world = World::new();
        world.move_flow(1, 3);
        world
            .send(Message::new(3, Kind::Prepare).generation(world.generation()).place(2).lifetime_ms(60_000));
        if is_ready {
            world.ready(2);
        }
        let generation = world.generation();
        world.alive = vec![1, 3, 4];
        world.pass(Duration::from_millis(1010));
        assert_eq!(owner(&world), Some((ServerId(3), FlowState::Owned)));
        assert_eq!(world.client_sends(ACK).1.target, place_of(3));
        let own = |generation| Message::new(3, Kind::Own).generation(generation);
        assert_eq!(world.send(own(generation)).status(), Status::Ok, "the owner keeps the flow");
        assert_eq!(world.send(own(generation - 1)).outcome(), (Status::Stale, FlowState::Owned));
    }
}

#[test]
fn both_dead_returns_to_the_original() {
    let mut world = World::new();
    world.move_flow(1, 2);
    world.ask(2, 3);
    let generation = world.generation();
    world.alive = vec![1, 4];
    world.pass(Duration::from_millis(1010));
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
    world.client_sends(ACK);
    assert_eq!(world.generation(), generation + 2, "a new generation for each step");
}

#[test]
fn a_held_flow_of_a_dead_owner_waits_for_its_target() {
    let mut world = World::new();
    world.move_flow(1, 2);
    world.ask(2, 3);
    world.ready(3);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_secs(2));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Held)));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToTarget);
    let mut late = world.clone();
    assert_eq!(world.own(3), Status::Ok);
    assert_eq!(owner(&world), Some((ServerId(3), FlowState::Owned)));
    // The target never owns it: the deadline ends the move, and the owner is dead.
    late.pass(LIFETIME);
    assert_eq!(owner(&late), Some((ServerId(1), FlowState::Owned)));
}

#[test]
fn a_move_ends_at_its_deadline() {
    for is_ready in [false, true] {
        let mut world = World::new();
        world.ask(1, 2);
        if is_ready {
            world.ready(2);
        }
        let generation = world.generation();
        world.pass(LIFETIME - Duration::from_millis(10));
        assert_ne!(owner(&world), Some((ServerId(1), FlowState::Owned)));
        world.pass(Duration::from_millis(10));
        assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
        let own = Message::new(2, Kind::Own).generation(generation);
        assert_eq!(world.send(own).outcome(), (Status::Forbidden, FlowState::Owned), "too late");
        assert!(world.generation() > generation);
    }
}

#[test]
fn a_restarted_server_has_none_of_its_flows() {
    let mut world = World::new();
    world.move_flow(1, 2);
    assert_eq!(world.send(Message::new(2, Kind::Hello)).status(), Status::Ok);
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
    // A restarted target.
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    world.send(Message::new(2, Kind::Hello));
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
    // The original owner keeps its flow.
    let mut world = World::new();
    world.ask(1, 2);
    world.own(1);
    world.send(Message::new(1, Kind::Hello));
    world.ask(1, 3);
}

#[test]
fn a_server_that_was_silent_is_told_so_and_says_hello() {
    let mut world = World::new();
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(1010));
    assert_eq!(heartbeat(&mut world, 2), Status::NoOwner);
    assert_eq!(heartbeat(&mut world, 2), Status::NoOwner, "until it says hello");
    assert_eq!(world.send(Message::new(2, Kind::Hello)).status(), Status::Ok);
    assert_eq!(heartbeat(&mut world, 2), Status::Ok);
}

#[test]
fn a_silent_server_changes_nothing() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let generation = world.generation();
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(1010));
    for kind in [Kind::Prepare, Kind::Prepared, Kind::Hold, Kind::Own, Kind::Release] {
        let message = Message::new(2, kind).generation(generation).place(2);
        assert_eq!(world.send(message).status(), Status::NoOwner, "{kind}");
    }
    assert_eq!(world.send(Message::new(2, Kind::Get)).status(), Status::Ok);
    // A server that is not an owner cannot be a target.
    let hold = |world: &World| Message::new(1, Kind::Hold).generation(world.generation()).place(2);
    assert_eq!(world.send(hold(&world)).status(), Status::NoOwner);
    let prepare = Message::new(1, Kind::Prepare).generation(world.generation()).place(2);
    assert_eq!(world.send(prepare).status(), Status::NoOwner);
}

#[test]
fn a_pause_of_the_switch_makes_no_server_silent() {
    let mut world = World::new();
    world.move_flow(1, 2);
    world.pause(Duration::from_secs(3600));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)), "no heartbeat has arrived");
    // The first heartbeat after the pause is another server's.
    assert_eq!(heartbeat(&mut world, 3), Status::Ok);
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)));
    world.beat();
    world.pass(Duration::from_secs(5));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)));
}

#[test]
fn a_pause_counts_for_100_ms() {
    let mut world = World::new();
    world.move_flow(1, 2);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(900));
    world.pause(Duration::from_secs(10));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)), "900 ms and 100 ms");
    world.beat();
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)));
    world.pass(Duration::from_millis(10));
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
}

#[test]
fn the_timeout_is_configured() {
    let mut config = config();
    config.owner_timeout = Duration::from_millis(50);
    let mut world = World::with(config.clone());
    world.move_flow(1, 2);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(50));
    assert_eq!(owner(&world), Some((ServerId(2), FlowState::Owned)));
    // A reload applies at once.
    config.owner_timeout = Duration::from_millis(40);
    world.switch.reload(config).unwrap();
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
}

#[test]
fn a_server_that_a_reload_removes_loses_its_flows() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let mut config = config();
    config.servers.retain(|server| server.id != ServerId(2));
    config.places.retain(|place| place.server != ServerId(2));
    world.switch.reload(config).unwrap();
    assert_eq!(world.client_sends(ACK).1.target, service());
    assert_eq!(owner(&world), Some((ServerId(1), FlowState::Owned)));
    // A reload with a fault changes nothing.
    let mut faulty = crate::test_config::config();
    faulty.control.clear();
    assert!(world.switch.reload(faulty).is_err());
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToOwner);
}

/// A server with another key is another sender: its sequence numbers may begin anew, and it must say hello. Nothing of
/// the other servers is forgotten.
#[test]
fn a_reload_forgets_the_sequence_numbers_of_a_removed_server_and_of_one_with_another_key() {
    let without_server_2 = || {
        let mut config = config();
        config.servers.retain(|server| server.id != ServerId(2));
        config.places.retain(|place| place.server != ServerId(2));
        config
    };
    let with_another_key = || {
        let mut config = config();
        config.servers[1].key = spillway_auth::SwitchKey::from_bytes([0x77; 16]);
        config
    };
    let hello = |world: &mut World, server, sequence| {
        let message = world.delayed(Message::new(server, Kind::Hello));
        world.deliver(&message.with(|view| view.set_sequence(sequence))).status()
    };
    for between in [without_server_2(), with_another_key()] {
        let mut world = World::new();
        world.move_flow(1, 2);
        assert_eq!(hello(&mut world, 2, 1), Status::Replayed);
        world.switch.reload(between).unwrap();
        assert!(world.switch.owners(world.now).iter().all(|owner| owner.server != ServerId(2)));
        world.switch.reload(config()).unwrap();
        assert_eq!(hello(&mut world, 2, 1), Status::Ok);
        assert_eq!(hello(&mut world, 3, 1), Status::Replayed, "this one has stayed");
        assert_eq!(
            world.client_sends(ACK).1.target,
            service(),
            "server 2 has no connections of its first term"
        );
    }
}

#[test]
fn a_flow_whose_original_owner_is_removed_goes_nowhere() {
    let mut world = World::new();
    world.ask(1, 2);
    world.own(1);
    let mut config = config();
    config.servers.retain(|server| server.id != ServerId(1));
    config.places.retain(|place| place.server != ServerId(1) && place.service != service());
    config.places.retain(|place| place.service == crate::test_config::other_service());
    world.switch.reload(config).unwrap();
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::DropUnknownStation);
}
