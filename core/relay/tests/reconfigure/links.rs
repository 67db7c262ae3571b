//! Links that are replaced because of other keys or another server.

use spillway_auth::Key;
use spillway_batch::{CloseReason, Id, Scratch};
use spillway_relay::{LinkState, Notice};
use spillway_transport::{Application, Event, LostReason};

use crate::harness::{Harness, Observed, config, helper_key};
use crate::support::{
    CLIENT, DRAIN_TIME, config_with, link_states, notices, open_another, reconfigure, run_turn,
};

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
