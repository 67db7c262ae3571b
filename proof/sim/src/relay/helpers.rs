//! Helpers of several worlds: their start and drain, their bounds, and what they hold at the end.

use std::time::Duration;

use spillway_relay::{Config, ConfigError, Relay};

use crate::driver;
use crate::network::Network;
use crate::rng::Rng;
use crate::socket::HostId;

pub(crate) fn start(config: &Config, mut rng: Rng) -> Result<Box<Relay>, ConfigError> {
    Relay::new(config.clone(), Box::new(move |bytes: &mut [u8]| rng.fill(bytes))).map(Box::new)
}

pub(crate) fn drain(network: &mut Network, host: HostId, relay: &mut Relay, within: Duration) {
    driver::command(network, host, relay, |now, relay, port| relay.drain(now, within, port));
}

/// Describes a violation if a helper exceeds one of its bounds.
pub(crate) fn exceeded_bound(relay: &Relay, config: &Config) -> Option<String> {
    let (held, bound) = (relay.buffered_bytes(), config.memory_bytes_max);
    if held > bound {
        return Some(format!("a helper holds {held} bytes, but its bound is {bound}"));
    }
    let (clients, bound) = (relay.clients(), config.clients_max);
    (clients > bound).then(|| format!("a helper has {clients} clients, but its bound is {bound}"))
}

pub(crate) fn leftovers(relay: &Relay) -> [(&'static str, usize); 3] {
    let status = relay.status();
    let links = status.services.iter().flat_map(|service| &service.links);
    let ids: u32 = links.map(|link| link.connections).sum();
    [
        ("clients at a helper", status.clients as usize),
        ("ids in use on a helper's links", ids as usize),
        ("bytes held by a helper", status.buffered_bytes),
    ]
}
