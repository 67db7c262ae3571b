//! What is drawn from the seed: who takes part, the load's course, what goes wrong.

use std::time::Duration;

use serde::Serialize;
use spillway_policy::ActivationSettings;
use spillway_transport::Time;

use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// What a piece of work costs: a server that has a tenth of a core, as in `docs/measurements.md` (*burst*): direct 25 µs a
/// request, a batch 17 µs and a message in it 2.5 µs, each ten times as long with a tenth of the core.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A request on a connection of its own.
    pub direct: Duration,
    /// A batch, whatever is in it.
    pub batch: Duration,
    /// A message in a batch.
    pub message: Duration,
    /// A session's first words on a link of its own; in a batch they cost four messages.
    pub connect: Duration,
    /// A helper: for a message one way. It has a whole core.
    pub helper: Duration,
    /// A helper waits so long for a batch to gather.
    pub delay: Duration,
    /// One way between two hosts.
    pub way: Duration,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            direct: US * 250,
            batch: US * 170,
            message: US * 25,
            connect: US * 500,
            helper: US * 15,
            delay: US * 400,
            way: US * 50,
        }
    }
}

impl Costs {
    /// Requests a second that the server can serve direct.
    pub fn capacity(&self) -> f64 {
        1.0 / self.direct.as_secs_f64()
    }
}

/// How the load goes, in units of what the server can serve direct; and what else may make it slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// Half, then one and a half for 20 s, then 0.3.
    Burst,
    /// To and fro, 20 % around where latency passes the SLA.
    Oscillation {
        /// One time to and fro, ms.
        period_ms: u64,
        /// The middle.
        middle: f64,
    },
    /// Slowly up to 1.6, and down.
    Ramp,
    /// Low load, but the application takes ten times as long for each request, whatever brings it.
    SlowApplication,
    /// Low load, but each reply waits for something else.
    SlowBackend,
    /// Low load, and the server stands still for 300 ms every 7 s.
    Stalls,
    /// A burst of 2.5, and clients that give a request up after two seconds.
    Impatience,
}

impl Course {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Course::Burst => "burst",
            Course::Oscillation { .. } => "oscillation",
            Course::Ramp => "ramp",
            Course::SlowApplication => "slow application",
            Course::SlowBackend => "slow backend",
            Course::Stalls => "stalls",
            Course::Impatience => "impatience",
        }
    }

    /// When the interesting part begins.
    pub const BEGINS: Time = Time(5_000_000_000);
    /// Longest of all.
    pub const END: Time = Time(65_000_000_000);
    /// When a burst is over.
    pub const BURST_ENDS: Time = Time(25_000_000_000);

    /// Load now.
    pub fn load(self, now: Time) -> f64 {
        let s = now.as_nanos() as f64 / 1e9;
        match self {
            Course::Burst | Course::Impatience if now < Course::BEGINS => 0.5,
            Course::Burst if now < Course::BURST_ENDS => 1.5,
            Course::Impatience if now < Course::BURST_ENDS => 2.5,
            Course::Burst | Course::Impatience => 0.3,
            Course::Oscillation { period_ms, middle } => {
                let around = (s * 1000.0 / period_ms as f64 * std::f64::consts::TAU).sin();
                middle * (1.0 + 0.2 * around)
            }
            Course::Ramp if s < 45.0 => 0.4 + 1.2 * s / 45.0,
            Course::Ramp => 0.3,
            Course::SlowApplication | Course::SlowBackend | Course::Stalls => 0.5,
        }
    }

    /// The most that it ever is.
    pub fn load_max(self) -> f64 {
        match self {
            Course::Burst => 1.5,
            Course::Oscillation { middle, .. } => middle * 1.2,
            Course::Ramp => 1.6,
            Course::SlowApplication | Course::SlowBackend | Course::Stalls => 0.5,
            Course::Impatience => 2.5,
        }
    }

    /// What a request costs more, whatever brings it.
    pub fn application(self, now: Time, costs: &Costs) -> Duration {
        let is_slow = self == Course::SlowApplication && now >= Course::BEGINS;
        if is_slow { costs.direct * 9 } else { Duration::ZERO }
    }

    /// How much longer a reply waits, without work.
    pub fn backend(self, now: Time) -> Duration {
        let is_slow = self == Course::SlowBackend && now >= Course::BEGINS;
        if is_slow { MS * 10 } else { Duration::ZERO }
    }

    /// Until when the server stands still; now, if it does not.
    pub fn stands_until(self, now: Time) -> Time {
        const EVERY_NS: u64 = 7_000_000_000;
        const STALL_NS: u64 = 300_000_000;
        let within = now.as_nanos() % EVERY_NS;
        let stalls = self == Course::Stalls && now >= Course::BEGINS && within < STALL_NS;
        if stalls { now + Duration::from_nanos(STALL_NS - within) } else { now }
    }

    /// Batching cannot mend it.
    pub fn is_past_help(self) -> bool {
        matches!(self, Course::SlowApplication | Course::SlowBackend | Course::Stalls)
    }
}

/// Something that goes wrong with helpers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// One dies.
    Dies(u16),
    /// All die.
    AllDie,
    /// They live again.
    AllLive,
}

/// A world before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What things cost.
    pub costs: Costs,
    /// How the load goes.
    pub course: Course,
    /// Connections of each process.
    pub processes: Vec<u32>,
    /// Helpers.
    pub helpers: u16,
    /// Clients that each of them takes.
    pub helper_clients_max: u32,
    /// Which of them says that it is idle, whatever it does, and takes its time with each message.
    pub liar: Option<u16>,
    /// All of them take this much longer with each message.
    pub helpers_slow: Duration,
    /// Faults, and when.
    pub faults: Vec<(Time, Fault)>,
    /// The server knows how busy it is.
    pub knows_busy: bool,
    /// Clients give a request up after so long.
    pub patience: Option<Duration>,
    /// What processes are set to.
    pub settings: ActivationSettings,
}

/// What is wrong with the helpers of a world.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Deaths,
    AllDead,
    Full,
    Liar,
    Slow,
}

impl Plan {
    /// Of a seed.
    pub fn draw(rng: &mut Rng) -> Plan {
        let oscillation = Course::Oscillation { period_ms: rng.scale(2_000, 20_000), middle: 0.9 };
        let courses = [
            Course::Burst,
            oscillation,
            Course::Ramp,
            Course::SlowApplication,
            Course::SlowBackend,
            Course::Stalls,
            Course::Impatience,
        ];
        let course = match rng.below(10) {
            0..3 => Course::Burst,
            3..5 => oscillation,
            other => courses[other as usize - 3],
        };
        let troubles = [
            Trouble::None,
            Trouble::None,
            Trouble::None,
            Trouble::Deaths,
            Trouble::AllDead,
            Trouble::Full,
            Trouble::Liar,
            Trouble::Slow,
        ];
        Plan::with(course, rng.pick(&troubles), rng)
    }

    fn with(course: Course, trouble: Trouble, rng: &mut Rng) -> Plan {
        let helpers = rng.range(2, 4) as u16;
        let processes = match rng.below(5) {
            0 => vec![rng.range(200, 500) as u32],
            1 | 2 => vec![1; rng.range(150, 250) as usize],
            3 => (0..rng.range(4, 12)).map(|_| rng.range(10, 60) as u32).collect(),
            _ => (0..rng.range(20, 60)).map(|_| rng.scale(1, 20) as u32).collect(),
        };
        let connections: u32 = processes.iter().sum();
        let mut faults = Vec::new();
        let second = |s: u64| Time(s * 1_000_000_000);
        match trouble {
            Trouble::Deaths => {
                for helper in 0..helpers - 1 {
                    faults.push((second(rng.range(6, 30)), Fault::Dies(helper)));
                }
            }
            Trouble::AllDead => {
                faults.push((second(rng.range(4, 20)), Fault::AllDie));
                faults.push((second(rng.range(21, 40)), Fault::AllLive));
            }
            _ => {}
        }
        let settings = ActivationSettings {
            sla: MS * 4,
            moves_per_s_max: rng.pick(&[200, 1_000, 5_000]),
            ..ActivationSettings::default()
        };
        Plan {
            costs: Costs::default(),
            course,
            processes,
            helpers,
            helper_clients_max: if trouble == Trouble::Full { rng.below(20) as u32 } else { connections },
            liar: (trouble == Trouble::Liar).then(|| rng.below(u64::from(helpers)) as u16),
            helpers_slow: if trouble == Trouble::Slow {
                MS * rng.range(10, 40) as u32
            } else {
                Duration::ZERO
            },
            faults,
            knows_busy: rng.chance(1, 2),
            patience: (course == Course::Impatience).then_some(MS * 2_000),
            settings,
        }
    }

    /// Connections in all.
    pub fn connections(&self) -> u32 {
        self.processes.iter().sum()
    }

    /// Nothing is wrong with the helpers.
    pub fn helpers_are_well(&self) -> bool {
        self.faults.is_empty()
            && self.liar.is_none()
            && self.helpers_slow.is_zero()
            && self.helper_clients_max >= self.connections()
    }

    /// What is wrong with the helpers, for tables.
    pub fn trouble(&self) -> &'static str {
        match () {
            () if self.helpers_are_well() => "-",
            () if self.liar.is_some() => "a liar",
            () if !self.helpers_slow.is_zero() => "slow",
            () if !self.faults.is_empty() => "deaths",
            () => "full",
        }
    }
}
