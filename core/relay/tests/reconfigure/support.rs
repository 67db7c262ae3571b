//! Steps that all tests use: reconfigurations, turns of the relay, and the server's ends of new links.

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{AddressRules, Encryption, Limits, LinkRandomness, Role, ServerConfig, ServerLink};
use spillway_relay::{Config, ConfigError, LinkState, Notice, ServiceConfig};
use spillway_transport::{Application, Conn, Event, Time};

use crate::harness::{Harness, SERVER, config};

pub const CLIENT: &str = "10.9.0.1:5000";
pub const DRAIN_TIME: Duration = Duration::from_secs(30);

pub fn reconfigure(harness: &mut Harness, config: Config) -> Result<(), ConfigError> {
    let outcome = harness.relay.reconfigure(harness.now, config, DRAIN_TIME, &mut harness.transport);
    harness.relay.end_of_turn(harness.now, &mut harness.transport);
    outcome
}

pub fn config_with(change: impl FnOnce(&mut ServiceConfig)) -> Config {
    let mut config = config();
    change(&mut config.services[0]);
    config
}

pub fn notices(harness: &mut Harness) -> Vec<Notice> {
    std::iter::from_fn(|| harness.relay.poll_notice()).collect()
}

pub fn run_turn(harness: &mut Harness) {
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
pub fn open_another(harness: &mut Harness, keys: &[Key]) -> (Conn, ServerLink) {
    run_turn(harness);
    let (link, target) = harness.transport.connects.remove(0);
    let old = std::mem::replace(&mut harness.link, link);
    let server = std::mem::replace(&mut harness.server, server_with(harness.now, keys));
    harness.event(link, Event::Opened { peer: target, listener: None });
    (old, server)
}

pub fn link_states(harness: &Harness) -> Vec<(LinkState, bool)> {
    harness.relay.status().services[0].links.iter().map(|link| (link.state, link.replaced)).collect()
}
