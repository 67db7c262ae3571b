//! The parameters that a seed draws: processes, connections and helpers, the course of the load, and faults.

use std::time::Duration;

use serde::Serialize;
use spillway_policy::ActivationSettings;
use spillway_transport::Time;

use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// CPU costs in the ranges of `docs/measurements.md` (*burst*): 25 µs for a direct request, 17 µs for a
/// batch, 2.5 µs for a message in it. The server has a tenth of a core, so they take ten times as long.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A request on a connection of its own.
    pub direct: Duration,
    /// A batch, without its messages.
    pub batch: Duration,
    /// A message in a batch.
    pub message: Duration,
    /// An opening message on the server's ordinary port. In a batch it costs as much as four messages.
    pub connect: Duration,
    /// A message in one direction at a helper, which has a core of its own.
    pub helper: Duration,
    /// Batch delay of a helper.
    pub delay: Duration,
    /// One-way delay between two hosts.
    pub one_way: Duration,
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
            one_way: US * 50,
        }
    }
}

impl Costs {
    /// Requests per second that the server can serve on its ordinary port.
    pub fn capacity(&self) -> f64 {
        1.0 / self.direct.as_secs_f64()
    }
}

/// The load over time, in units of the server's direct capacity, and other causes of latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// Load 0.5, then 1.5 for 20 s, then 0.3.
    Burst,
    /// Load that oscillates by 20 % around the load at which latency exceeds the SLA.
    Oscillation {
        /// Period, ms.
        period_ms: u64,
        /// Mean load.
        middle: f64,
    },
    /// Load that rises slowly to 1.6, then falls to 0.3.
    Ramp,
    /// Low load, but each request, direct or helped, costs nine direct requests more.
    SlowApplication,
    /// Low load, but each reply waits 10 ms for a backend.
    SlowBackend,
    /// Low load, and the server stalls for 300 ms every 7 s.
    Stalls,
    /// Load 2.5 for 20 s, with clients that give a request up after 2 s.
    Impatience,
}

impl Course {
    /// Name in tables.
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

    /// Start of the burst, of the slowness and of the stalls.
    pub const BEGINS: Time = Time(5_000_000_000);
    /// End of all courses.
    pub const END: Time = Time(65_000_000_000);
    /// End of a burst.
    pub const BURST_ENDS: Time = Time(25_000_000_000);

    /// Load at `now`.
    pub fn load(self, now: Time) -> f64 {
        let seconds = now.as_nanos() as f64 / 1e9;
        match self {
            Course::Burst | Course::Impatience if now < Course::BEGINS => 0.5,
            Course::Burst if now < Course::BURST_ENDS => 1.5,
            Course::Impatience if now < Course::BURST_ENDS => 2.5,
            Course::Burst | Course::Impatience => 0.3,
            Course::Oscillation { period_ms, middle } => {
                let deviation = (seconds * 1000.0 / period_ms as f64 * std::f64::consts::TAU).sin();
                middle * (1.0 + 0.2 * deviation)
            }
            Course::Ramp if seconds < 45.0 => 0.4 + 1.2 * seconds / 45.0,
            Course::Ramp => 0.3,
            Course::SlowApplication | Course::SlowBackend | Course::Stalls => 0.5,
        }
    }

    /// Maximum load of the course.
    pub fn load_max(self) -> f64 {
        match self {
            Course::Burst => 1.5,
            Course::Oscillation { middle, .. } => middle * 1.2,
            Course::Ramp => 1.6,
            Course::SlowApplication | Course::SlowBackend | Course::Stalls => 0.5,
            Course::Impatience => 2.5,
        }
    }

    /// Additional CPU time of a request, direct or helped.
    pub fn application_time(self, now: Time, costs: &Costs) -> Duration {
        let is_slow = self == Course::SlowApplication && now >= Course::BEGINS;
        if is_slow { costs.direct * 9 } else { Duration::ZERO }
    }

    /// Additional delay of a reply, without CPU time.
    pub fn backend_delay(self, now: Time) -> Duration {
        let is_slow = self == Course::SlowBackend && now >= Course::BEGINS;
        if is_slow { MS * 10 } else { Duration::ZERO }
    }

    /// End of the server's present stall; `now` if it is not stalled.
    pub fn stalled_until(self, now: Time) -> Time {
        const EVERY_NS: u64 = 7_000_000_000;
        const STALL_NS: u64 = 300_000_000;
        let within = now.as_nanos() % EVERY_NS;
        let stalls = self == Course::Stalls && now >= Course::BEGINS && within < STALL_NS;
        if stalls { now + Duration::from_nanos(STALL_NS - within) } else { now }
    }

    /// Whether the latency has a cause that batching cannot reduce.
    pub fn is_beyond_relief(self) -> bool {
        matches!(self, Course::SlowApplication | Course::SlowBackend | Course::Stalls)
    }
}

/// An event of a plan: helpers die or restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A helper dies.
    Dies(u16),
    /// All helpers die.
    AllDie,
    /// All helpers restart.
    AllRestart,
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// CPU costs and delays.
    pub costs: Costs,
    /// Course of the load.
    pub course: Course,
    /// Connections of each process.
    pub processes: Vec<u32>,
    /// Number of helpers.
    pub helpers: u16,
    /// Maximum number of clients of each helper.
    pub helper_clients_max: u32,
    /// A helper that always reports a load of 0, and delays each message.
    pub misreporting_helper: Option<u16>,
    /// Additional delay of a message at every helper.
    pub helpers_delay: Duration,
    /// Faults and their times.
    pub faults: Vec<(Time, Fault)>,
    /// Whether the server measures its CPU use.
    pub measures_cpu: bool,
    /// Time after which clients give a request up; `None`: never.
    pub patience: Option<Duration>,
    /// Activation settings of all processes.
    pub settings: ActivationSettings,
}

/// The problem of a world's helpers, drawn once from the seed. A [`Fault`] is one event of such a problem.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Deaths,
    AllDead,
    Full,
    Misreports,
    Slow,
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(rng: &mut Rng) -> Plan {
        let oscillation = Course::Oscillation { period_ms: rng.log_uniform(2_000, 20_000), middle: 0.9 };
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
            other => courses[other as usize - 3], // 5 to 9: the courses from the ramp on
        };
        let troubles = [
            Trouble::None,
            Trouble::None,
            Trouble::None,
            Trouble::Deaths,
            Trouble::AllDead,
            Trouble::Full,
            Trouble::Misreports,
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
            _ => (0..rng.range(20, 60)).map(|_| rng.log_uniform(1, 20) as u32).collect(),
        };
        let connections: u32 = processes.iter().sum();
        let mut faults = Vec::new();
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        match trouble {
            Trouble::Deaths => {
                for helper in 0..helpers - 1 {
                    faults.push((second(rng.range(6, 30)), Fault::Dies(helper)));
                }
            }
            Trouble::AllDead => {
                faults.push((second(rng.range(4, 20)), Fault::AllDie));
                faults.push((second(rng.range(21, 40)), Fault::AllRestart));
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
            misreporting_helper: (trouble == Trouble::Misreports)
                .then(|| rng.below(u64::from(helpers)) as u16),
            helpers_delay: if trouble == Trouble::Slow {
                MS * rng.range(10, 40) as u32
            } else {
                Duration::ZERO
            },
            faults,
            measures_cpu: rng.chance(1, 2),
            patience: (course == Course::Impatience).then_some(MS * 2_000),
            settings,
        }
    }

    /// Number of connections of all processes.
    pub fn connections(&self) -> u32 {
        self.processes.iter().sum()
    }

    /// Whether all helpers work and have room for all connections.
    pub fn helpers_are_healthy(&self) -> bool {
        self.faults.is_empty()
            && self.misreporting_helper.is_none()
            && self.helpers_delay.is_zero()
            && self.helper_clients_max >= self.connections()
    }

    /// Name of the helpers' fault, for tables.
    pub fn trouble(&self) -> &'static str {
        match () {
            () if self.helpers_are_healthy() => "-",
            () if self.misreporting_helper.is_some() => "misreports",
            () if !self.helpers_delay.is_zero() => "slow",
            () if self.faults.iter().any(|(_, fault)| *fault == Fault::AllDie) => "all dead",
            () if !self.faults.is_empty() => "deaths",
            () => "full",
        }
    }
}
