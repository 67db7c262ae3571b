//! Changes that need no new links, and services and listeners that come, go and drain.

use std::time::Duration;

use spillway_batch::{Limits, PolicyKind};
use spillway_relay::{Config, ConfigError, Drained, Notice, ServiceConfig};
use spillway_transport::{Event, LostReason};

use crate::harness::{Harness, Observed, SERVER, config, helper_key};
use crate::support::{CLIENT, DRAIN_TIME, config_with, notices, open_another, reconfigure, run_turn};

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
