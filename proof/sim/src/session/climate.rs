//! What a world of sessions is like, drawn from its seed.

use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits, Role, ServerConfig};
use spillway_relay::Config;
use spillway_session::{StreamLimits, TableLimits};

use super::canary::Canary;
use super::manners::Manners;
use crate::attackers::{self, Attack};
use crate::names::{client_key, helper_key};
use crate::relay::settings;
use crate::rng::Rng;
use crate::weather::Weather;

/// A record of a link holds up to 16 KiB until it is complete. Where helpers have hardly more memory than one, and no other
/// way is known, a session never gets its bytes across. A real helper has 1 MiB at least.
const HELPER_MEMORY_MIN: usize = 128 * 1024;

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// Nothing, but clients move at whim.
    None,
    /// Whatever a session survives: nobody may be told *gone*.
    Survivable,
    /// The server is restarted, too, and its table is full, or waits for nobody for long.
    All,
}

/// What is chosen once for a world.
pub(crate) struct Climate {
    pub(crate) weather: Weather,
    pub(crate) manners: Manners,
    pub(crate) relay: Config,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) table: TableLimits,
    /// Of a thousand sessions, how many the server's application closes early.
    pub(crate) rude_in_1000: u64,
    pub(crate) helpers: usize,
    pub(crate) faults: Faults,
    pub(crate) fault_ns_max: u64,
    /// A way that carries nothing does so for at most this.
    pub(crate) silence_ns_max: u64,
    /// Most faults are clients' carriers that are slow for a while, and are left while they still carry something.
    pub(crate) is_restless: bool,
    /// Of a thousand faults, how many more restart the server.
    pub(crate) restarts_in_1000: u64,
    /// Somebody on the way keeps copies of what is said, and says it again.
    pub(crate) is_copied: bool,
    /// Every host's clock is another.
    pub(crate) clocks_differ: bool,
    pub(crate) attack: Option<Attack>,
    /// What servers and helpers should keep to; where a fault is planted, the server is told nothing of it.
    pub(crate) unauthenticated: Bounds,
}

impl Climate {
    /// Where a fault is planted the weather is such that it shows: much moves, and bounds are met.
    pub(crate) fn drawn(rng: &mut Rng, of_attack: &mut Rng, canary: Option<Canary>) -> Climate {
        let faults = match canary {
            Some(Canary::GoneFurther | Canary::FalseOver) => Faults::All,
            Some(_) => Faults::Survivable,
            None => rng.pick(&[Faults::None, Faults::Survivable, Faults::All, Faults::All, Faults::All]),
        };
        let is_harsh = faults == Faults::All;
        let clients_max = rng.scale(if canary.is_some() { 8 } else { 2 }, 60) as usize;
        let is_tight = matches!(canary, Some(Canary::KeepMore | Canary::TakeMore | Canary::ForgetCredit));
        let tight = StreamLimits { window_bytes: 1_000, kept_bytes_max: 1_000 };
        // So that something is always under way.
        let busy = StreamLimits { window_bytes: 8_000, kept_bytes_max: 8_000 };
        let table = TableLimits {
            sessions_max: if is_harsh { rng.pick(&[clients_max, 10_000]) } else { 10_000 },
            stream: match canary {
                Some(_) if is_tight => tight,
                Some(_) => busy,
                None => stream(rng),
            },
            detached_max: if is_harsh { at_most(rng, 60) } else { Duration::from_secs(60) },
            linger: if is_harsh { at_most(rng, 30) } else { Duration::from_secs(30) },
            ..TableLimits::default()
        };
        let at_clients = if canary.is_some() { busy } else { stream(rng) };
        // Where little fits at a time, much takes for ever.
        let least = |limits: StreamLimits| limits.kept_bytes_max.min(limits.window_bytes as usize) as u64;
        let bytes_max = (least(table.stream).min(least(at_clients)) * 300).min(300_000);
        let manners = Manners {
            clients_max,
            rude_in_1000: rng.pick(&[0, 50]),
            hasty_in_1000: match canary {
                Some(Canary::ForgetLast | Canary::FalseOver) => 500,
                _ => rng.pick(&[0, 100]),
            },
            limits: at_clients,
            patience_max: Duration::from_nanos(match canary {
                Some(_) => 5_000_000,
                None => rng.scale(2_000_000, 500_000_000),
            }),
            whims_in_1000: if canary.is_some() { 20 } else { rng.pick(&[0, 1, 20]) },
            some_give_up: is_harsh && canary.is_none(),
            bytes_max: if canary.is_some() { 100_000 } else { rng.scale(100, bytes_max) },
        };
        let calm = faults != Faults::All;
        let attack = match canary {
            Some(Canary::KeepStrangers) => Some(Attack::OF_STRANGERS),
            Some(Canary::ReadFlooders) => Some(Attack::OF_FLOODERS),
            Some(_) => None,
            None => Attack::drawn(of_attack),
        };
        let unauthenticated = attackers::drawn_bounds(of_attack, attack, canary.is_some());
        Climate {
            // Where a fault is planted much happens in few steps, to those who have much under way.
            weather: if canary.is_some() { Weather::calm() } else { Weather::drawn(rng, calm) },
            manners,
            relay: {
                let drawn = settings::of_helpers(rng, calm);
                let memory_bytes_max = drawn.memory_bytes_max.max(HELPER_MEMORY_MIN);
                Config { unauthenticated, memory_bytes_max, ..drawn }
            },
            server: server(rng),
            table,
            rude_in_1000: rng.pick(&[0, 50]),
            helpers: rng.range(1, 3) as usize,
            faults,
            fault_ns_max: match canary {
                Some(Canary::FalseOver) => 5_000_000,
                Some(_) => 200_000,
                None => rng.scale(5_000_000, 200_000_000),
            },
            silence_ns_max: if canary.is_some() { 10_000_000 } else { 500_000_000 },
            is_restless: canary.is_some(),
            restarts_in_1000: if canary == Some(Canary::FalseOver) { 300 } else { 0 },
            is_copied: canary.is_some() || rng.chance(1, 2),
            clocks_differ: rng.chance(3, 4),
            attack,
            unauthenticated,
        }
    }
}

fn stream(rng: &mut Rng) -> StreamLimits {
    StreamLimits {
        window_bytes: rng.scale(16, 256 * 1024) as u32, // fits
        kept_bytes_max: rng.scale(16, 256 * 1024) as usize,
    }
}

/// From some milliseconds to so many seconds.
fn at_most(rng: &mut Rng, seconds: u64) -> Duration {
    Duration::from_nanos(rng.scale(20_000_000, seconds * 1_000_000_000))
}

fn server(rng: &mut Rng) -> Arc<ServerConfig> {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    ring.accept(Role::Client, client_key());
    let limits = Limits {
        pending_bytes_max: rng.scale(1_000, 1 << 20) as usize,
        connections_max: 1_000,
        ..Limits::default()
    };
    Arc::new(ServerConfig { ring, rules: AddressRules::default(), limits, encryption: Encryption::Preferred })
}
