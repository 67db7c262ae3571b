//! Detects dead carriers: a helper may crash, hang, or be disconnected without a close.
//!
//! A wrong verdict costs a move, never a byte (PostMan §6.4), so the timeout may be short: it follows the measured round
//! trips as TCP's retransmission timeout does (RFC 6298 §2), between a floor and a ceiling.

use core::time::Duration;

use spillway_transport::Time;

/// How long a client waits for a carrier's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Minimum of the timeout, so that a server which is busy for a moment is not left.
    pub floor: Duration,
    /// Maximum of the timeout, and its value before the first round trip is measured.
    pub ceiling: Duration,
    /// After this time of silence a carrier is probed although no answer is outstanding.
    pub idle: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            floor: Duration::from_millis(100),
            ceiling: Duration::from_secs(1),
            idle: Duration::from_secs(5),
        }
    }
}

/// Bound on doublings of the timeout: 2^16 times any practical floor exceeds the ceiling.
const DOUBLINGS_MAX: u32 = 16;

/// What to do about a silent carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Probe it.
    Ask,
    /// Leave it.
    Leave,
}

/// Watches one carrier. Round trips that were measured on one carrier are the first estimate for the next.
#[derive(Clone, Debug)]
pub struct CarrierMonitor {
    patience: Patience,
    /// RFC 6298's SRTT and RTTVAR.
    smoothed: Option<(Duration, Duration)>,
    /// When the carrier was last heard, or the watch began.
    heard_at: Time,
    /// Since when an answer is outstanding, counted from `heard_at` at the earliest.
    awaits_since: Option<Time>,
    has_asked: bool,
    /// Carriers left since a round trip was measured. Each doubles the timeout (RFC 6298 §5.5): a carrier that many clients
    /// move to at once is slow at first.
    left: u32,
}

impl CarrierMonitor {
    /// Begins to watch a carrier.
    pub fn new(patience: Patience, now: Time) -> CarrierMonitor {
        CarrierMonitor {
            patience,
            smoothed: None,
            heard_at: now,
            awaits_since: None,
            has_asked: false,
            left: 0,
        }
    }

    /// Watches another carrier from now on. `attached_in`: how long its handshake took. The handshake counts as its first
    /// round trip, as in TCP (RFC 6298 §2.2), if that gives a longer timeout than the round trips of the carrier before: a
    /// helper that many clients move to at once answers slowly for a while, and must not be left for that.
    pub fn restart(&mut self, now: Time, attached_in: Duration) {
        let first = (attached_in, attached_in / 2);
        let smoothed = self.smoothed.map(|before| core::cmp::max_by_key(before, first, until_doubt));
        *self = CarrierMonitor { smoothed, left: self.left, ..CarrierMonitor::new(self.patience, now) };
    }

    /// The carrier was heard. `awaits`: an answer is still outstanding.
    pub fn heard(&mut self, now: Time, awaits: bool) {
        if let Some(since) = self.awaits_since.take()
            && !awaits
        {
            self.measured(now.since(since));
        }
        self.heard_at = now;
        self.has_asked = false;
        self.awaits_since = awaits.then_some(now);
    }

    /// A message was sent that requires an answer.
    pub fn awaits(&mut self, now: Time) {
        self.awaits_since.get_or_insert(now);
    }

    /// Updates SRTT and RTTVAR (RFC 6298 §2.2, §2.3).
    fn measured(&mut self, round_trip: Duration) {
        self.left = 0;
        self.smoothed = Some(match self.smoothed {
            None => (round_trip, round_trip / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(round_trip);
                ((mean * 7 + round_trip) / 8, (deviation * 3 + off) / 4)
            }
        });
    }

    /// The present timeout for an answer.
    pub fn timeout(&self) -> Duration {
        let Patience { floor, ceiling, .. } = self.patience;
        let once = self.smoothed.as_ref().map_or(ceiling, |smoothed| until_doubt(smoothed).max(floor));
        once.saturating_mul(1 << self.left.min(DOUBLINGS_MAX)).min(ceiling)
    }

    /// What to do now, if anything. After [`Doubt::Ask`] an answer is outstanding.
    pub fn poll(&mut self, now: Time) -> Option<Doubt> {
        if self.poll_timeout() > now {
            return None;
        }
        match self.awaits_since {
            Some(since) if now.since(since) >= self.timeout() => {
                self.left = self.left.saturating_add(1);
                Some(Doubt::Leave)
            }
            _ => {
                self.has_asked = true;
                self.awaits_since.get_or_insert(now);
                Some(Doubt::Ask)
            }
        }
    }

    /// When to call [`poll`](Self::poll) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        match self.awaits_since {
            // The probe at half the timeout tells a server that is slow to answer from a dead carrier.
            Some(since) if !self.has_asked => since + self.timeout() / 2,
            Some(since) => since + self.timeout(),
            None => self.heard_at + self.patience.idle,
        }
    }
}

/// RFC 6298's RTO, from SRTT and RTTVAR.
fn until_doubt((mean, deviation): &(Duration, Duration)) -> Duration {
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
        let mut monitor = CarrierMonitor::new(Patience::default(), at(0));
        for round in 0..50 {
            monitor.awaits(at(round * 1000));
            monitor.heard(at(round * 1000 + ms), false);
        }
        monitor
    }

    #[test]
    fn patience_follows_round_trips_between_floor_and_ceiling() {
        let first = CarrierMonitor::new(Patience::default(), at(0));
        assert_eq!(first.timeout(), 1000 * MS);
        assert_eq!(measured(1).timeout(), 100 * MS);
        assert!((250 * MS..300 * MS).contains(&measured(250).timeout()), "{:?}", measured(250).timeout());
        assert_eq!(measured(3000).timeout(), 1000 * MS);
    }

    #[test]
    fn a_silent_carrier_is_asked_half_way_and_then_left() {
        let mut monitor = measured(1);
        monitor.awaits(at(60_000));
        assert_eq!((monitor.poll(at(60_049)), monitor.poll_timeout()), (None, at(60_050)));
        assert_eq!(monitor.poll(at(60_050)), Some(Doubt::Ask));
        assert_eq!((monitor.poll(at(60_099)), monitor.poll_timeout()), (None, at(60_100)));
        assert_eq!(monitor.poll(at(60_100)), Some(Doubt::Leave));
    }

    #[test]
    fn a_sign_of_life_is_enough_while_an_answer_is_awaited() {
        let mut monitor = measured(1);
        monitor.awaits(at(60_000));
        for ms in (60_040..70_000).step_by(40) {
            monitor.heard(at(ms), true);
            assert_eq!(monitor.poll(at(ms + 39)), None);
        }
        assert_eq!(monitor.timeout(), 100 * MS, "a slow answer is no round trip until it is there");
    }

    #[test]
    fn an_idle_carrier_is_asked_and_left_if_it_does_not_answer() {
        let mut monitor = measured(1);
        let idle = 49_001 + 5_000;
        assert_eq!((monitor.poll(at(idle - 1)), monitor.poll_timeout()), (None, at(idle)));
        assert_eq!(monitor.poll(at(idle)), Some(Doubt::Ask));
        monitor.heard(at(idle + 2), false);
        assert_eq!(monitor.poll_timeout(), at(idle + 2 + 5_000));
        assert_eq!(monitor.poll(at(idle + 5_002)), Some(Doubt::Ask));
        assert_eq!(monitor.poll(at(idle + 5_102)), Some(Doubt::Leave));
    }

    #[test]
    fn another_carrier_begins_with_what_was_measured() {
        let mut monitor = measured(1);
        monitor.awaits(at(60_000));
        monitor.restart(at(60_200), MS);
        assert_eq!((monitor.timeout(), monitor.poll(at(60_300))), (100 * MS, None));
    }

    #[test]
    fn a_carrier_whose_handshake_was_slow_gets_more_time() {
        let mut monitor = measured(1);
        monitor.restart(at(60_000), 100 * MS);
        assert_eq!(monitor.timeout(), 300 * MS);
        for round in 1..20 {
            monitor.awaits(at(60_000 + round));
            monitor.heard(at(60_001 + round), false);
        }
        assert_eq!(monitor.timeout(), 100 * MS, "round trips of this carrier count from now on");
    }

    #[test]
    fn a_quick_handshake_does_not_shorten_what_was_measured() {
        let mut monitor = measured(250);
        let before = monitor.timeout();
        monitor.restart(at(60_000), MS);
        assert_eq!(monitor.timeout(), before);
    }

    #[test]
    fn a_handshake_alone_measures_nothing() {
        let mut monitor = CarrierMonitor::new(Patience::default(), at(0));
        monitor.restart(at(2), 2 * MS);
        assert_eq!(monitor.timeout(), 1000 * MS);
    }

    #[test]
    fn the_next_carrier_gets_more_time_until_it_has_answered() {
        let mut monitor = measured(1);
        for (round, patience_ms) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)] {
            let begin = 60_000 + round * 10_000;
            monitor.restart(at(begin), MS);
            monitor.awaits(at(begin));
            assert_eq!(monitor.timeout(), patience_ms * MS);
            assert_eq!(monitor.poll(at(begin + u64::from(patience_ms) / 2)), Some(Doubt::Ask));
            assert_eq!(monitor.poll(at(begin + u64::from(patience_ms))), Some(Doubt::Leave));
        }
        monitor.restart(at(200_000), MS);
        monitor.awaits(at(200_000));
        monitor.heard(at(200_001), false);
        assert_eq!(monitor.timeout(), 100 * MS);
    }
}
