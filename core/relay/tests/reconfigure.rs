//! Reconfiguration of a running relay.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::{Harness, Observed, SERVER, client_key, config, helper_key};
use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    AddressRules, CloseReason, Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerLink, PolicyKind,
    Role, Scratch, ServerConfig, ServerLink,
};
use spillway_relay::{Config, ConfigError, Drained, LinkState, Notice, ServiceConfig};
use spillway_transport::{Application, Event, LostReason, Time};

const CLIENT: &str = "10.9.0.1:5000";
const DRAIN_TIME: Duration = Duration::from_secs(30);

fn reconfigure(harness: &mut Harness, config: Config) -> Result<(), ConfigError> {
    let outcome = harness.relay.reconfigure(harness.now, config, DRAIN_TIME, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
    outcome
}

fn config_with(change: impl FnOnce(&mut ServiceConfig)) -> Config {
    let mut config = config();
    change(&mut config.services[0]);
    config
}

fn notices(harness: &mut Harness) -> Vec<Notice> {
    std::iter::from_fn(|| harness.relay.poll_notice()).collect()
}

fn run_turn(harness: &mut Harness) {
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
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
fn open_another(harness: &mut Harness, keys: &[Key]) -> (spillway_transport::Conn, ServerLink) {
    run_turn(harness);
    let (link, target) = harness.transport.connects.remove(0);
    let old = std::mem::replace(&mut harness.link, link);
    let server = std::mem::replace(&mut harness.server, server_with(harness.now, keys));
    harness.event(link, Event::Opened { peer: target, listener: None });
    (old, server)
}

fn link_states(harness: &Harness) -> Vec<(LinkState, bool)> {
    harness.relay.status().services[0].links.iter().map(|link| (link.state, link.replaced)).collect()
}

#[test]
fn an_unchanged_configuration_has_no_effect() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    notices(&mut harness);
    reconfigure(&mut harness, config()).unwrap();
    run_turn(&mut harness);
    assert!(harness.transport.connects.is_empty() && notices(&mut harness).is_empty(), "all should stay");
    harness.data(client, b"get x");
    assert_eq!(harness.exchange(), [Observed::Data(1, b"get x".to_vec())]);
}

#[test]
fn address_ranges_and_batch_policy_change_without_new_links() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    let one_second = PolicyKind::Fixed { interval: Duration::from_secs(1), size_bytes: 1000 };
    reconfigure(
        &mut harness,
        config_with(|service| {
            service.clients = vec!["10.8.0.0/16".parse().unwrap()];
            service.policy = one_second;
        }),
    )
    .unwrap();
    // The new ranges apply to new clients only.
    let late = harness.client(0, "10.9.0.1:5001");
    assert!(
        harness.transport.record(late).aborted && !harness.transport.record(client).aborted,
        "only the client outside the new ranges should be reset"
    );
    harness.data(client, b"get x");
    assert!(harness.exchange().is_empty(), "the batch should wait for the new delay");
    harness.now = harness.now + Duration::from_secs(1);
    run_turn(&mut harness);
    assert_eq!(harness.exchange(), [Observed::Data(1, b"get x".to_vec())]);
    assert!(harness.transport.connects.is_empty(), "no new link should be opened");
}

#[test]
fn new_key_gets_a_new_link_before_the_old_one_ends() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    let new_key = Key::from_secret([7; 32]);
    let keys = vec![new_key.clone(), helper_key()];
    reconfigure(&mut harness, config_with(|service| service.keys = keys)).unwrap();
    assert!(harness.transport.listening[&0], "the old link should accept clients");
    let second_client = harness.client(0, "10.9.0.1:5001");
    assert!(!harness.transport.record(second_client).aborted, "the client should stay on the old link");
    let (old, mut old_server) = open_another(&mut harness, std::slice::from_ref(&new_key));
    assert_eq!(link_states(&harness), [(LinkState::Up, true), (LinkState::Connecting, false)]);
    harness.exchange();
    assert_eq!(link_states(&harness), [(LinkState::Draining, true), (LinkState::Up, false)]);
    let links = harness.relay.status().services[0].links.clone();
    assert_eq!((links[0].key, links[1].key), (Some(helper_key().id()), Some(new_key.id())));

    // New clients use the new link; those of the old link are served as before.
    harness.client(0, "10.9.0.1:5002");
    assert!(
        matches!(harness.exchange()[..], [Observed::Connect(1, _)]),
        "the new link should serve the client"
    );
    harness.data(client, b"get x");
    let bytes = harness.transport.take(old);
    let mut scratch = Scratch::new();
    let mut input = old_server.unseal(harness.now, &bytes, &mut scratch);
    let mut events = Vec::new();
    while let Some(event) = old_server.decompose(harness.now, &mut input).unwrap() {
        events.push(format!("{event:?}"));
    }
    assert!(
        events.iter().any(|event| event.starts_with("Data")),
        "the new link should carry data: {events:?}"
    );

    // The old link is closed after its last client has left.
    for (conn, id) in [(client, 1), (second_client, 2)] {
        harness.event(conn, Event::Lost(LostReason::Closed));
        old_server.close(Id(id), CloseReason::Normal);
    }
    let bytes = harness.transport.take(old);
    let mut scratch = Scratch::new();
    let mut input = old_server.unseal(harness.now, &bytes, &mut scratch);
    while old_server.decompose(harness.now, &mut input).unwrap().is_some() {}
    let batch = old_server.flush(harness.now).unwrap();
    assert!(!harness.transport.record(old).finished, "the old link should stay while it has clients");
    harness.data(old, batch.as_slice());
    assert!(
        harness.transport.record(old).finished && !harness.transport.record(old).aborted,
        "the old link should be finished after the last client"
    );
    assert_eq!(link_states(&harness), [(LinkState::Up, false)]);
    assert!(
        notices(&mut harness).contains(&Notice::LinkRetired { service: 0, link: 0, clients: 0 }),
        "retirement should be reported"
    );
    let counters = harness.relay.status().services[0].counters;
    assert_eq!((counters.links_up, counters.links_lost, counters.lost_with_link), (2, 0, 0));
}

#[test]
fn older_key_is_tried_when_the_server_rejects_the_newest() {
    let mut harness = Harness::new(config());
    harness.exchange();
    let (new, newer) = (Key::from_secret([7; 32]), Key::from_secret([8; 32]));
    reconfigure(
        &mut harness,
        config_with(|service| service.keys = vec![newer.clone(), new.clone(), helper_key()]),
    )
    .unwrap();
    for rejected in [&newer, &new] {
        let (_, _) = open_another(&mut harness, &[helper_key()]);
        // The server rejects the key.
        let hello = harness.transport.take(harness.link);
        let outcome = harness.server.decompose(harness.now, &mut hello.as_slice());
        assert!(outcome.is_err(), "the newest key should be rejected");
        let rejection = harness.server.flush(harness.now).unwrap();
        let (link, now) = (harness.link, harness.now);
        harness.data(link, rejection.as_slice());
        let notices = notices(&mut harness);
        let key = rejected.id();
        let count = notices
            .iter()
            .filter(|notice| **notice == Notice::KeyRefused { service: 0, link: 0, key })
            .count();
        assert_eq!(count, 1, "the rejection of the newest key should be reported once: {notices:?}");
        assert_eq!(harness.relay.poll_timeout(), Some(now), "the next key should be tried at once");
    }
    open_another(&mut harness, &[helper_key()]);
    harness.exchange();
    let links = harness.relay.status().services[0].links.clone();
    let link = links.iter().find(|link| !link.replaced).unwrap();
    assert_eq!((link.state, link.key), (LinkState::Up, Some(helper_key().id())));
}

/// A library client that offers no encryption.
struct UnencryptedClient {
    conn: spillway_transport::Conn,
    link: OpenerLink,
    observed: Vec<String>,
}

impl UnencryptedClient {
    fn new(harness: &mut Harness, listener: u16) -> UnencryptedClient {
        let policy = PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 };
        let (role, limits, encryption) = (Role::Client, Limits::default(), Encryption::Off);
        let opener = OpenerConfig { role, key: client_key(), limits, policy, encryption };
        let random = LinkRandomness::from_random([3; LinkRandomness::BYTES]);
        let conn = harness.client(listener, "10.9.0.1:5003");
        UnencryptedClient { conn, link: OpenerLink::new(&opener, harness.now, random), observed: Vec::new() }
    }

    /// Sends the client's output and handles the relay's. Returns all events so far.
    fn exchange(&mut self, harness: &mut Harness) -> String {
        if let Some(batch) = self.link.flush(harness.now) {
            harness.data(self.conn, batch.as_slice());
        }
        let bytes = harness.transport.take(self.conn);
        let mut scratch = Scratch::new();
        let mut input = self.link.unseal(harness.now, &bytes, &mut scratch);
        while let Some(event) = self.link.decompose(harness.now, &mut input).unwrap() {
            self.observed.push(format!("{event:?}"));
        }
        self.observed.join(" ")
    }
}

/// Encryption becomes required while the link to the server and a library client's link are unencrypted. The old link
/// gets no new clients, and both end at the deadline.
#[test]
fn unencrypted_links_end_when_encryption_becomes_required() {
    let mut harness = Harness::new(config_with(|service| service.encryption = Encryption::Off));
    let plain = harness.client(0, CLIENT);
    let mut library = UnencryptedClient::new(&mut harness, 1);
    for _ in 0..3 {
        library.exchange(&mut harness);
    }
    harness.exchange();
    assert!(!harness.relay.status().services[0].links[0].encrypted, "the first link should not be encrypted");
    reconfigure(
        &mut harness,
        config_with(|service| {
            (service.encryption, service.client_encryption) = (Encryption::Required, Encryption::Required)
        }),
    )
    .unwrap();
    assert!(library.exchange(&mut harness).contains("Drain"), "the library client should get *drain*");
    let refused = harness.client(0, "10.9.0.1:5004");
    assert!(harness.transport.record(refused).aborted, "the old link should accept no new client");
    let (old, _) = open_another(&mut harness, &[helper_key()]);
    harness.exchange();
    assert_eq!(link_states(&harness), [(LinkState::Draining, true), (LinkState::Up, false)]);
    assert!(harness.relay.status().services[0].links[1].encrypted, "the second link should be encrypted");
    harness.client(0, "10.9.0.1:5005");
    assert!(
        matches!(harness.exchange()[..], [Observed::Connect(1, _)]),
        "the client should use the new link"
    );
    assert!(
        !harness.transport.record(plain).aborted && !harness.transport.record(library.conn).aborted,
        "clients should stay until the deadline"
    );
    harness.now = harness.now + DRAIN_TIME;
    run_turn(&mut harness);
    assert!(
        harness.transport.record(plain).aborted && harness.transport.record(library.conn).aborted,
        "the clients of the plain link should be reset"
    );
    assert!(harness.transport.record(old).finished, "the old link should be finished");
    assert_eq!(link_states(&harness), [(LinkState::Up, false)]);
    assert_eq!(harness.relay.status().services[0].counters.reset.protocol, 1);
}

/// Both handshakes end without encryption: one before the deadline, the other after it.
#[test]
fn clients_whose_handshake_began_before_encryption_was_required_are_reset_after_the_deadline() {
    let mut harness = Harness::new(config());
    let mut early = UnencryptedClient::new(&mut harness, 1);
    let mut late = UnencryptedClient::new(&mut harness, 1);
    early.exchange(&mut harness);
    late.exchange(&mut harness);
    let required = config_with(|service| service.client_encryption = Encryption::Required);
    let within = Duration::from_secs(2);
    harness.relay.reconfigure(harness.now, required, within, &mut harness.transport).unwrap();
    harness.now = harness.now + within / 2;
    for _ in 0..3 {
        early.exchange(&mut harness);
    }
    assert!(
        early.observed.join(" ").contains("Drain { deadline_ms: 1000 }"),
        "the early client should be asked to leave: {:?}",
        early.observed
    );
    harness.now = harness.now + within / 2;
    run_turn(&mut harness);
    assert!(harness.transport.record(early.conn).aborted, "an unencrypted client should end at the deadline");
    assert!(!harness.transport.record(late.conn).aborted, "a client in its handshake should stay");
    late.exchange(&mut harness);
    assert!(
        harness.transport.record(late.conn).aborted,
        "a handshake that ends without encryption after the deadline should be reset"
    );
    assert_eq!(harness.relay.status().services[0].counters.reset.protocol, 2);
}

#[test]
fn each_service_has_its_own_deadline_for_encryption() {
    let mut config = config();
    config.services.push(ServiceConfig {
        name: "other".into(),
        plain_listeners: vec![2],
        link_listeners: vec![3],
        ..config.services[0].clone()
    });
    let mut harness = Harness::new(config.clone());
    // Bring the second service's link up.
    open_another(&mut harness, &[helper_key()]);
    harness.exchange();
    let mut clients = [1, 3].map(|listener| UnencryptedClient::new(&mut harness, listener));
    for client in &mut clients {
        (0..3).for_each(|_| drop(client.exchange(&mut harness)));
    }
    for (service, within) in [(0, 2), (1, 20)] {
        config.services[service].client_encryption = Encryption::Required;
        let within = Duration::from_secs(within);
        harness.relay.reconfigure(harness.now, config.clone(), within, &mut harness.transport).unwrap();
    }
    let aborted = |harness: &mut Harness| {
        clients.each_ref().map(|client| harness.transport.record(client.conn).aborted)
    };
    for (seconds, expected) in [(2, [true, false]), (17, [true, false]), (1, [true, true])] {
        harness.now = harness.now + Duration::from_secs(seconds);
        run_turn(&mut harness);
        assert_eq!(aborted(&mut harness), expected);
    }
}

#[test]
fn clients_must_leave_the_old_server_before_the_deadline() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    let other = "10.0.0.6:11411".parse().unwrap();
    reconfigure(&mut harness, config_with(|service| service.server = other)).unwrap();
    let (old, _) = open_another(&mut harness, &[helper_key()]);
    harness.exchange();
    assert_eq!(harness.relay.status().services[0].server, other);
    harness.client(0, "10.9.0.1:5002");
    assert!(
        matches!(harness.exchange()[..], [Observed::Connect(1, _)]),
        "the client should be at the server"
    );
    assert_eq!(harness.relay.poll_timeout(), Some(harness.now + DRAIN_TIME));
    assert!(!harness.transport.record(client).aborted, "the client should stay until the deadline");
    harness.now = harness.now + DRAIN_TIME;
    run_turn(&mut harness);
    assert!(
        harness.transport.record(client).aborted && harness.transport.record(old).finished,
        "the client and the old link should end at the deadline"
    );
    assert!(
        notices(&mut harness).contains(&Notice::LinkRetired { service: 0, link: 0, clients: 1 }),
        "the clients that were reset should be reported"
    );
    assert_eq!((harness.relay.clients(), link_states(&harness)), (1, vec![(LinkState::Up, false)]));
}

#[test]
fn removed_service_is_drained_and_can_start_again() {
    let other =
        ServiceConfig { plain_listeners: vec![2], ..ServiceConfig::new("other", SERVER.parse().unwrap()) };
    let other = ServiceConfig { keys: vec![helper_key()], ..other };
    let only_other = Config::new(vec![other]);
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    reconfigure(&mut harness, only_other.clone()).unwrap();
    assert!(
        !harness.transport.listening[&0] && !harness.transport.listening[&1],
        "no listener should be open"
    );
    let late = harness.client(0, "10.9.0.1:5001");
    assert!(
        harness.transport.record(late).aborted,
        "a client that the host accepted before the listener closed should be reset"
    );
    harness.data(client, b"get x");
    assert_eq!(harness.exchange(), [Observed::Data(1, b"get x".to_vec())]);
    let status = harness.relay.status();
    assert!(status.services[0].removed && status.services[1].name == "other", "the first should be removed");
    harness.event(client, Event::Lost(LostReason::Closed));
    assert!(harness.transport.record(harness.link).finished, "the link should be finished");
    assert_eq!(harness.relay.status().services.len(), 1, "the service should end with its last client");

    // A service with the same name continues its counters.
    let mut both = config();
    both.services.extend(only_other.services);
    reconfigure(&mut harness, both).unwrap();
    run_turn(&mut harness);
    let (link, _) = harness.transport.connects[0];
    assert_eq!(harness.transport.connects.len(), 2, "each service should open one link");
    assert_ne!(link, harness.link);
    assert_eq!(harness.relay.status().services[0].counters.plain_clients, 1);
}

#[test]
fn single_service_is_drained() {
    let mut harness = Harness::new(config());
    let (leaving, staying) = (harness.client(0, CLIENT), harness.client(0, "10.9.0.1:5001"));
    harness.exchange();
    assert!(
        !harness.relay.drain_service(harness.now, "other", DRAIN_TIME, &mut harness.transport),
        "an unknown service should not drain"
    );
    assert!(
        harness.relay.drain_service(harness.now, "cache", DRAIN_TIME, &mut harness.transport),
        "the known service should drain"
    );
    assert!(
        !harness.transport.listening[&0] && !harness.relay.is_draining(),
        "the service should stop listening, and the relay not drain"
    );
    harness.event(leaving, Event::Lost(LostReason::Closed));
    harness.now = harness.now + DRAIN_TIME;
    run_turn(&mut harness);
    assert!(
        harness.transport.record(staying).aborted && harness.transport.record(harness.link).finished,
        "the staying client and the link should end"
    );
    let status = harness.relay.status();
    assert_eq!(status.services[0].drained, Some(Drained { moved: 0, left: 1, failed: 1 }));
    assert!(
        notices(&mut harness).contains(&Notice::DrainDeadline { service: 0, clients: 1 }),
        "the end should be reported"
    );
    // A reconfiguration ends the drain.
    reconfigure(&mut harness, config()).unwrap();
    open_another(&mut harness, &[helper_key()]);
    harness.exchange();
    assert_eq!(harness.relay.status().services[0].drained, None);
    let client = harness.client(0, CLIENT);
    assert!(!harness.transport.record(client).aborted, "the new client should stay");
}

/// A new configuration would start the services again, so that the relay would never be drained.
#[test]
fn draining_relay_rejects_new_configurations() {
    let mut harness = Harness::new(config());
    let client = harness.client(0, CLIENT);
    harness.exchange();
    harness.relay.drain(harness.now, DRAIN_TIME, &mut harness.transport);
    assert_eq!(harness.relay.check_change(&config()), Err(ConfigError::Draining));
    assert_eq!(reconfigure(&mut harness, config()), Err(ConfigError::Draining));
    assert!(!harness.transport.listening[&0], "a draining relay should not listen");
    harness.event(client, Event::Lost(LostReason::Closed));
    assert!(harness.relay.is_drained(), "the relay should be drained");
}

#[test]
fn listener_stays_open_when_it_moves_to_another_service() {
    let mut harness = Harness::new(config());
    let second = |plain_listeners: Vec<u16>| ServiceConfig {
        plain_listeners,
        keys: vec![helper_key()],
        policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
        ..ServiceConfig::new("second", SERVER.parse().unwrap())
    };
    let mut both = config();
    both.services.push(second(vec![5]));
    reconfigure(&mut harness, both).unwrap();
    harness.bring_link_up(Limits::default());
    assert!(harness.transport.listening[&0] && harness.transport.listening[&5], "both should be open");
    let mut swapped = config();
    swapped.services[0].plain_listeners = vec![5];
    swapped.services.push(second(vec![0]));
    reconfigure(&mut harness, swapped).unwrap();
    assert!(harness.transport.listening[&0] && harness.transport.listening[&5], "both should stay open");
    harness.client(0, CLIENT);
    assert_eq!(harness.relay.status().services[1].plain_clients, 1);
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let mut harness = Harness::new(config());
    assert_eq!(reconfigure(&mut harness, Config::new(Vec::new())), Err(ConfigError::NoServices));
    let keyless = config_with(|service| service.keys.clear());
    assert_eq!(reconfigure(&mut harness, keyless), Err(ConfigError::NoKey("cache".into())));
    let mut count = 0;
    let error = loop {
        let service = ServiceConfig {
            keys: vec![helper_key()],
            ..ServiceConfig::new(format!("s{count}"), SERVER.parse().unwrap())
        };
        count += 1;
        if let Err(error) = reconfigure(&mut harness, Config::new(vec![service])) {
            break error;
        }
        harness.transport.connects.clear();
    };
    assert_eq!((error, count), (ConfigError::TooManyServices, 1024));
}
