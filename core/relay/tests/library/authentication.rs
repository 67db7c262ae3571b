//! Authentication of clients: keys that are rejected, and silent peers that are evicted.

use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{Limits, LinkError, Role};
use spillway_relay::Config;
use spillway_transport::{Application, Conn};

use crate::client::{CLIENT, Client};
use crate::harness::{Harness, client_key, config, helper_key};

#[test]
fn unauthenticated_clients_are_rejected_and_closed() {
    let wrong = Key::from_secret([9; 32]);
    for (key, role) in [(wrong, Role::Client), (client_key(), Role::Helper), (helper_key(), Role::Helper)] {
        let mut harness = Harness::new(config());
        let mut client = Client::connecting(&mut harness, key, role, Limits::default());
        let error = client.exchange(&mut harness).unwrap_err();
        assert!(matches!(error, LinkError::RefusedByServer(_)), "the client should be refused: {error}");
        assert!(harness.transport.record(client.conn).finished, "the rejected client should be closed");
        assert_eq!(harness.relay.status().services[0].counters.refused.handshake, 1);
        harness.now = harness.now + Duration::from_secs(10);
        harness.relay.handle_timeout(harness.now, &mut harness.transport);
        assert_eq!(harness.relay.clients(), 0);
    }
    // A client that sends nothing.
    let mut harness = Harness::new(config());
    let silent = harness.client(1, CLIENT);
    assert_eq!(harness.relay.poll_timeout(), Some(harness.now + Duration::from_secs(5)));
    harness.now = harness.now + Duration::from_secs(5);
    harness.relay.handle_timeout(harness.now, &mut harness.transport);
    assert!(harness.transport.record(silent).aborted, "the silent peer should be reset");
    // Without keys, only loopback clients are accepted.
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    let mut harness = Harness::new(keyless);
    let foreign = harness.client(1, CLIENT);
    assert!(harness.transport.record(foreign).aborted, "the peer at a foreign address should be reset");
    let local = harness.client(1, "127.0.0.1:5");
    assert!(!harness.transport.record(local).aborted, "the peer at an allowed address should stay");
}

/// Peers without a key that open connections and send nothing evict each other, but neither an authenticated client nor
/// one that has named its key.
#[test]
fn unauthenticated_peers_evict_only_each_other() {
    let mut harness = Harness::new(config());
    let mut established = Client::new(&mut harness);
    let mut beginning = Client::connecting(&mut harness, client_key(), Role::Client, Limits::default());
    let hello = beginning.link.flush(harness.now).unwrap();
    harness.data(beginning.conn, hello.as_slice());
    let open_unauthenticated =
        |harness: &mut Harness, host: usize, port: usize| harness.client(1, &format!("10.9.{host}.1:{port}"));
    let mut unauthenticated: Vec<Conn> =
        (0..1100).map(|port| open_unauthenticated(&mut harness, 0, 6000 + port)).collect();
    let waiting = |harness: &mut Harness, unauthenticated: &[Conn]| {
        unauthenticated.iter().filter(|conn| !harness.transport.record(**conn).aborted).count()
    };
    assert_eq!(
        waiting(&mut harness, &unauthenticated),
        1023,
        "1,024 should wait, including the client that has named its key"
    );
    harness.now = harness.now + Duration::from_secs(1);
    unauthenticated.extend((0..200).map(|host| open_unauthenticated(&mut harness, host, 5)));
    assert_eq!(waiting(&mut harness, &unauthenticated), 1023);
    assert_eq!(harness.relay.status().services[0].counters.refused.evicted, 277);
    beginning.exchange(&mut harness).unwrap();
    assert_eq!(beginning.observed, ["established 1"]);
    let id = established.open();
    established.link.compose(id, b"get x");
    established.exchange(&mut harness).unwrap();
    assert!(!harness.exchange().is_empty(), "the authenticated client should reach the server");
}

/// Silent peers without a key are evicted when clients reach the helper's limit.
#[test]
fn unauthenticated_peers_are_evicted_for_clients_at_the_limit() {
    let mut harness = Harness::new(Config { clients_max: 20, ..config() });
    let unauthenticated: Vec<Conn> =
        (0..20).map(|port| harness.client(1, &format!("10.9.7.1:{port}"))).collect();
    let waiting = |harness: &mut Harness| {
        unauthenticated.iter().filter(|conn| !harness.transport.record(**conn).aborted).count()
    };
    assert_eq!((waiting(&mut harness), harness.relay.clients()), (20, 20));
    let client = Client::new(&mut harness);
    let plain = harness.client(0, "10.9.0.2:7");
    assert!(
        !harness.transport.record(plain).aborted && !harness.transport.record(client.conn).aborted,
        "clients should not be evicted"
    );
    assert_eq!((waiting(&mut harness), harness.relay.clients()), (18, 20));
    let clients: Vec<Conn> = (0..19).map(|port| harness.client(0, &format!("10.9.0.3:{port}"))).collect();
    let refused = clients.iter().filter(|conn| harness.transport.record(**conn).aborted).count();
    assert_eq!(
        (waiting(&mut harness), refused, harness.relay.clients()),
        (0, 1, 20),
        "20 unauthenticated peers should be evicted, and the next client refused"
    );
}

/// A peer that connected while keys were configured cannot use the well-known loopback key after a reload removes them.
#[test]
fn removed_keys_give_no_access() {
    let mut harness = Harness::new(config());
    let mut client = Client::connecting(&mut harness, Key::loopback_only(), Role::Client, Limits::default());
    let mut keyless = config();
    keyless.services[0].client_keys = None;
    harness.relay.reconfigure(harness.now, keyless, Duration::ZERO, &mut harness.transport).unwrap();
    assert!(client.exchange(&mut harness).is_err(), "a removed key should be rejected");
    assert_eq!(harness.relay.status().services[0].counters.refused.handshake, 1);
}
