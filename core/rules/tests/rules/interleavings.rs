//! Interleavings in which two servers would transmit for one flow, or a client's packets would be lost for ever, if the
//! rules were simpler. Each was found in an earlier version of the specification.

use core::time::Duration;

use spillway_rules::{FlowState, ServerId, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::{ACK, RST};
use crate::test_config::{endpoint, place_of, service};
use crate::world::{EPOCH, Message, World};

fn heartbeat(world: &mut World, server: u8) -> Status {
    world.send(Message::new(server, Kind::Heartbeat).load(1, 10, 1)).status()
}

/// An owner loses one of its flows while it is silent. If a pause of the switch pardoned it afterwards, it would never
/// learn that it has lost the flow, and transmit beside the new owner.
#[test]
fn an_owner_that_has_lost_a_flow_is_told_so_after_a_pause() {
    let mut world = World::new();
    world.move_flow(1, 2);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_secs(2));
    assert_eq!(world.client_sends(ACK).1.target, service(), "the flow returns");
    world.pause(Duration::from_secs(5));
    assert_eq!(heartbeat(&mut world, 2), Status::NoOwner);
}

/// The same if a reload makes the timeout longer.
#[test]
fn a_longer_timeout_does_not_revive_an_owner_that_has_lost_a_flow() {
    let longer = || {
        let mut config = crate::test_config::config();
        config.owner_timeout = Duration::from_secs(60);
        config
    };
    for is_owner in [false, true] {
        let mut world = World::new();
        world.ask(1, 2);
        world.ready(2);
        if is_owner {
            assert_eq!(world.own(2), Status::Ok);
        }
        world.alive = vec![1, 3, 4];
        world.pass(Duration::from_secs(2));
        let mut without_packets = world.clone();
        without_packets.switch.reload(longer()).unwrap();
        assert_eq!(heartbeat(&mut without_packets, 2), Status::Ok, "it has lost nothing");
        world.client_sends(ACK);
        world.switch.reload(longer()).unwrap();
        assert_eq!(heartbeat(&mut world, 2), Status::NoOwner);
    }
}

/// The same for a target that loses a flow that it has not owned yet.
#[test]
fn a_target_that_has_lost_a_flow_is_told_so_after_a_pause() {
    let mut world = World::new();
    world.ask(1, 2);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_secs(2));
    world.client_sends(ACK);
    assert_eq!(world.entry().unwrap().state, FlowState::Owned);
    world.pause(Duration::from_secs(5));
    assert_eq!(heartbeat(&mut world, 2), Status::NoOwner);
}

/// The only other server's heartbeats have gaps of more than 100 ms. If each gap counted as a pause that gives all
/// owners a full timeout, a dead owner would be alive for ever, and its clients' packets lost.
#[test]
fn a_dead_owner_is_found_although_heartbeats_have_gaps() {
    let mut world = World::new();
    world.move_flow(1, 2);
    for _ in 0..11 {
        world.pause(Duration::from_millis(500));
        heartbeat(&mut world, 1);
    }
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!((decision.verdict, seen.target), (Verdict::ToOwner, service()));
}

/// The owner holds the flow to a target and dies before the state arrives. Without a deadline the target's packets would
/// be buffered for ever.
#[test]
fn a_held_flow_returns_although_owner_and_state_are_lost() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let hold = Message::new(2, Kind::Hold).generation(world.generation()).place(3).lifetime_ms(60_000);
    assert_eq!(world.send(hold).status(), Status::Ok);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(59_990));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToTarget);
    world.pass(Duration::from_millis(10));
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!((decision.verdict, seen.target), (Verdict::ToOwner, service()));
}

/// A delayed *prepare* begins a move again that its sender has finished long ago.
#[test]
fn a_move_by_a_delayed_prepare_ends() {
    let mut world = World::new();
    let delayed = world.delayed(Message::new(1, Kind::Prepare).place(2));
    world.move_flow(1, 2);
    let release = Message::new(2, Kind::Release).generation(world.generation());
    assert_eq!(world.send(release).status(), Status::Ok);
    assert_eq!(world.deliver(&delayed).relayed().2, FlowState::Asked);
    world.ready(2);
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::ToTarget);
    world.pass(crate::world::LIFETIME);
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!((decision.verdict, seen.target), (Verdict::ToOwner, service()));
}

/// The owner holds the flow, is declared dead, and says hello. If its *own* were confirmed, the flow would return to the
/// original at the next packet: both would transmit.
#[test]
fn an_owner_in_a_new_term_gets_no_flow_of_the_old_one() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let hold = Message::new(2, Kind::Hold).generation(world.generation()).place(3);
    assert_eq!(world.send(hold).status(), Status::Ok);
    world.send(Message::new(2, Kind::Hello));
    assert_eq!(world.own(2), Status::Stale);
    for kind in [Kind::Prepare, Kind::Hold, Kind::Release] {
        let message = Message::new(2, kind).generation(world.generation()).place(4);
        assert_eq!(world.send(message).outcome(), (Status::Stale, FlowState::Held), "{kind}");
    }
    assert_eq!(world.own(3), Status::Ok);
}

/// Messages from before a restart arrive after the hello. If the switch accepted them, a move would begin that the new
/// process has not requested.
#[test]
fn messages_from_before_a_restart_are_replays() {
    let mut world = World::new();
    let sequence = world.sequence(1);
    let old = Message::new(1, Kind::Prepare).place(2).with(|view| {
        view.set_epoch(EPOCH);
        view.set_sequence(sequence + 40);
    });
    let hello = Message::new(1, Kind::Hello).with(|view| {
        view.set_epoch(EPOCH);
        view.set_sequence(sequence + 41);
    });
    assert_eq!(world.deliver(&hello).status(), Status::Ok);
    assert_eq!(world.deliver(&old).outcome(), (Status::Replayed, FlowState::None));
    assert_eq!(world.switch.flow_count(), 0);
}

/// An RST that the client ignores, because its sequence number is old, must not end the flow of the new owner.
#[test]
fn an_rst_before_a_move_does_not_end_the_flow_of_the_new_owner() {
    let mut world = World::new();
    world.ask(1, 2);
    assert_eq!(world.server_sends(1, service(), RST).0.verdict, Verdict::FromOwner);
    world.ready(2);
    assert_eq!(world.own(2), Status::Ok);
    world.pass(Duration::from_secs(2));
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!((decision.verdict, seen.target), (Verdict::ToOwner, place_of(2)));
    // An owner that keeps the flow has really reset it.
    let mut world = World::new();
    world.ask(1, 2);
    world.server_sends(1, service(), RST);
    world.own(1);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::Switched);
}

/// A prepare with generation 0 must not count as the repetition of one that began a *hold*.
#[test]
fn a_late_prepare_is_no_repetition_of_a_hold() {
    let mut world = World::new();
    world.ask(1, 2);
    world.own(1);
    let hold = Message::new(1, Kind::Hold).generation(world.generation()).place(3);
    assert_eq!(world.send(hold).status(), Status::Ok);
    let late = Message::new(1, Kind::Prepare).place(2);
    assert_eq!(world.send(late).outcome(), (Status::Stale, FlowState::Held));
}

/// The confirmation of *own* is lost. The target repeats it and learns from the answer that it owns the flow.
#[test]
fn a_repeated_own_states_the_owner() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let own = Message::new(2, Kind::Own).generation(world.generation());
    assert_eq!(world.send(own.clone()).status(), Status::Ok);
    let entry = world.entry();
    let repeated = world.send(own.clone());
    assert_eq!(repeated.outcome(), (Status::Ok, FlowState::Owned));
    assert_eq!(repeated.view.owner().unwrap().endpoint(), place_of(2));
    assert_eq!((repeated.view.generation(), world.entry()), (world.generation(), entry));
    // After the next change the repeated *own* is refused.
    world.move_flow(2, 3);
    assert_eq!(world.send(own).status(), Status::Forbidden);
}

/// The original owner gives the flow away and gets no answer to its *own*. It may go on with its copy of the connection
/// only if it has won, not if the flow came back to it from a dead owner.
#[test]
fn an_original_owner_knows_whether_its_own_has_won() {
    for target_wins in [false, true] {
        let mut world = World::new();
        world.ask(1, 2);
        world.ready(2);
        let own = Message::new(1, Kind::Own).generation(world.generation());
        if target_wins {
            assert_eq!(world.own(2), Status::Ok);
            world.alive = vec![1, 3, 4];
            world.pass(Duration::from_millis(1010));
            world.client_sends(ACK);
            assert_eq!(world.entry().unwrap().owner.server, ServerId(1));
            assert_eq!(world.send(own).outcome(), (Status::Stale, FlowState::Owned));
        } else {
            assert_eq!(world.send(own.clone()).status(), Status::Ok);
            assert_eq!(world.send(own).outcome(), (Status::Ok, FlowState::Owned));
        }
    }
    // A move that ends by its deadline has the same result as one that the owner ends by *own*.
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let own = Message::new(1, Kind::Own).generation(world.generation());
    world.pass(crate::world::LIFETIME);
    assert_eq!(world.send(own).outcome(), (Status::Ok, FlowState::Owned));
    // A move that the target refuses has the same result, too.
    world.ask(1, 2);
    let own = Message::new(1, Kind::Own).generation(world.generation());
    let refused = Message::new(2, Kind::Prepared).generation(world.generation()).status(Status::Full);
    world.send(refused).relayed();
    assert_eq!(world.send(own).outcome(), (Status::Ok, FlowState::Owned));
}

/// The owner gives up while the target takes over: the first *own* wins, in either order.
#[test]
fn of_two_racing_own_exactly_one_succeeds() {
    for order in [[1, 2], [2, 1]] {
        let mut world = World::new();
        world.ask(1, 2);
        world.ready(2);
        let generation = world.generation();
        let statuses =
            order.map(|server| world.send(Message::new(server, Kind::Own).generation(generation)).status());
        assert_eq!(statuses[0], Status::Ok);
        assert_ne!(statuses[1], Status::Ok);
        assert_eq!(world.entry().unwrap().owner.server, ServerId(order[0]));
        assert_eq!(world.generation(), generation + 1);
    }
}

/// The tables of the switch are lost in the middle of a move. A message to the lost tables makes no server an owner.
#[test]
fn after_a_restart_of_the_switch_old_messages_own_nothing() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let generation = world.generation();
    let mut restarted = World::empty(crate::test_config::config());
    let later = spillway_rules::Switch::new(crate::test_config::config(), EPOCH + 1_000_000).unwrap();
    restarted.switch = later;
    let own = Message::new(2, Kind::Own).generation(generation).with(|view| {
        view.set_epoch(EPOCH);
        view.set_sequence(1000);
    });
    assert_eq!(restarted.deliver(&own).status(), Status::NoOwner);
    let hello = restarted.deliver(&Message::new(2, Kind::Hello).with(|view| view.set_epoch(EPOCH)));
    assert_eq!(hello.view.epoch(), EPOCH + 1_000_000);
    let hello = Message::new(2, Kind::Hello).with(|view| {
        view.set_epoch(EPOCH + 1_000_000);
        view.set_sequence(1001);
    });
    assert!(restarted.deliver(&hello).view.generation() > generation, "generations never return");
    let own = own.with(|view| {
        view.set_epoch(EPOCH + 1_000_000);
        view.set_sequence(1002);
    });
    assert_eq!(restarted.deliver(&own).status(), Status::NoEntry);
    assert_eq!(restarted.entry_of(endpoint("10.0.9.9:5000")), None);
}
