//! The parameters of a relay's world, drawn from its seed.

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits, LinkError, Role, ServerConfig};
use spillway_relay::{Config, Cut, LinkDown, Notice, Refusal};

use crate::attackers::{self, Attack, is_attacker};
use crate::names::helper_key;
use crate::relay::canary::Canary;
use crate::relay::settings;
use crate::rng::Rng;
use crate::weather::Weather;

#[derive(Clone, Debug)]
pub(crate) struct WorldConfig {
    pub(crate) weather: Weather,
    pub(crate) helpers: usize,
    pub(crate) relay: Config,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) clients_max: usize,
    pub(crate) early_ends_in_1000: u64,
    /// No faults: every stream whose ends intend it must complete.
    pub(crate) calm: bool,
    pub(crate) fault_ns_max: u64,
    pub(crate) attack: Option<Attack>,
    /// An attacker on the path of the helpers' links alters segments.
    pub(crate) is_altered: bool,
    /// Bounds that helpers must keep; a helper with a planted fault does not know them.
    pub(crate) unauthenticated: Bounds,
}

pub(crate) fn drawn(
    rng: &mut Rng,
    attack_rng: &mut Rng,
    alterer_rng: &mut Rng,
    canary: Option<Canary>,
) -> WorldConfig {
    let calm = canary.is_some() || rng.chance(1, 4);
    let mut weather = Weather::drawn(rng, calm);
    if canary == Some(Canary::ReadFlooders) {
        // Much input, and few of its answers in the transport's queue.
        weather = Weather { queue_bytes_max: 2_000, ..Weather::calm() };
    }
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    // In half of the worlds windows are so wide that only links limit a stream.
    let wide = canary != Some(Canary::ForgetCredit) && rng.chance(1, 2);
    let window = if wide { 256 * 1024 } else { rng.scale(16, 4096) as u32 };
    let limits = Limits {
        window_bytes: window,
        pending_bytes_max: rng.scale(1_000, 1 << 20) as usize,
        connections_max: if calm { 1000 } else { rng.pick(&[5, 100, 1000]) },
        kept_bytes_max: rng.pick(&[0, 2_000, 10_000, 256 * 1024]),
        handshake_timeout: Duration::from_secs(5),
    };
    let mut server =
        ServerConfig { ring, rules: AddressRules::default(), limits, encryption: Encryption::Preferred };
    if canary == Some(Canary::UnsealedLinks) {
        server.encryption = Encryption::Off;
    }
    let helpers = rng.range(1, 2) as usize;
    let mut relay = settings::of_helpers(rng, calm);
    server.limits.window_bytes = server.limits.window_bytes.max(settings::server_window_min(&relay));
    if canary == Some(Canary::HastyAcknowledgement) {
        server.limits.kept_bytes_max = 256 * 1024;
        relay.services.iter_mut().for_each(|service| service.acknowledges_replies = true);
    }
    let attack = match canary {
        Some(Canary::KeepStrangers) => Some(Attack::WITHOUT_KEY),
        Some(Canary::ReadFlooders) => Some(Attack::FLOODING),
        Some(_) => None,
        None => Attack::drawn(attack_rng),
    };
    let unauthenticated = attackers::drawn_bounds(attack_rng, attack, canary.is_some());
    relay.unauthenticated =
        if canary == Some(Canary::KeepStrangers) { attackers::NO_BOUNDS } else { unauthenticated };
    let is_altered = canary == Some(Canary::UnsealedLinks) || !calm && alterer_rng.chance(1, 3);
    WorldConfig {
        attack,
        is_altered,
        unauthenticated,
        weather,
        helpers,
        relay,
        server: Arc::new(server),
        clients_max: rng.scale(4, 120) as usize,
        early_ends_in_1000: if calm { rng.pick(&[0, 100]) } else { 100 },
        calm,
        fault_ns_max: rng.scale(5_000_000, 200_000_000),
    }
}

/// Whether a helper's notice is a violation. Faults lose connections, only an alterer changes bytes, and only on
/// links; all but attackers keep to the protocol. `has_been_full`: the helper may have had `clients_max` clients when
/// it gave the notice.
pub(crate) fn is_suspicious(notice: Notice, config: &WorldConfig, has_been_full: bool) -> bool {
    let bounds = config.unauthenticated;
    match notice {
        Notice::ClientReset { client, .. } | Notice::ClientRefused { client, .. } if is_attacker(client) => {
            false
        }
        Notice::LinkDown { why: LinkDown::Link(_), .. } if config.is_altered => false,
        Notice::LinkDown { why: LinkDown::Link(error), .. } => error != LinkError::HandshakeTimeout,
        Notice::ClientReset { why, .. } => !matches!(why, Cut::Memory(_)),
        Notice::ClientRefused { why: Refusal::Handshake(error), .. } => error != LinkError::HandshakeTimeout,
        // An attack is too small to reach the shipped bounds. A full helper closes unauthenticated clients for new
        // ones.
        Notice::ClientRefused { why: Refusal::Evicted, .. } => bounds == Bounds::DEFAULT && !has_been_full,
        Notice::ClientRefused { why, .. } => {
            matches!(why, Refusal::Address | Refusal::ForeignAddress | Refusal::OtherServer)
        }
        _ => false,
    }
}
