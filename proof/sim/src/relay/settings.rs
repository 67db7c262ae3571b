//! Settings of helpers: those at the start, and changes while helpers run.

use std::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{Limits, PolicyKind, Role};
use spillway_relay::{Config, ServiceConfig, Timeouts};

use crate::names::{SERVER, address, client_key, helper_key};
use crate::rng::Rng;

/// The name of the only service.
pub(crate) const SERVICE: &str = "sim";

pub(crate) fn of_helpers(rng: &mut Rng, is_mild: bool) -> Config {
    let mut clients = KeyRing::new();
    clients.accept(Role::Client, client_key());
    let max_delay = Duration::from_nanos(rng.log_uniform(10_000, 1_000_000));
    let service = ServiceConfig {
        plain_listeners: vec![0],
        link_listeners: vec![1],
        keys: vec![helper_key()],
        client_keys: Some(clients),
        links: rng.range(1, 3) as u16,
        acknowledges_replies: rng.chance(1, 2),
        policy: policy(rng, max_delay),
        limits: Limits {
            // With a smaller window few bytes pass per round trip, and a long stream would not end within a run.
            window_bytes: rng.log_uniform(256, 256 * 1024) as u32,
            pending_bytes_max: rng.log_uniform(1_000, 1 << 20) as usize,
            ..Limits::default()
        },
        ..ServiceConfig::new(SERVICE, address(SERVER, 11411))
    };
    Config {
        clients_max: if is_mild { 1000 } else { rng.pick(&[10, 1000]) },
        memory_bytes_max: if is_mild { 1 << 28 } else { rng.log_uniform(2_000, 1 << 28) as usize },
        timeouts: Timeouts {
            linger: Duration::from_millis(if is_mild { 10_000 } else { rng.pick(&[50, 1000]) }),
            ..Timeouts::default()
        },
        ..Config::new(vec![service])
    }
}

/// Minimum window of a server behind these helpers, bytes. Algorithm 1 waits for as long as it waited for the
/// previous batch: after some idle seconds, each window would take several seconds.
pub(crate) fn server_window_min(helpers: &Config) -> u32 {
    if helpers.services.iter().any(|service| service.policy == PolicyKind::Algorithm1) { 1024 } else { 16 }
}

fn policy(rng: &mut Rng, max_delay: Duration) -> PolicyKind {
    match rng.below(3) {
        0 => PolicyKind::Fixed { interval: max_delay, size_bytes: 1 << 16 },
        1 => PolicyKind::Algorithm1,
        // Not drawn, but derived from an earlier draw: another draw would change all later ones of each seed.
        _ => match max_delay.subsec_nanos() % 3 {
            0 => PolicyKind::Adaptive { max_delay, max_bytes: 1 << 16 },
            1 => PolicyKind::Deadline { max_delay, max_bytes: 1 << 16 },
            _ => PolicyKind::Following { max_delay, max_bytes: 1 << 16 },
        },
    }
}

/// Draws settings that may change in a running helper: links, keys (the server accepts only one), policy, window.
pub(crate) fn changed(rng: &mut Rng, config: &Config) -> Config {
    let mut config = config.clone();
    for service in &mut config.services {
        let max_delay = Duration::from_nanos(rng.log_uniform(10_000, 1_000_000));
        service.links = rng.range(1, 3) as u16;
        service.policy = policy(rng, max_delay);
        if rng.chance(1, 3) {
            service.keys.insert(0, Key::from_secret([rng.below(200) as u8 + 9; 32]));
        }
        if rng.chance(1, 3) {
            service.limits.window_bytes = rng.log_uniform(256, 256 * 1024) as u32;
        }
    }
    config
}
