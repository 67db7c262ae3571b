//! A server's own load, which heartbeats state, and the cost of a request.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::LOAD_MAX;

/// The largest load that a heartbeat states, and that is accepted from a peer: ten times the capacity. A longer queue
/// changes no decision.
pub const LOAD_REPORTED_MAX: u32 = LOAD_MAX * 10;

/// Weight of a new sample in the smoothed CPU cost of a request.
const COST_WEIGHT: f64 = 0.1;

/// A server's measurements since the last look. Looks are about 10 ms apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSample {
    /// CPU use, in millionths of what the server may use.
    pub cpu: u32,
    /// Mean time that the requests waited in the server's queues before service.
    pub queueing: Duration,
    /// Requests served.
    pub served: u32,
}

/// The server's load. All loads are shares of the capacity: 1 is full.
#[derive(Clone, Debug)]
pub struct OwnLoad {
    queueing_full: Duration,
    last: Option<Time>,
    /// The larger of CPU use and queueing time, as helpers report the largest of their shares.
    pub(crate) load: f64,
    /// CPU time of one request, in seconds of the capacity.
    pub(crate) cost_s: f64,
}

impl OwnLoad {
    /// `queueing_full`: the queueing time that counts as full load; see
    /// [`MigrationSettings::queueing_full`](super::MigrationSettings::queueing_full).
    pub fn new(queueing_full: Duration) -> OwnLoad {
        OwnLoad { queueing_full, last: None, load: 0.0, cost_s: 0.0 }
    }

    /// The load to state in heartbeats, in millionths of the capacity: the larger of CPU use and queueing time. Beyond
    /// the capacity up to [`LOAD_REPORTED_MAX`].
    pub fn reported(&self) -> u32 {
        millionths(self.load)
    }

    /// Takes a sample. Returns the time since the last one; `None` for the first, which has no known length.
    pub fn sample(&mut self, now: Time, sample: LoadSample) -> Option<Duration> {
        let cpu = share(sample.cpu.min(LOAD_MAX));
        let queueing = sample.queueing.as_secs_f64() / self.queueing_full.as_secs_f64();
        self.load = cpu.max(queueing).min(share(LOAD_REPORTED_MAX));
        let passed = now.since(self.last.replace(now)?);
        if !passed.is_zero() && sample.served > 0 {
            let cost_s = cpu * passed.as_secs_f64() / f64::from(sample.served);
            let weight = if self.cost_s == 0.0 { 1.0 } else { COST_WEIGHT };
            self.cost_s += (cost_s - self.cost_s) * weight;
        }
        Some(passed)
    }
}

/// Millionths as a share.
pub(crate) fn share(millionths: u32) -> f64 {
    f64::from(millionths) / f64::from(LOAD_MAX)
}

/// A share as millionths, from 0 to [`LOAD_REPORTED_MAX`].
pub(crate) fn millionths(share: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to the range of u32"
    )]
    let millionths = (share * f64::from(LOAD_MAX) + 0.5).clamp(0.0, f64::from(LOAD_REPORTED_MAX)) as u32;
    millionths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn load_is_the_larger_of_cpu_and_queueing_time_and_bounded() {
        let mut load = OwnLoad::new(Duration::from_millis(1));
        let mut load_of = |cpu, queueing_us| {
            load.sample(ms(10), LoadSample { cpu, queueing: Duration::from_micros(queueing_us), served: 1 });
            load.reported()
        };
        assert_eq!(load_of(600_000, 200), 600_000);
        assert_eq!(load_of(600_000, 900), 900_000);
        assert_eq!(load_of(u32::MAX, 0), LOAD_MAX, "CPU use should count up to the capacity");
        assert_eq!(load_of(0, u64::MAX / 1_000_000), LOAD_REPORTED_MAX);
    }

    #[test]
    fn cost_of_a_request_comes_from_cpu_time_and_requests_served() {
        let mut load = OwnLoad::new(Duration::from_millis(1));
        let sample = LoadSample { cpu: 500_000, queueing: Duration::ZERO, served: 100 };
        assert_eq!(load.sample(ms(0), sample), None, "the first sample should have no length");
        assert_eq!(load.cost_s, 0.0);
        load.sample(ms(10), sample);
        assert!((load.cost_s - 50e-6).abs() < 1e-12, "5 ms for 100 requests: {}", load.cost_s);
        load.sample(ms(20), LoadSample { served: 0, ..sample });
        assert!((load.cost_s - 50e-6).abs() < 1e-12, "a sample without requests should change no cost");
    }
}
