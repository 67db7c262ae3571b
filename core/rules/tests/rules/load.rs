//! The least loaded owner.

use core::time::Duration;

use spillway_rules::{FlowState, ServerId};
use spillway_transport::Time;
use spillway_wire::switch::{Kind, Status};

use crate::test_config::{config, endpoint, other_service, server_address, server_mac};
use crate::world::{Message, World};

/// A world in which the servers have these loads, free places and weights.
fn world(reports: [(u32, u32, u16); 4]) -> World {
    let mut world = World::new();
    report(&mut world, reports);
    world
}

fn report(world: &mut World, reports: [(u32, u32, u16); 4]) {
    for (server, (load, free_places, weight)) in (1..).zip(reports) {
        let heartbeat = Message::new(server, Kind::Heartbeat).load(load, free_places, weight);
        assert_eq!(world.send(heartbeat).status(), Status::Ok);
    }
}

/// The target of a new move from a server, with a client of its own; `None`: no owner.
fn choose(world: &mut World, client: u16) -> Option<u8> {
    let client = endpoint(&format!("10.0.9.10:{client}"));
    let reply = world.send(Message::new(1, Kind::Prepare).client(client));
    match reply.view.status().unwrap() {
        Status::NoOwner => None,
        _ => Some(reply.relayed().0.number()),
    }
}

#[test]
fn the_lowest_load_for_its_weight_is_chosen() {
    for (reports, expected) in [
        ([(0, 9, 1), (30, 9, 1), (20, 9, 1), (10, 9, 1)], Some(4)),
        ([(0, 9, 1), (30, 9, 10), (20, 9, 1), (10, 9, 1)], Some(2)),
        ([(0, 9, 1), (10, 0, 1), (20, 9, 1), (30, 9, 1)], Some(3)),
        ([(0, 9, 1), (10, 9, 0), (20, 9, 0), (30, 9, 1)], Some(4)),
        ([(0, 9, 1), (10, 0, 1), (20, 9, 0), (30, 0, 0)], None),
        ([(0, 9, 1), (u32::MAX, 9, 1), (u32::MAX, 9, u16::MAX), (u32::MAX, 9, 2)], Some(3)),
        ([(0, 9, 1), (0, 9, 1), (1, 9, u16::MAX), (1, 9, 1)], Some(2)),
    ] {
        assert_eq!(choose(&mut world(reports), 1), expected, "{reports:?}");
    }
}

#[test]
fn ties_rotate() {
    let mut world = world([(5, 99, 1); 4]);
    let chosen: Vec<_> = (1..=260).map(|client| choose(&mut world, client).unwrap_or(0)).take(6).collect();
    // The scan begins at 1, 2, 3, 4, 5, 6: the sender, server 1, is left out; beyond 4 it begins anew.
    assert_eq!(chosen, [2, 2, 3, 4, 2, 2]);
    // After 255 choices the scan begins at 1 again; named targets and failures do not count as choices.
    let mut config = config();
    config.flows_max = 1000;
    let mut world = World::with(config);
    report(&mut world, [(5, 10_000, 1); 4]);
    for client in 1..=255 {
        choose(&mut world, client);
    }
    assert_eq!(
        (choose(&mut world, 256), choose(&mut world, 257), choose(&mut world, 258)),
        (Some(2), Some(2), Some(3))
    );
}

#[test]
fn each_move_takes_a_place_until_the_next_heartbeat() {
    let mut world = world([(0, 0, 1), (1, 2, 1), (2, 1, 1), (3, 0, 1)]);
    assert_eq!(choose(&mut world, 1), Some(2));
    assert_eq!(choose(&mut world, 2), Some(2));
    assert_eq!(choose(&mut world, 3), Some(3));
    assert_eq!(choose(&mut world, 4), None);
    report(&mut world, [(0, 0, 1), (1, 1, 1), (2, 0, 1), (3, 0, 1)]);
    assert_eq!(choose(&mut world, 5), Some(2));
    assert_eq!(choose(&mut world, 6), None);
    // A named target needs no place, and takes one if there is one.
    let named = |client: &str, server| Message::new(1, Kind::Prepare).client(endpoint(client)).place(server);
    report(&mut world, [(0, 0, 1), (1, 1, 1), (2, 0, 1), (3, 0, 1)]);
    world.send(named("10.0.9.11:1", 2)).relayed();
    assert_eq!(choose(&mut world, 7), None);
    world.send(named("10.0.9.11:2", 2)).relayed();
    assert_eq!(world.switch.owners(world.now)[1].free_places, 0);
}

#[test]
fn a_repeated_prepare_takes_no_second_place_and_keeps_its_target() {
    let mut world = world([(0, 0, 1), (1, 5, 1), (2, 5, 1), (3, 5, 1)]);
    let prepare = Message::new(1, Kind::Prepare);
    assert_eq!(world.send(prepare.clone()).relayed().0.number(), 2);
    let entry = world.entry();
    report(&mut world, [(0, 0, 1), (9, 5, 1), (2, 5, 1), (3, 5, 1)]);
    let repeated = world.send(prepare.clone());
    assert_eq!(repeated.relayed(), (crate::test_config::port(2), Status::Ok, FlowState::Asked));
    assert_eq!(world.send(prepare.place(3)).relayed().0.number(), 2, "also if it names another target");
    assert_eq!(world.entry(), entry);
    assert_eq!(world.switch.owners(world.now)[1].free_places, 5);
}

#[test]
fn only_live_owners_of_the_service_are_chosen() {
    let mut world = world([(0, 9, 1), (10, 9, 1), (20, 9, 1), (30, 9, 1)]);
    world.alive = vec![1, 3, 4];
    world.pass(Duration::from_millis(1010));
    report_some(&mut world);
    assert_eq!(choose(&mut world, 1), Some(3), "server 2 is silent");
    let elsewhere = Message::new(3, Kind::Heartbeat).service(other_service()).load(0, 9, 1);
    assert_eq!(world.send(elsewhere).status(), Status::Ok);
    assert_eq!(choose(&mut world, 2), Some(4), "server 3 serves something else");
    world.send(Message::new(4, Kind::Hello));
    assert_eq!(choose(&mut world, 3), None, "server 4 has not stated its service");
}

fn report_some(world: &mut World) {
    for (server, load) in [(1, 0), (3, 20), (4, 30)] {
        world.send(Message::new(server, Kind::Heartbeat).load(load, 9, 1));
    }
}

#[test]
fn a_server_whose_port_lost_the_service_is_no_target() {
    let mut world = world([(0, 9, 1), (10, 9, 1), (20, 9, 1), (30, 9, 1)]);
    let mut config = config();
    config.ports[2].may_own = spillway_rules::config::Services::NONE;
    config.places.retain(|place| place.server != ServerId(2));
    world.switch.reload(config).unwrap();
    assert_eq!(choose(&mut world, 1), Some(3));
    let named = Message::new(1, Kind::Prepare).site(crate::test_config::service(), server_mac(2));
    assert_eq!(world.send(named).status(), Status::Forbidden);
}

#[test]
fn tenants_cannot_hold_flows_to_each_others_servers() {
    let mut world = World::new();
    let client = endpoint("10.0.9.10:1");
    let about = |message: Message| message.service(other_service()).client(client);
    world.send(Message::new(4, Kind::Heartbeat).service(other_service()).load(0, 9, 1));
    world.send(about(Message::new(3, Kind::Prepare))).relayed();
    let generation = world.entry_of(client).unwrap().generation;
    world.send(about(Message::new(3, Kind::Own).generation(generation)));
    let generation = world.entry_of(client).unwrap().generation;
    for kind in [Kind::Hold, Kind::Prepare] {
        let to_stranger =
            about(Message::new(3, kind).generation(generation).site(other_service(), server_mac(2)));
        assert_eq!(world.send(to_stranger).outcome(), (Status::Forbidden, FlowState::Owned), "{kind}");
    }
    let to_friend =
        about(Message::new(3, Kind::Hold).generation(generation).site(other_service(), server_mac(4)));
    assert_eq!(world.send(to_friend).outcome(), (Status::Ok, FlowState::Held));
}

#[test]
fn list_states_the_nth_owner() {
    let mut world = world([(11, 1, 1), (12, 2, 2), (13, 3, 3), (14, 4, 4)]);
    let elsewhere = Message::new(3, Kind::Heartbeat).service(other_service()).load(0, 9, 1);
    world.send(elsewhere);
    world.now = Time(world.now.0 + 7_900_000);
    for (n, server) in [(0, 1), (1, 2), (2, 4)] {
        let reply = world.send(Message::new(3, Kind::List).generation(n));
        assert_eq!(reply.outcome(), (Status::Ok, FlowState::Owned));
        let site = reply.view.owner().unwrap();
        assert_eq!((site.endpoint().address(), site.endpoint().port()), (server_address(server).0, 0));
        assert_eq!((site.mac(), reply.view.generation()), (server_mac(server), n));
        let view = reply.view;
        let server = u32::from(server);
        assert_eq!(
            (view.load(), view.free_places(), u32::from(view.weight())),
            (10 + server, server, server)
        );
        assert_eq!(view.lifetime_ms(), 7);
    }
    for n in [3, u64::MAX] {
        let reply = world.send(Message::new(3, Kind::List).generation(n).place(1));
        assert_eq!(reply.outcome(), (Status::NoOwner, FlowState::None));
        assert_eq!((reply.view.generation(), reply.view.owner()), (n, None));
    }
    // The daemon's term makes it no owner of a service; silent owners have state 0.
    world.send(Message::new(0, Kind::Hello));
    world.alive = vec![1, 4];
    world.pass(Duration::from_secs(2));
    let reply = world.send(Message::new(0, Kind::List).generation(1));
    assert_eq!(reply.outcome(), (Status::Ok, FlowState::None));
    assert_eq!((reply.view.owner().unwrap().mac(), reply.view.lifetime_ms()), (server_mac(2), 2007));
}
