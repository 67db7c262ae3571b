//! Detects dead carriers: a helper may crash, hang, or be disconnected without a close.
//!
//! Leaving a working carrier costs a move and loses no byte (PostMan §6.4), so the timeout may be short: it follows the
//! measured round trips as TCP's retransmission timeout does (RFC 6298 §2), between a floor and a ceiling.

use core::time::Duration;

use spillway_transport::Time;

/// How long a client waits for a carrier's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierTimeouts {
    /// Minimum of the timeout, so that the client does not leave a server that is busy for a moment.
    pub floor: Duration,
    /// Maximum of the timeout, and its value before the first round trip is measured.
    pub ceiling: Duration,
    /// After this time of silence a carrier is probed although no answer is outstanding.
    pub idle: Duration,
}

impl Default for CarrierTimeouts {
    fn default() -> CarrierTimeouts {
        CarrierTimeouts {
            floor: Duration::from_millis(100),
            ceiling: Duration::from_secs(1),
            idle: Duration::from_secs(5),
        }
    }
}

/// Bound on doublings of the timeout. 2^16 times any practical floor exceeds the ceiling.
const DOUBLINGS_MAX: u32 = 16;

/// The action on a silent carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceAction {
    /// Probe the carrier.
    Probe,
    /// Leave the carrier.
    Leave,
}

/// Watches one carrier. Round trips measured on one carrier are the first estimate for the next carrier.
#[derive(Clone, Debug)]
pub struct CarrierMonitor {
    carrier_timeouts: CarrierTimeouts,
    /// RFC 6298's SRTT and RTTVAR.
    smoothed: Option<(Duration, Duration)>,
    /// When the last bytes arrived on the carrier, or the watch began.
    heard_at: Time,
    /// Since when an answer is outstanding; `None` if none is. Not earlier than `heard_at`.
    waits_since: Option<Time>,
    is_probed: bool,
    /// Carriers left since a round trip was last measured. Each doubles the timeout (RFC 6298 §5.5), because a carrier
    /// that many clients move to at once is slow at first.
    carriers_left: u32,
}

impl CarrierMonitor {
    /// Begins to watch a carrier.
    pub fn new(carrier_timeouts: CarrierTimeouts, now: Time) -> CarrierMonitor {
        CarrierMonitor {
            carrier_timeouts,
            smoothed: None,
            heard_at: now,
            waits_since: None,
            is_probed: false,
            carriers_left: 0,
        }
    }

    /// Watches another carrier from now on. `attached_in`: duration of the carrier's handshake, which counts as the
    /// first round trip (RFC 6298 §2.2) if that gives a longer timeout than the previous carrier's round trips: a
    /// helper that many clients move to at once answers slowly for a while, and the clients must not leave it for that.
    pub fn restart(&mut self, now: Time, attached_in: Duration) {
        let first = (attached_in, attached_in / 2);
        let smoothed = self.smoothed.map(|before| core::cmp::max_by_key(before, first, rto));
        *self = CarrierMonitor {
            smoothed,
            carriers_left: self.carriers_left,
            ..CarrierMonitor::new(self.carrier_timeouts, now)
        };
    }

    /// Bytes arrived on the carrier. `awaits_answer`: an answer is still outstanding.
    pub fn heard(&mut self, now: Time, awaits_answer: bool) {
        if let Some(since) = self.waits_since.take()
            && !awaits_answer
        {
            self.measure(now.since(since));
        }
        self.heard_at = now;
        self.is_probed = false;
        self.waits_since = awaits_answer.then_some(now);
    }

    /// The session sent a message that requires an answer.
    pub fn expect_answer(&mut self, now: Time) {
        self.waits_since.get_or_insert(now);
    }

    /// Updates SRTT and RTTVAR (RFC 6298 §2.2, §2.3).
    fn measure(&mut self, round_trip: Duration) {
        self.carriers_left = 0;
        self.smoothed = Some(match self.smoothed {
            None => (round_trip, round_trip / 2),
            Some((mean, deviation)) => {
                let error = mean.abs_diff(round_trip);
                ((mean * 7 + round_trip) / 8, (deviation * 3 + error) / 4)
            }
        });
    }

    /// The present timeout for an answer.
    pub fn timeout(&self) -> Duration {
        let CarrierTimeouts { floor, ceiling, .. } = self.carrier_timeouts;
        let timeout = self.smoothed.as_ref().map_or(ceiling, |smoothed| rto(smoothed).max(floor));
        timeout.saturating_mul(1 << self.carriers_left.min(DOUBLINGS_MAX)).min(ceiling)
    }

    /// The action that is due now, if any. After [`SilenceAction::Probe`] an answer is outstanding.
    pub fn poll(&mut self, now: Time) -> Option<SilenceAction> {
        if self.poll_timeout() > now {
            return None;
        }
        match self.waits_since {
            Some(since) if now.since(since) >= self.timeout() => {
                self.carriers_left = self.carriers_left.saturating_add(1);
                Some(SilenceAction::Leave)
            }
            _ => {
                self.is_probed = true;
                self.waits_since.get_or_insert(now);
                Some(SilenceAction::Probe)
            }
        }
    }

    /// When to call [`poll`](Self::poll) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        match self.waits_since {
            // The answer to a probe at half the timeout distinguishes a slow server from a dead carrier.
            Some(since) if !self.is_probed => since + self.timeout() / 2,
            Some(since) => since + self.timeout(),
            None => self.heard_at + self.carrier_timeouts.idle,
        }
    }
}

/// RFC 6298's RTO, from SRTT and RTTVAR.
fn rto((mean, deviation): &(Duration, Duration)) -> Duration {
    *mean + *deviation * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// A monitor that has measured round trips of `ms` milliseconds.
    fn measured(ms: u64) -> CarrierMonitor {
        let mut monitor = CarrierMonitor::new(CarrierTimeouts::default(), at(0));
        for round in 0..50 {
            monitor.expect_answer(at(round * 1000));
            monitor.heard(at(round * 1000 + ms), false);
        }
        monitor
    }

    #[test]
    fn the_timeout_follows_round_trips_between_floor_and_ceiling() {
        let first = CarrierMonitor::new(CarrierTimeouts::default(), at(0));
        assert_eq!(first.timeout(), 1000 * MS);
        assert_eq!(measured(1).timeout(), 100 * MS);
        assert!(
            (250 * MS..300 * MS).contains(&measured(250).timeout()),
            "the timeout should be a little above a round trip of 250 ms: {:?}",
            measured(250).timeout()
        );
        assert_eq!(measured(3000).timeout(), 1000 * MS);
    }

    #[test]
    fn a_silent_carrier_is_probed_at_half_the_timeout_and_left_at_the_timeout() {
        let mut monitor = measured(1);
        monitor.expect_answer(at(60_000));
        assert_eq!(
            (monitor.poll(at(60_049)), monitor.poll_timeout()),
            (None, at(60_050)),
            "no probe should be due before half the timeout"
        );
        assert_eq!(monitor.poll(at(60_050)), Some(SilenceAction::Probe));
        assert_eq!(
            (monitor.poll(at(60_099)), monitor.poll_timeout()),
            (None, at(60_100)),
            "the carrier should not be left before the timeout"
        );
        assert_eq!(monitor.poll(at(60_100)), Some(SilenceAction::Leave));
    }

    #[test]
    fn any_received_bytes_restart_the_timeout_for_an_answer() {
        let mut monitor = measured(1);
        monitor.expect_answer(at(60_000));
        for ms in (60_040..70_000).step_by(40) {
            monitor.heard(at(ms), true);
            assert_eq!(monitor.poll(at(ms + 39)), None);
        }
        assert_eq!(monitor.timeout(), 100 * MS, "bytes before the answer should not count as a round trip");
    }

    #[test]
    fn an_idle_carrier_is_probed_and_left_if_it_does_not_answer() {
        let mut monitor = measured(1);
        let idle = 49_001 + 5_000;
        assert_eq!(
            (monitor.poll(at(idle - 1)), monitor.poll_timeout()),
            (None, at(idle)),
            "no probe should be due before the idle time"
        );
        assert_eq!(monitor.poll(at(idle)), Some(SilenceAction::Probe));
        monitor.heard(at(idle + 2), false);
        assert_eq!(monitor.poll_timeout(), at(idle + 2 + 5_000));
        assert_eq!(monitor.poll(at(idle + 5_002)), Some(SilenceAction::Probe));
        assert_eq!(monitor.poll(at(idle + 5_102)), Some(SilenceAction::Leave));
    }

    #[test]
    fn the_next_carrier_begins_with_the_measured_timeout() {
        let mut monitor = measured(1);
        monitor.expect_answer(at(60_000));
        monitor.restart(at(60_200), MS);
        assert_eq!((monitor.timeout(), monitor.poll(at(60_300))), (100 * MS, None));
    }

    #[test]
    fn a_slow_handshake_lengthens_the_timeout() {
        let mut monitor = measured(1);
        monitor.restart(at(60_000), 100 * MS);
        assert_eq!(monitor.timeout(), 300 * MS);
        for round in 1..20 {
            monitor.expect_answer(at(60_000 + round));
            monitor.heard(at(60_001 + round), false);
        }
        assert_eq!(monitor.timeout(), 100 * MS, "later round trips should replace the handshake's");
    }

    #[test]
    fn a_quick_handshake_does_not_shorten_the_timeout() {
        let mut monitor = measured(250);
        let before = monitor.timeout();
        monitor.restart(at(60_000), MS);
        assert_eq!(monitor.timeout(), before);
    }

    #[test]
    fn a_handshake_alone_does_not_change_the_first_timeout() {
        let mut monitor = CarrierMonitor::new(CarrierTimeouts::default(), at(0));
        monitor.restart(at(2), 2 * MS);
        assert_eq!(monitor.timeout(), 1000 * MS);
    }

    #[test]
    fn each_carrier_left_doubles_the_timeout_until_an_answer() {
        let mut monitor = measured(1);
        for (round, timeout_ms) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)] {
            let start_ms = 60_000 + round * 10_000;
            monitor.restart(at(start_ms), MS);
            monitor.expect_answer(at(start_ms));
            assert_eq!(monitor.timeout(), timeout_ms * MS);
            assert_eq!(monitor.poll(at(start_ms + u64::from(timeout_ms) / 2)), Some(SilenceAction::Probe));
            assert_eq!(monitor.poll(at(start_ms + u64::from(timeout_ms))), Some(SilenceAction::Leave));
        }
        monitor.restart(at(200_000), MS);
        monitor.expect_answer(at(200_000));
        monitor.heard(at(200_001), false);
        assert_eq!(monitor.timeout(), 100 * MS);
    }
}
