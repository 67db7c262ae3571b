//! Links without encryption end when encryption becomes required.

use std::time::Duration;

use spillway_batch::{
    Encryption, Limits, LinkRandomness, OpenerConfig, OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_relay::{LinkState, ServiceConfig};
use spillway_transport::Conn;

use crate::harness::{Harness, Observed, client_key, config, helper_key};
use crate::support::{CLIENT, DRAIN_TIME, config_with, link_states, open_another, reconfigure, run_turn};

/// A library client that offers no encryption.
struct UnencryptedClient {
    conn: Conn,
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
