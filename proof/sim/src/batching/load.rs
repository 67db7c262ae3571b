//! The load: times at which clients send requests.

use std::time::Duration;

use spillway_transport::Time;

use crate::rng::Rng;

/// Rates of the steps of a load that rises and falls, in requests per second.
pub const RATES_PER_S: [f64; 7] = [1_000.0, 4_000.0, 8_000.0, 12_000.0, 8_000.0, 4_000.0, 1_000.0];

/// A period with a constant rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Requests per second, of all clients together.
    pub per_s: f64,
    /// Duration of the step.
    pub length: Duration,
}

/// Distribution of the times between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Exponential times, as of independent requests.
    Poisson,
    /// Equal times.
    Even,
    /// Bursts of independent requests. A burst has this length; a pause of nine times this length follows.
    Bursts(Duration),
    /// Closed loop: each client sends its next request after the reply and a think time with this mean. The
    /// steps' rates are not used.
    Closed(Duration),
}

/// The load of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadCourse {
    /// Name in tables.
    pub name: &'static str,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Distribution of the times between requests.
    pub arrivals: Arrivals,
    /// Number of clients. Each request of an open loop comes from a random client.
    pub clients: u32,
}

impl LoadCourse {
    /// A load of 660 clients that rises and falls in steps, as in Figure 12 of PostMan.
    pub fn up_and_down(rates: &[f64], length: Duration) -> LoadCourse {
        let steps = rates.iter().map(|&per_s| Step { per_s, length }).collect();
        LoadCourse { name: "up and down", steps, arrivals: Arrivals::Poisson, clients: 660 }
    }

    /// Index of the step at `at`; `None` after the last step.
    pub fn step_at(&self, at: Time) -> Option<usize> {
        let mut end = Time::ZERO;
        self.steps.iter().position(|step| {
            end = end + step.length;
            at < end
        })
    }

    /// End of the last step.
    pub fn end(&self) -> Time {
        self.steps.iter().fold(Time::ZERO, |end, step| end + step.length)
    }

    /// Times and clients of all requests of an open loop, or of each client's first request of a closed loop.
    pub fn requests(&self, rng: &mut Rng) -> Vec<(Time, u32)> {
        if let Arrivals::Closed(think) = self.arrivals {
            return (0..self.clients).map(|client| (Time::ZERO + exponential(rng, think), client)).collect();
        }
        let (mut requests, mut step_begin) = (Vec::new(), Time::ZERO);
        for step in &self.steps {
            let end = step_begin + step.length;
            let distance = Duration::from_secs_f64(1.0 / step.per_s);
            let mut at = step_begin;
            loop {
                at = self.next(rng, at, distance);
                if at >= end {
                    break;
                }
                requests.push((at, rng.below(u64::from(self.clients)) as u32)); // fits: below `clients`
            }
            step_begin = end;
        }
        requests
    }

    fn next(&self, rng: &mut Rng, at: Time, distance: Duration) -> Time {
        match self.arrivals {
            Arrivals::Even => at + distance,
            Arrivals::Bursts(length) => {
                let cycle = length.as_nanos() as u64 * 10; // fits: some seconds at most
                let next = at + exponential(rng, distance / 10);
                // A request that falls into a pause is sent in the next burst.
                if next.as_nanos() % cycle < cycle / 10 {
                    next
                } else {
                    Time((next.as_nanos() / cycle + 1) * cycle) + exponential(rng, distance / 10)
                }
            }
            Arrivals::Poisson | Arrivals::Closed(_) => at + exponential(rng, distance),
        }
    }
}

pub(crate) fn exponential(rng: &mut Rng, mean: Duration) -> Duration {
    let uniform = ((rng.word() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64; // in (0, 1]
    mean.mul_f64(-uniform.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_open_loop_distribution_keeps_the_rates_of_the_steps() {
        let length = Duration::from_secs(2);
        for arrivals in [Arrivals::Poisson, Arrivals::Even, Arrivals::Bursts(Duration::from_millis(5))] {
            let course = LoadCourse { arrivals, ..LoadCourse::up_and_down(&[2_000.0, 8_000.0], length) };
            let requests = course.requests(&mut Rng::new(3));
            assert!(requests.is_sorted_by_key(|(at, _)| *at) && requests.iter().all(|(_, c)| *c < 660));
            let in_step = |n| requests.iter().filter(|(at, _)| course.step_at(*at) == Some(n)).count();
            assert!((3_600..=4_400).contains(&in_step(0)), "{arrivals:?}: {}", in_step(0));
            assert!((14_400..=17_600).contains(&in_step(1)), "{arrivals:?}: {}", in_step(1));
            assert_eq!(course.step_at(course.end()), None);
        }
    }
}
