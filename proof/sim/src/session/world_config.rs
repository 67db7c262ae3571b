//! The parameters of a world of sessions, drawn from its seed.

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits, Role, ServerConfig};
use spillway_relay::Config;
use spillway_session::{StreamLimits, TableLimits};

use super::client_behaviour::ClientBehaviour;
use super::planted_fault::PlantedFault;
use crate::attackers::{self, Attack};
use crate::conditions::NetworkConditions;
use crate::names::{client_key, helper_key};
use crate::relay::settings;
use crate::rng::Rng;

/// An incomplete record takes up to 16 KiB. Through a helper with memory for less than a few records,
/// sessions would never end. The minimum of `max_memory` in a helper's configuration is 1 MiB.
const HELPER_MEMORY_MIN: usize = 128 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// No faults, but clients move at random times.
    None,
    /// Faults that every session must survive: clients never receive *gone*.
    Survivable,
    /// These and restarts of the server, small tables, and short timeouts.
    All,
}

pub(crate) struct WorldConfig {
    pub(crate) conditions: NetworkConditions,
    pub(crate) behaviour: ClientBehaviour,
    pub(crate) relay: Config,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) table: TableLimits,
    /// Sessions, of a thousand, that the server's application closes early.
    pub(crate) early_ends_per_1000: u64,
    pub(crate) helpers: usize,
    pub(crate) faults: Faults,
    pub(crate) fault_ns_max: u64,
    /// Maximum duration of the loss of all segments from one host to another, nanoseconds.
    pub(crate) silence_ns_max: u64,
    /// Most faults stall carriers of clients, which then abandon carriers that still deliver.
    pub(crate) mostly_stalls: bool,
    /// Faults, of a thousand, that are replaced by a restart of the server.
    pub(crate) restarts_per_1000: u64,
    pub(crate) has_replayer: bool,
    pub(crate) clocks_differ: bool,
    pub(crate) attack: Option<Attack>,
    /// Bounds that servers and helpers must keep; a planted fault may remove them from the server.
    pub(crate) unauthenticated: Bounds,
}

impl WorldConfig {
    /// Draws the parameters. For a planted fault to be detected, there are many moves, and bounds are
    /// reached.
    pub(crate) fn draw(rng: &mut Rng, attack_rng: &mut Rng, planted: Option<PlantedFault>) -> WorldConfig {
        let faults = match planted {
            Some(PlantedFault::GoneFurther | PlantedFault::FalseOver) => Faults::All,
            Some(_) => Faults::Survivable,
            None => rng.pick(&[Faults::None, Faults::Survivable, Faults::All, Faults::All, Faults::All]),
        };
        let is_harsh = faults == Faults::All;
        let clients_max = rng.log_uniform(if planted.is_some() { 8 } else { 2 }, 60) as usize;
        let is_tight = matches!(
            planted,
            Some(PlantedFault::KeepMore | PlantedFault::TakeMore | PlantedFault::ForgetCredit)
        );
        let tight = StreamLimits { window_bytes: 1_000, kept_bytes_max: 1_000 };
        // With small windows, bytes are usually in flight.
        let small = StreamLimits { window_bytes: 8_000, kept_bytes_max: 8_000 };
        let table = TableLimits {
            sessions_max: if is_harsh { rng.pick(&[clients_max, 10_000]) } else { 10_000 },
            stream: match planted {
                Some(_) if is_tight => tight,
                Some(_) => small,
                None => stream_limits(rng),
            },
            detached_max: if is_harsh { up_to_seconds(rng, 60) } else { Duration::from_secs(60) },
            linger: if is_harsh { up_to_seconds(rng, 30) } else { Duration::from_secs(30) },
            ..TableLimits::default()
        };
        let client_limits = if planted.is_some() { small } else { stream_limits(rng) };
        // With small buffers few bytes pass in a round trip, so sessions must be short.
        let smallest = |limits: StreamLimits| limits.kept_bytes_max.min(limits.window_bytes as usize) as u64;
        let bytes_max = (smallest(table.stream).min(smallest(client_limits)) * 300).min(300_000);
        let behaviour = ClientBehaviour {
            clients_max,
            early_ends_per_1000: rng.pick(&[0, 50]),
            early_closes_per_1000: match planted {
                Some(PlantedFault::ForgetLast | PlantedFault::FalseOver) => 500,
                _ => rng.pick(&[0, 100]),
            },
            limits: client_limits,
            patience_max: Duration::from_nanos(match planted {
                Some(_) => 5_000_000,
                None => rng.log_uniform(2_000_000, 500_000_000),
            }),
            random_moves_per_1000: if planted.is_some() { 20 } else { rng.pick(&[0, 1, 20]) },
            some_give_up: is_harsh && planted.is_none(),
            bytes_max: if planted.is_some() { 100_000 } else { rng.log_uniform(100, bytes_max) },
        };
        let is_mild = faults != Faults::All;
        let attack = match planted {
            Some(PlantedFault::KeepStrangers) => Some(Attack::WITHOUT_KEY),
            Some(PlantedFault::ReadFlooders) => Some(Attack::FLOODING),
            Some(_) => None,
            None => Attack::draw(attack_rng),
        };
        let unauthenticated = attackers::draw_bounds(attack_rng, attack, planted.is_some());
        WorldConfig {
            // Under mild conditions a planted fault shows within few steps.
            conditions: if planted.is_some() {
                NetworkConditions::mild()
            } else {
                NetworkConditions::draw(rng, is_mild)
            },
            behaviour,
            relay: {
                let drawn = settings::of_helpers(rng, is_mild);
                let memory_bytes_max = drawn.memory_bytes_max.max(HELPER_MEMORY_MIN);
                Config { unauthenticated, memory_bytes_max, ..drawn }
            },
            server: server(rng),
            table,
            early_ends_per_1000: rng.pick(&[0, 50]),
            helpers: rng.range(1, 3) as usize,
            faults,
            fault_ns_max: match planted {
                Some(PlantedFault::FalseOver) => 5_000_000,
                Some(_) => 200_000,
                None => rng.log_uniform(5_000_000, 200_000_000),
            },
            silence_ns_max: if planted.is_some() { 10_000_000 } else { 500_000_000 },
            mostly_stalls: planted.is_some(),
            restarts_per_1000: if planted == Some(PlantedFault::FalseOver) { 300 } else { 0 },
            has_replayer: planted.is_some() || rng.chance(1, 2),
            clocks_differ: rng.chance(3, 4),
            attack,
            unauthenticated,
        }
    }
}

fn stream_limits(rng: &mut Rng) -> StreamLimits {
    StreamLimits {
        window_bytes: rng.log_uniform(16, 256 * 1024) as u32,
        kept_bytes_max: rng.log_uniform(16, 256 * 1024) as usize,
    }
}

/// Draws a time from 20 ms to `seconds`.
fn up_to_seconds(rng: &mut Rng, seconds: u64) -> Duration {
    Duration::from_nanos(rng.log_uniform(20_000_000, seconds * 1_000_000_000))
}

fn server(rng: &mut Rng) -> Arc<ServerConfig> {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    ring.accept(Role::Client, client_key());
    let limits = Limits {
        pending_bytes_max: rng.log_uniform(1_000, 1 << 20) as usize,
        connections_max: 1_000,
        ..Limits::default()
    };
    Arc::new(ServerConfig { ring, rules: AddressRules::default(), limits, encryption: Encryption::Preferred })
}
