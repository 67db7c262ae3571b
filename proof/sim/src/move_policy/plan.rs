//! The parameters that a seed draws: servers, connections, their rates over time, and limits.

use std::time::Duration;

use serde::Serialize;
use spillway_policy::migration::MoveLimits;
use spillway_transport::Time;

use crate::rng::Rng;

/// Number of connections, as in Figure 1 of Capybara.
pub const CONNECTIONS: usize = 150;
/// Mean CPU time of a request.
pub const SERVICE_MEAN: Duration = Duration::from_micros(20);
/// Requests that are due before this time do not count: the policies know no rates yet.
pub const COUNTS_FROM: Time = Time(200_000_000);
/// Requests count that are due before this time. From then on the override forbids moves.
pub const COUNTS_UNTIL: Time = Time(2_000_000_000);
/// End of the run.
pub const END: Time = Time(2_200_000_000);
/// Begin of the first change of the load.
const CHANGES_AT: Time = Time(300_000_000);

/// How the load changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// From one moment on, one server's connections send more than it can serve.
    Skew,
    /// Again and again, the connections of another server send more than it can serve.
    Steps,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Scenario; 2] = [Scenario::Skew, Scenario::Steps];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Skew => "skew",
            Scenario::Steps => "steps",
        }
    }
}

/// A time with constant rates.
#[derive(Clone, Debug)]
pub struct Phase {
    /// End of the phase.
    pub until: Time,
    /// Requests per second of each connection.
    pub rates_per_s: Vec<f64>,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of servers.
    pub servers: usize,
    /// The server to which each connection was opened.
    pub homes: Vec<usize>,
    /// Maximum number of connections of each server.
    pub places: u32,
    /// Phases in order of time, up to [`END`].
    pub phases: Vec<Phase>,
    /// Limits that hold for moves.
    pub limits: MoveLimits,
}

impl Plan {
    /// Draws a plan. `is_tight`: limits that the policies meet often, and a load that changes often.
    pub fn draw(rng: &mut Rng, scenario: Scenario, is_tight: bool) -> Plan {
        let servers = rng.range(2, 4) as usize;
        let mut homes: Vec<usize> = (0..CONNECTIONS).map(|index| index % servers).collect();
        rng.shuffle(&mut homes);
        let weights = draw_weights(rng, &homes, servers);
        let at_home = CONNECTIONS.div_ceil(servers) as u64;
        let places = (at_home + if is_tight { 12 } else { rng.range(20, 80) }) as u32; // fits: below 200
        let limits = if is_tight {
            let moves_per_s_max = rng.pick(&[20, 1_000]);
            MoveLimits { moves_per_s_max, room_percent: 10, ..MoveLimits::default() }
        } else {
            MoveLimits::default()
        };
        let mut plan = Plan { servers, homes, places, phases: Vec::new(), limits };
        let calm = (0..servers).map(|_| 0.35 + 0.2 * rng.unit()).collect::<Vec<_>>();
        plan.add_phase(CHANGES_AT, &weights, &calm);
        let mut hot = rng.below(servers as u64) as usize;
        let mut at = CHANGES_AT;
        while at < COUNTS_UNTIL {
            at = match scenario {
                Scenario::Skew => COUNTS_UNTIL,
                Scenario::Steps if is_tight => at + Duration::from_millis(rng.range(50, 150)),
                Scenario::Steps => at + Duration::from_millis(rng.range(250, 450)),
            }
            .min(COUNTS_UNTIL);
            plan.add_phase(at, &weights, &draw_demands(rng, servers, hot));
            hot = (hot + 1 + rng.below(servers as u64 - 1) as usize) % servers;
        }
        plan.add_phase(END, &weights, &draw_demands(rng, servers, hot));
        plan
    }

    /// Adds a phase in which the connections of each home have this demand together, as a share of a server's capacity.
    fn add_phase(&mut self, until: Time, weights: &[f64], demands: &[f64]) {
        let capacity_per_s = 1.0 / SERVICE_MEAN.as_secs_f64();
        let rate = |(home, weight): (&usize, &f64)| demands[*home] * weight * capacity_per_s;
        let rates_per_s = self.homes.iter().zip(weights).map(rate).collect();
        self.phases.push(Phase { until, rates_per_s });
    }
}

/// Shares of the connections in their home's demand: Zipf's law with a random exponent.
fn draw_weights(rng: &mut Rng, homes: &[usize], servers: usize) -> Vec<f64> {
    let exponent = 0.4 + 0.6 * rng.unit();
    let mut ranks = vec![0_u32; servers];
    let mut sums = vec![0.0; servers];
    let mut weights = Vec::with_capacity(homes.len());
    for home in homes {
        ranks[*home] += 1;
        let weight = f64::from(ranks[*home]).powf(-exponent);
        sums[*home] += weight;
        weights.push(weight);
    }
    for (weight, home) in weights.iter_mut().zip(homes) {
        *weight /= sums[*home];
    }
    weights
}

/// Demands of each home's connections: one home has more than a server can serve, all together have at most 75 % of
/// all servers' capacity.
fn draw_demands(rng: &mut Rng, servers: usize, hot: usize) -> Vec<f64> {
    let mut demands: Vec<f64> = (0..servers).map(|_| 0.25 + 0.2 * rng.unit()).collect();
    let others = demands.iter().sum::<f64>() - demands[hot];
    demands[hot] = (1.05 + 0.3 * rng.unit()).min(0.75 * servers as f64 - others);
    demands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_cover_the_run_and_demands_can_be_served_by_all_servers_together() {
        for seed in 0..50 {
            for scenario in Scenario::ALL {
                let plan = Plan::draw(&mut Rng::new(seed), scenario, seed % 2 == 1);
                assert!(plan.phases.is_sorted_by_key(|phase| phase.until));
                assert_eq!(plan.phases.last().map(|phase| phase.until), Some(END));
                for phase in &plan.phases {
                    let demand = phase.rates_per_s.iter().sum::<f64>() * SERVICE_MEAN.as_secs_f64();
                    assert!(demand <= 0.7501 * plan.servers as f64, "seed {seed}: {demand}");
                }
                let hot = |phase: &Phase| {
                    let mut demands = vec![0.0; plan.servers];
                    for (home, rate_per_s) in plan.homes.iter().zip(&phase.rates_per_s) {
                        demands[*home] += rate_per_s * SERVICE_MEAN.as_secs_f64();
                    }
                    demands.iter().filter(|demand| **demand > 1.0).count()
                };
                assert!(plan.phases[1..].iter().all(|phase| hot(phase) == 1), "one server should be hot");
            }
        }
    }
}
