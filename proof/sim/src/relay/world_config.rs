//! The parameters of a world of relays, drawn from its seed.

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits, LinkError, Role, ServerConfig};
use spillway_relay::{Config, LinkDown, Notice, Refusal, ResetReason};

use crate::attackers::{self, Attack, is_attacker};
use crate::conditions::NetworkConditions;
use crate::names::helper_key;
use crate::relay::planted_fault::PlantedFault;
use crate::relay::settings;
use crate::rng::Rng;

#[derive(Clone, Debug)]
pub(crate) struct WorldConfig {
    pub(crate) conditions: NetworkConditions,
    pub(crate) helpers: usize,
    pub(crate) relay: Config,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) clients_max: usize,
    pub(crate) early_ends_per_1000: u64,
    /// No faults happen: every stream must complete, unless its client or the application ends it early.
    pub(crate) is_faultless: bool,
    pub(crate) fault_ns_max: u64,
    pub(crate) attack: Option<Attack>,
    /// An attacker alters segments on the path of the helpers' links.
    pub(crate) is_altered: bool,
    /// Bounds that helpers must keep; a planted fault may remove them from the helpers.
    pub(crate) unauthenticated: Bounds,
}

pub(crate) fn draw(
    rng: &mut Rng,
    attack_rng: &mut Rng,
    alterer_rng: &mut Rng,
    planted: Option<PlantedFault>,
) -> WorldConfig {
    let is_faultless = planted.is_some() || rng.chance(1, 4);
    let mut conditions = NetworkConditions::draw(rng, is_faultless);
    if planted == Some(PlantedFault::ReadFlooders) {
        // Unread answers soon fill a short queue of the transport.
        conditions = NetworkConditions { queue_bytes_max: 2_000, ..NetworkConditions::mild() };
    }
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    // In half of the worlds windows are so large that only links limit a stream.
    let has_large_windows = planted != Some(PlantedFault::ForgetCredit) && rng.chance(1, 2);
    let window = if has_large_windows { 256 * 1024 } else { rng.log_uniform(16, 4096) as u32 };
    let limits = Limits {
        window_bytes: window,
        pending_bytes_max: rng.log_uniform(1_000, 1 << 20) as usize,
        connections_max: if is_faultless { 1000 } else { rng.pick(&[5, 100, 1000]) },
        kept_bytes_max: rng.pick(&[0, 2_000, 10_000, 256 * 1024]),
        handshake_timeout: Duration::from_secs(5),
    };
    let mut server =
        ServerConfig { ring, rules: AddressRules::default(), limits, encryption: Encryption::Preferred };
    if planted == Some(PlantedFault::UnsealedLinks) {
        server.encryption = Encryption::Off;
    }
    let helpers = rng.range(1, 2) as usize;
    let mut relay = settings::of_helpers(rng, is_faultless);
    server.limits.window_bytes = server.limits.window_bytes.max(settings::server_window_min(&relay));
    if planted == Some(PlantedFault::HastyAcknowledgement) {
        server.limits.kept_bytes_max = 256 * 1024;
        relay.services.iter_mut().for_each(|service| service.acknowledges_replies = true);
    }
    let attack = match planted {
        Some(PlantedFault::KeepStrangers) => Some(Attack::WITHOUT_KEY),
        Some(PlantedFault::ReadFlooders) => Some(Attack::FLOODING),
        Some(_) => None,
        None => Attack::draw(attack_rng),
    };
    let unauthenticated = attackers::draw_bounds(attack_rng, attack, planted.is_some());
    relay.unauthenticated =
        if planted == Some(PlantedFault::KeepStrangers) { attackers::NO_BOUNDS } else { unauthenticated };
    let is_altered =
        planted == Some(PlantedFault::UnsealedLinks) || !is_faultless && alterer_rng.chance(1, 3);
    WorldConfig {
        attack,
        is_altered,
        unauthenticated,
        conditions,
        helpers,
        relay,
        server: Arc::new(server),
        clients_max: rng.log_uniform(4, 120) as usize,
        early_ends_per_1000: if is_faultless { rng.pick(&[0, 100]) } else { 100 },
        is_faultless,
        fault_ns_max: rng.log_uniform(5_000_000, 200_000_000),
    }
}

/// Whether a helper's notice is a violation. Faults only end connections; an attacker on the path alters only
/// bytes of links; all other hosts keep to the protocol. `may_have_been_full`: the helper may have had
/// `clients_max` clients at the time of the notice.
pub(crate) fn is_suspicious(notice: Notice, config: &WorldConfig, may_have_been_full: bool) -> bool {
    let bounds = config.unauthenticated;
    match notice {
        Notice::ClientReset { client, .. } | Notice::ClientRefused { client, .. } if is_attacker(client) => {
            false
        }
        Notice::LinkDown { why: LinkDown::Link(_), .. } if config.is_altered => false,
        Notice::LinkDown { why: LinkDown::Link(error), .. } => error != LinkError::HandshakeTimeout,
        Notice::ClientReset { why, .. } => !matches!(why, ResetReason::Memory(_)),
        Notice::ClientRefused { why: Refusal::Handshake(error), .. } => error != LinkError::HandshakeTimeout,
        // No attack here reaches the shipped bounds, but a full helper closes unauthenticated clients for new
        // ones.
        Notice::ClientRefused { why: Refusal::Evicted, .. } => {
            bounds == Bounds::DEFAULT && !may_have_been_full
        }
        Notice::ClientRefused { why, .. } => {
            matches!(why, Refusal::Address | Refusal::ForeignAddress | Refusal::OtherServer)
        }
        _ => false,
    }
}
