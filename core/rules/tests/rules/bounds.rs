//! Tables at their bounds.

use spillway_rules::config::{Config, PLACES_MAX, PREFIXES_MAX, STATIONS_MAX};
use spillway_rules::{ConfigError, FlowState, Switch, Verdict};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Kind, Status};

use crate::frames::ACK;
use crate::test_config::{address, config, endpoint, place_of, server_mac, service};
use crate::world::{Message, World, client_frame};

/// The world with a full table of two flows. Server 2 has one place left.
fn full() -> World {
    let mut config = config();
    config.flows_max = 2;
    let mut world = World::with(config);
    for number in 1..=2 {
        let client = endpoint(&format!("10.0.9.10:{number}"));
        world.send(Message::new(1, Kind::Prepare).client(client)).relayed();
    }
    world
}

#[test]
fn a_full_table_says_so_and_traffic_continues() {
    let mut world = full();
    let prepare = Message::new(1, Kind::Prepare);
    let reply = world.send(prepare);
    assert_eq!((reply.outcome(), reply.view.generation()), ((Status::Full, FlowState::None), 0));
    assert_eq!(world.switch.flow_count(), 2);
    assert_eq!(world.client_sends(ACK).0.verdict, Verdict::Switched);
    assert_eq!(world.server_sends(1, service(), ACK).0.verdict, Verdict::Switched);
    // Flows that have an entry move as before.
    let client = endpoint("10.0.9.10:1");
    let generation = world.entry_of(client).unwrap().generation;
    let prepared = Message::new(2, Kind::Prepared).client(client).generation(generation).place(2);
    assert_eq!(world.send(prepared).relayed().2, FlowState::Held);
}

#[test]
fn a_full_table_takes_a_generation_a_turn_and_a_place() {
    let mut world = full();
    let places = |world: &World| world.switch.owners(world.now)[1].free_places;
    assert_eq!(places(&world), 8);
    let last = world.switch.flows().iter().map(|flow| flow.generation).max().unwrap();
    assert_eq!(world.send(Message::new(1, Kind::Prepare)).status(), Status::Full);
    assert_eq!(places(&world), 7);
    let client = endpoint("10.0.9.10:1");
    let generation = world.entry_of(client).unwrap().generation;
    world.send(Message::new(1, Kind::Own).client(client).generation(generation));
    assert_eq!(world.entry_of(client).unwrap().generation, last + 2);
}

#[test]
fn an_ended_flow_makes_room() {
    let mut world = full();
    let client = endpoint("10.0.9.10:1");
    let generation = world.entry_of(client).unwrap().generation;
    let clear = Message::new(0, Kind::Release).client(client).generation(generation);
    assert_eq!(world.send(clear).status(), Status::Ok);
    world.send(Message::new(1, Kind::Prepare)).relayed();
    assert_eq!(world.switch.flow_count(), 2);
}

#[test]
fn the_largest_configuration_is_accepted_and_one_more_is_not() {
    let mut largest = config();
    largest.stations = (0..STATIONS_MAX as u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            spillway_rules::config::Station {
                mac: Mac([2, 9, 0, 0, high, low]),
                port: crate::test_config::port(0),
            }
        })
        .collect();
    largest.prefixes = (0..PREFIXES_MAX as u32)
        .map(|number| spillway_rules::config::Prefix {
            address: core::net::Ipv4Addr::from_bits(0x0b00_0000 + (number << 8)).into(),
            length: 24,
            next_hop: Mac([2; 6]),
            port: crate::test_config::port(5),
        })
        .collect();
    let place = *largest.places.iter().find(|place| place.at == place_of(2)).unwrap();
    for port in 10_000.. {
        if largest.places.len() == PLACES_MAX {
            break;
        }
        let at = spillway_rules::Endpoint::new(place.at.address(), port);
        largest.places.push(spillway_rules::config::Place { at, ..place });
    }
    let switch = Switch::new(largest.clone(), 1);
    assert!(switch.is_ok(), "{:?}", switch.err());
    let more = |change: &dyn Fn(&mut Config)| {
        let mut config = largest.clone();
        change(&mut config);
        Switch::new(config, 1).err()
    };
    let other_mac = Mac([2, 10, 0, 0, 0, 0]);
    assert_eq!(
        more(&|config| config
            .stations
            .push(spillway_rules::config::Station { mac: other_mac, ..config.stations[0] })),
        Some(ConfigError::TooManyStations(4097))
    );
    assert_eq!(
        more(&|config| config
            .prefixes
            .push(spillway_rules::config::Prefix { address: address("172.16.0.0"), ..config.prefixes[0] })),
        Some(ConfigError::TooManyPrefixes(1025))
    );
    assert_eq!(
        more(&|config| config
            .places
            .push(spillway_rules::config::Place { at: endpoint("10.0.1.2:9"), ..place })),
        Some(ConfigError::TooManyPlaces(4097))
    );
}

#[test]
fn the_last_of_many_stations_prefixes_and_places_is_found() {
    let mut many = config();
    let place = *many.places.iter().find(|place| place.at == place_of(2)).unwrap();
    for port in 10_000..14_000 {
        let at = spillway_rules::Endpoint::new(place.at.address(), port);
        many.places.push(spillway_rules::config::Place { at, ..place });
    }
    let mut world = World::with(many);
    world.ask(1, 2);
    let at = endpoint("10.0.1.2:13999");
    let prepared = Message::new(2, Kind::Prepared).generation(world.generation()).site(at, server_mac(2));
    assert_eq!(world.send(prepared).relayed().2, FlowState::Held);
    assert_eq!(world.client_sends_frame(&client_frame(ACK)).1.target, at);
    world.own(2);
    assert_eq!(world.server_sends(2, at, ACK).0.verdict, Verdict::FromOwner);
    assert_eq!(world.server_sends(2, place_of(2), ACK).0.verdict, Verdict::DropNotOwner);
}

#[test]
fn a_switch_needs_an_epoch() {
    assert_eq!(Switch::new(config(), 0).err(), Some(ConfigError::Epoch));
    assert_eq!(Switch::new(config(), 5).unwrap().epoch(), 5);
}
