//! CPU cost of batches and messages at a server.

use std::time::Duration;

use spillway_transport::Time;

/// CPU times of a server. The defaults are in the ranges of `docs/measurements.md` (*burst*): 17 µs for a
/// batch that wakes the server, 2.5 µs for each message in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// CPU time of a wake-up.
    pub wake: Duration,
    /// CPU time to receive a batch.
    pub batch: Duration,
    /// CPU time to send all replies of a turn.
    pub send: Duration,
    /// CPU time of each message.
    pub message: Duration,
}

impl Default for Costs {
    fn default() -> Costs {
        let us = Duration::from_micros;
        Costs { wake: us(6), batch: us(6), send: us(5), message: Duration::from_nanos(2_500) }
    }
}

impl Costs {
    /// The costs on a machine that is slower by `factor`.
    pub fn times(self, factor: f64) -> Costs {
        let Costs { wake, batch, send, message } = self;
        let [wake, batch, send, message] = [wake, batch, send, message].map(|cost| cost.mul_f64(factor));
        Costs { wake, batch, send, message }
    }
}

/// CPU time that a host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// CPU time in each period.
    pub time: Duration,
    /// Length of a period.
    pub period: Duration,
}

/// The core of a server, with its quota.
#[derive(Clone, Debug)]
pub struct Core {
    quota: Option<Quota>,
    period_end: Time,
    left_in_period: Duration,
    /// CPU time used so far.
    pub used: Duration,
}

impl Core {
    /// A core without load.
    pub fn new(quota: Option<Quota>) -> Core {
        Core { quota, period_end: Time::ZERO, left_in_period: Duration::ZERO, used: Duration::ZERO }
    }

    /// Charges `cost` for work that begins at `now`. Returns when the work ends.
    pub fn work(&mut self, now: Time, mut cost: Duration) -> Time {
        self.used += cost;
        let Some(quota) = self.quota else { return now + cost };
        let mut at = now;
        loop {
            if at >= self.period_end {
                let period = quota.period.as_nanos() as u64; // fits: a few ms
                self.period_end = Time((at.as_nanos() / period + 1) * period);
                self.left_in_period = quota.time;
            }
            if cost <= self.left_in_period {
                self.left_in_period -= cost;
                return at + cost;
            }
            cost -= self.left_in_period;
            at = self.period_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_the_quota_waits_for_the_next_period() {
        let ms = Duration::from_millis;
        let mut core = Core::new(Some(Quota { time: ms(1), period: ms(10) }));
        assert_eq!(core.work(Time(2_000_000), ms(1)), Time(3_000_000));
        assert_eq!(core.work(Time(3_000_000), Duration::from_micros(1500)), Time(20_500_000));
        assert_eq!(core.work(Time(21_000_000), Duration::from_micros(500)), Time(21_500_000));
        assert_eq!(core.used, ms(3));
        assert_eq!(Core::new(None).work(Time(5), ms(1)), Time(1_000_005));
    }
}
