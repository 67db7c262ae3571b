//! What batches and messages cost a server, and when it has done with them.

use std::time::Duration;

use spillway_transport::Time;

/// A server's CPU time. The defaults add up to what `docs/measurements.md` says of `burst`: 17 µs for a batch that finds
/// the server asleep, 2.5 µs for each message in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Waking up.
    pub wake: Duration,
    /// Receiving a batch.
    pub batch: Duration,
    /// Sending replies, once for all that was there.
    pub send: Duration,
    /// Each message.
    pub message: Duration,
}

impl Default for Costs {
    fn default() -> Costs {
        let us = Duration::from_micros;
        Costs { wake: us(6), batch: us(6), send: us(5), message: Duration::from_nanos(2_500) }
    }
}

impl Costs {
    /// Those of a machine that takes as many times as long for everything.
    pub fn times(self, factor: f64) -> Costs {
        let Costs { wake, batch, send, message } = self;
        let [wake, batch, send, message] = [wake, batch, send, message].map(|cost| cost.mul_f64(factor));
        Costs { wake, batch, send, message }
    }
}

/// What a host may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// In each period.
    pub time: Duration,
    /// How long a period is.
    pub period: Duration,
}

/// A server's core.
#[derive(Clone, Debug)]
pub struct Core {
    quota: Option<Quota>,
    period_end: Time,
    left: Duration,
    /// Used so far.
    pub used: Duration,
}

impl Core {
    /// One that has done nothing yet.
    pub fn new(quota: Option<Quota>) -> Core {
        Core { quota, period_end: Time::ZERO, left: Duration::ZERO, used: Duration::ZERO }
    }

    /// When work that begins now is done.
    pub fn work(&mut self, now: Time, mut cost: Duration) -> Time {
        self.used += cost;
        let Some(quota) = self.quota else { return now + cost };
        let mut at = now;
        loop {
            if at >= self.period_end {
                let period = quota.period.as_nanos() as u64; // some ms
                self.period_end = Time((at.as_nanos() / period + 1) * period);
                self.left = quota.time;
            }
            if cost <= self.left {
                self.left -= cost;
                return at + cost;
            }
            cost -= self.left;
            at = self.period_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_quota_waits_for_the_next_period() {
        let ms = Duration::from_millis;
        let mut core = Core::new(Some(Quota { time: ms(1), period: ms(10) }));
        assert_eq!(core.work(Time(2_000_000), ms(1)), Time(3_000_000));
        assert_eq!(core.work(Time(3_000_000), Duration::from_micros(1500)), Time(20_500_000));
        assert_eq!(core.work(Time(21_000_000), Duration::from_micros(500)), Time(21_500_000));
        assert_eq!(core.used, ms(3));
        assert_eq!(Core::new(None).work(Time(5), ms(1)), Time(1_000_005));
    }
}
