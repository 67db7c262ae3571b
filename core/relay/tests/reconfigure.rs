//! Reconfiguration of a running relay.

mod world;

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    AddressRules, CloseReason, Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerLink, PolicyKind,
    Role, Scratch, ServerConfig, ServerLink,
};
use spillway_relay::{Config, ConfigError, Drained, LinkState, Notice, ServiceConfig};
use spillway_transport::{Application, Event, LostReason, Time};
use world::{Observed, SERVER, World, client_key, config, helper_key};

const CLIENT: &str = "10.9.0.1:5000";
const WITHIN: Duration = Duration::from_secs(30);

fn change(world: &mut World, config: Config) -> Result<(), ConfigError> {
    let changed = world.relay.reconfigure(world.now, config, WITHIN, &mut world.transport);
    world.relay.end_of_turn(world.now, &mut world.transport);
    changed
}

fn with(change: impl FnOnce(&mut ServiceConfig)) -> Config {
    let mut config = config();
    change(&mut config.services[0]);
    config
}

fn notices(world: &mut World) -> Vec<Notice> {
    std::iter::from_fn(|| world.relay.poll_notice()).collect()
}

fn turn(world: &mut World) {
    world.relay.handle_timeout(world.now, &mut world.transport);
    world.relay.end_of_turn(world.now, &mut world.transport);
}

/// The server's end of a link, which accepts these keys.
fn server_with(now: Time, keys: &[Key]) -> ServerLink {
    let mut ring = KeyRing::new();
    keys.iter().for_each(|key| ring.accept(Role::Helper, key.clone()));
    let config = ServerConfig {
        ring,
        rules: AddressRules::default(),
        limits: Limits::default(),
        encryption: Encryption::Preferred,
    };
    let (peer, local) = ("10.0.0.2:40001".parse().unwrap(), SERVER.parse().unwrap());
    ServerLink::new(
        Arc::new(config),
        now,
        peer,
        local,
        LinkRandomness::from_random([8; LinkRandomness::BYTES]),
    )
}

/// Lets the relay open a new link, and returns the old link with its server's end.
fn open_another(world: &mut World, keys: &[Key]) -> (spillway_transport::Conn, ServerLink) {
    turn(world);
    let (link, target) = world.transport.connects.remove(0);
    let old = std::mem::replace(&mut world.link, link);
    let server = std::mem::replace(&mut world.server, server_with(world.now, keys));
    world.event(link, Event::Opened { peer: target, listener: None });
    (old, server)
}

fn link_states(world: &World) -> Vec<(LinkState, bool)> {
    world.relay.status().services[0].links.iter().map(|link| (link.state, link.replaced)).collect()
}

#[test]
fn an_unchanged_configuration_has_no_effect() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    notices(&mut world);
    change(&mut world, config()).unwrap();
    turn(&mut world);
    assert!(world.transport.connects.is_empty() && notices(&mut world).is_empty());
    world.data(client, b"get x");
    assert_eq!(world.exchange(), [Observed::Data(1, b"get x".to_vec())]);
}

#[test]
fn ranges_and_policies_change_in_place() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    let slow = PolicyKind::Fixed { delay: Duration::from_secs(1), bytes: 1000 };
    change(
        &mut world,
        with(|service| {
            service.clients = vec!["10.8.0.0/16".parse().unwrap()];
            service.policy = slow;
        }),
    )
    .unwrap();
    // The new ranges apply to new clients only.
    let late = world.client(0, "10.9.0.1:5001");
    assert!(world.transport.record(late).aborted && !world.transport.record(client).aborted);
    world.data(client, b"get x");
    assert!(world.exchange().is_empty(), "the batch waits now");
    world.now = world.now + Duration::from_secs(1);
    turn(&mut world);
    assert_eq!(world.exchange(), [Observed::Data(1, b"get x".to_vec())]);
    assert!(world.transport.connects.is_empty(), "no new link is opened");
}

#[test]
fn another_key_gets_a_new_link_before_the_old_one_ends() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    let new_key = Key::from_secret([7; 32]);
    let keys = vec![new_key.clone(), helper_key()];
    change(&mut world, with(|service| service.keys = keys)).unwrap();
    assert!(world.transport.listening[&0], "the old link accepts clients");
    let during = world.client(0, "10.9.0.1:5001");
    assert!(!world.transport.record(during).aborted);
    let (old, mut old_server) = open_another(&mut world, std::slice::from_ref(&new_key));
    assert_eq!(link_states(&world), [(LinkState::Up, true), (LinkState::Connecting, false)]);
    world.exchange();
    assert_eq!(link_states(&world), [(LinkState::Draining, true), (LinkState::Up, false)]);
    let links = world.relay.status().services[0].links.clone();
    assert_eq!((links[0].key, links[1].key), (Some(helper_key().id()), Some(new_key.id())));

    // New clients use the new link; those of the old link are served as before.
    world.client(0, "10.9.0.1:5002");
    assert!(matches!(world.exchange()[..], [Observed::Connect(1, _)]));
    world.data(client, b"get x");
    let bytes = world.transport.take(old);
    let mut scratch = Scratch::new();
    let mut input = old_server.unseal(world.now, &bytes, &mut scratch);
    let mut events = Vec::new();
    while let Some(event) = old_server.decompose(world.now, &mut input).unwrap() {
        events.push(format!("{event:?}"));
    }
    assert!(events.iter().any(|event| event.starts_with("Data")), "{events:?}");

    // The old link is closed after its last client has left.
    for (conn, id) in [(client, 1), (during, 2)] {
        world.event(conn, Event::Lost(LostReason::Closed));
        old_server.close(Id(id), CloseReason::Normal);
    }
    let bytes = world.transport.take(old);
    let mut scratch = Scratch::new();
    let mut input = old_server.unseal(world.now, &bytes, &mut scratch);
    while old_server.decompose(world.now, &mut input).unwrap().is_some() {}
    let batch = old_server.flush(world.now).unwrap();
    assert!(!world.transport.record(old).finished);
    world.data(old, batch.as_slice());
    assert!(world.transport.record(old).finished && !world.transport.record(old).aborted);
    assert_eq!(link_states(&world), [(LinkState::Up, false)]);
    assert!(notices(&mut world).contains(&Notice::LinkRetired { service: 0, link: 0 }));
    let counters = world.relay.status().services[0].counters;
    assert_eq!((counters.links_up, counters.links_lost, counters.lost_with_link), (2, 0, 0));
}

#[test]
fn an_older_key_is_tried_where_the_newest_is_not_accepted() {
    let mut world = World::new(config());
    world.exchange();
    let (new, newer) = (Key::from_secret([7; 32]), Key::from_secret([8; 32]));
    change(&mut world, with(|service| service.keys = vec![newer.clone(), new.clone(), helper_key()]))
        .unwrap();
    for (tried, expected) in [(&newer, 1), (&new, 1)] {
        let (_, _) = open_another(&mut world, &[helper_key()]);
        // The server rejects the key.
        let hello = world.transport.take(world.link);
        let refused = world.server.decompose(world.now, &mut hello.as_slice());
        assert!(refused.is_err());
        let rejection = world.server.flush(world.now).unwrap();
        let (link, now) = (world.link, world.now);
        world.data(link, rejection.as_slice());
        let notices = notices(&mut world);
        let key = tried.id();
        let count = notices.iter().filter(|n| **n == Notice::KeyRefused { service: 0, link: 0, key }).count();
        assert_eq!(count, expected, "{notices:?}");
        assert_eq!(world.relay.poll_timeout(), Some(now), "the next key is tried at once");
    }
    open_another(&mut world, &[helper_key()]);
    world.exchange();
    let links = world.relay.status().services[0].links.clone();
    let link = links.iter().find(|link| !link.replaced).unwrap();
    assert_eq!((link.state, link.key), (LinkState::Up, Some(helper_key().id())));
}

/// Encryption becomes required while the link to the server and a library client's link are unencrypted: they get no
/// new clients, and end at the deadline.
#[test]
fn links_without_encryption_end_when_it_becomes_required() {
    let mut world = World::new(with(|service| service.encryption = Encryption::Off));
    let plain = world.client(0, CLIENT);
    let library = world.client(1, "10.9.0.1:5003");
    let policy = PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 };
    let (role, limits, encryption) = (Role::Client, Limits::default(), Encryption::Off);
    let opener = OpenerConfig { role, key: client_key(), limits, policy, encryption };
    let mut client =
        OpenerLink::new(&opener, world.now, LinkRandomness::from_random([3; LinkRandomness::BYTES]));
    let mut observed = Vec::new();
    let mut exchange = |world: &mut World| {
        if let Some(batch) = client.flush(world.now) {
            world.data(library, batch.as_slice());
        }
        let bytes = world.transport.take(library);
        let mut scratch = Scratch::new();
        let mut input = client.unseal(world.now, &bytes, &mut scratch);
        while let Some(event) = client.decompose(world.now, &mut input).unwrap() {
            observed.push(format!("{event:?}"));
        }
        observed.join(" ")
    };
    for _ in 0..3 {
        exchange(&mut world);
    }
    world.exchange();
    assert!(!world.relay.status().services[0].links[0].encrypted);
    change(
        &mut world,
        with(|service| {
            (service.encryption, service.client_encryption) = (Encryption::Required, Encryption::Required)
        }),
    )
    .unwrap();
    assert!(exchange(&mut world).contains("Drain"), "the library client is sent a drain");
    let refused = world.client(0, "10.9.0.1:5004");
    assert!(world.transport.record(refused).aborted, "no new client on the old link");
    let (old, _) = open_another(&mut world, &[helper_key()]);
    world.exchange();
    assert_eq!(link_states(&world), [(LinkState::Draining, true), (LinkState::Up, false)]);
    assert!(world.relay.status().services[0].links[1].encrypted);
    world.client(0, "10.9.0.1:5005");
    assert!(matches!(world.exchange()[..], [Observed::Connect(1, _)]), "on the new link");
    assert!(
        !world.transport.record(plain).aborted && !world.transport.record(library).aborted,
        "before the deadline"
    );
    world.now = world.now + WITHIN;
    turn(&mut world);
    assert!(world.transport.record(plain).aborted && world.transport.record(library).aborted);
    assert!(world.transport.record(old).finished);
    assert_eq!(link_states(&world), [(LinkState::Up, false)]);
    assert_eq!(world.relay.status().services[0].counters.cut.protocol, 1);
}

#[test]
fn clients_must_leave_the_old_server_within_their_time() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    let other = "10.0.0.6:11411".parse().unwrap();
    change(&mut world, with(|service| service.server = other)).unwrap();
    let (old, _) = open_another(&mut world, &[helper_key()]);
    world.exchange();
    assert_eq!(world.relay.status().services[0].server, other);
    world.client(0, "10.9.0.1:5002");
    assert!(matches!(world.exchange()[..], [Observed::Connect(1, _)]), "at the new server");
    assert_eq!(world.relay.poll_timeout(), Some(world.now + WITHIN));
    assert!(!world.transport.record(client).aborted);
    world.now = world.now + WITHIN;
    turn(&mut world);
    assert!(world.transport.record(client).aborted && world.transport.record(old).finished);
    assert_eq!((world.relay.clients(), link_states(&world)), (1, vec![(LinkState::Up, false)]));
}

#[test]
fn a_removed_service_is_drained_and_can_start_again() {
    let other =
        ServiceConfig { plain_listeners: vec![2], ..ServiceConfig::new("other", SERVER.parse().unwrap()) };
    let other = ServiceConfig { keys: vec![helper_key()], ..other };
    let only_other = Config::new(vec![other]);
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    change(&mut world, only_other.clone()).unwrap();
    assert!(!world.transport.listening[&0] && !world.transport.listening[&1]);
    let late = world.client(0, "10.9.0.1:5001");
    assert!(world.transport.record(late).aborted, "accepted by the host before the listener closed");
    world.data(client, b"get x");
    assert_eq!(world.exchange(), [Observed::Data(1, b"get x".to_vec())]);
    let status = world.relay.status();
    assert!(status.services[0].removed && status.services[1].name == "other");
    world.event(client, Event::Lost(LostReason::Closed));
    assert!(world.transport.record(world.link).finished);
    assert_eq!(world.relay.status().services.len(), 1, "the service ends with its last client");

    // A service with the same name continues its counters.
    let mut both = config();
    both.services.extend(only_other.services);
    change(&mut world, both).unwrap();
    turn(&mut world);
    let (link, _) = world.transport.connects[0];
    assert_eq!(world.transport.connects.len(), 2, "one link for each service");
    assert_ne!(link, world.link);
    assert_eq!(world.relay.status().services[0].counters.plain_clients, 1);
}

#[test]
fn one_service_can_be_drained() {
    let mut world = World::new(config());
    let (leaves, stays) = (world.client(0, CLIENT), world.client(0, "10.9.0.1:5001"));
    world.exchange();
    assert!(!world.relay.drain_service(world.now, "other", WITHIN, &mut world.transport));
    assert!(world.relay.drain_service(world.now, "cache", WITHIN, &mut world.transport));
    assert!(!world.transport.listening[&0] && !world.relay.is_draining());
    world.event(leaves, Event::Lost(LostReason::Closed));
    world.now = world.now + WITHIN;
    turn(&mut world);
    assert!(world.transport.record(stays).aborted && world.transport.record(world.link).finished);
    let status = world.relay.status();
    assert_eq!(status.services[0].drained, Some(Drained { moved: 0, left: 1, failed: 1 }));
    assert!(notices(&mut world).contains(&Notice::DrainDeadline { service: 0, clients: 1 }));
    // A reconfiguration ends the drain.
    change(&mut world, config()).unwrap();
    open_another(&mut world, &[helper_key()]);
    world.exchange();
    assert_eq!(world.relay.status().services[0].drained, None);
    let client = world.client(0, CLIENT);
    assert!(!world.transport.record(client).aborted);
}

/// A new configuration would start the services again, so that the relay would never be drained.
#[test]
fn a_draining_relay_rejects_new_configurations() {
    let mut world = World::new(config());
    let client = world.client(0, CLIENT);
    world.exchange();
    world.relay.drain(world.now, WITHIN, &mut world.transport);
    assert_eq!(world.relay.check_change(&config()), Err(ConfigError::GoingAway));
    assert_eq!(change(&mut world, config()), Err(ConfigError::GoingAway));
    assert!(!world.transport.listening[&0]);
    world.event(client, Event::Lost(LostReason::Closed));
    assert!(world.relay.is_drained());
}

#[test]
fn a_listener_may_change_its_service_without_closing() {
    let mut world = World::new(config());
    let second = |raw: Vec<u16>| ServiceConfig {
        plain_listeners: raw,
        keys: vec![helper_key()],
        policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
        ..ServiceConfig::new("second", SERVER.parse().unwrap())
    };
    let mut both = config();
    both.services.push(second(vec![5]));
    change(&mut world, both).unwrap();
    world.link_comes_up(Limits::default());
    assert!(world.transport.listening[&0] && world.transport.listening[&5]);
    let mut swapped = config();
    swapped.services[0].plain_listeners = vec![5];
    swapped.services.push(second(vec![0]));
    change(&mut world, swapped).unwrap();
    assert!(world.transport.listening[&0] && world.transport.listening[&5]);
    world.client(0, CLIENT);
    assert_eq!(world.relay.status().services[1].plain_clients, 1);
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let mut world = World::new(config());
    assert_eq!(change(&mut world, Config::new(Vec::new())), Err(ConfigError::NoServices));
    let keyless = with(|service| service.keys.clear());
    assert_eq!(change(&mut world, keyless), Err(ConfigError::NoKey("cache".into())));
    let mut count = 0;
    let many = loop {
        let service = ServiceConfig {
            keys: vec![helper_key()],
            ..ServiceConfig::new(format!("s{count}"), SERVER.parse().unwrap())
        };
        count += 1;
        if let Err(error) = change(&mut world, Config::new(vec![service])) {
            break error;
        }
        world.transport.connects.clear();
    };
    assert_eq!((many, count), (ConfigError::TooManyServices, 1024));
}
