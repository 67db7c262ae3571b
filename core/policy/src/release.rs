//! When a server no longer needs help: the server's side (PostMan §5.3).
//!
//! The server sends its helped sessions back, spread over time, when throughput *and* latency have been low for a
//! while. Neither alone is enough: latency may be low only because helpers relieve the server, and throughput is also
//! low after clients have given up. Throughput is compared with the rate at which help began, or with a configured
//! capacity, but not with the capacity of a helped server, because batches hide the cost of packets. While sessions
//! return, each look at the measurements may stop the release. When load comes back soon after a release, the next
//! release waits longer.

mod schedule;

use core::fmt;
use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

pub use schedule::ReleaseSchedule;

pub use crate::activation::OutOfBounds;
use crate::limiter::Limiter;
use crate::relief_override::Override;

/// When to release sessions, and how carefully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseSettings {
    /// Throughput is low up to this percentage of the rate at which help began (or of `capacity_per_s`). 1 to 95,
    /// default 60.
    pub low_percent: u32,
    /// The server's direct capacity in requests a second, if known: replaces the rate at which help began. Default
    /// `None`.
    pub capacity_per_s: Option<u64>,
    /// Latency from a request's arrival at the server's end of the link to its reply is low up to this. Default 500 µs.
    pub service_max: Duration,
    /// Where CPU use is known, sessions return only if the present use and the estimate for direct load are at most
    /// this percentage. 1 to 100, default 60.
    pub busy_percent_max: u32,
    /// How long throughput and latency must be low. 1 ms to 50 days, default 10 s. Doubles when a release stops or load
    /// comes back soon.
    pub low_for: Duration,
    /// Maximum of the doubled `low_for`. Default 10 min.
    pub low_for_max: Duration,
    /// Sessions are sent back over this time. Up to 10 min, default 5 s.
    pub spread: Duration,
    /// Load comes back *soon* if help is called again within this time after a release. Default 60 s.
    pub soon: Duration,
    /// A doubled `low_for` is halved after this time without another change. Default 10 min.
    pub forget: Duration,
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

impl ReleaseSettings {
    /// Checks all settings that have bounds.
    ///
    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let checks = [
            ("low_percent", (1..=95).contains(&self.low_percent), "1 to 95"),
            ("busy_percent_max", (1..=100).contains(&self.busy_percent_max), "1 to 100"),
            ("low_for", (MS..=DAY * 50).contains(&self.low_for), "1ms to 50 days"),
            ("spread", self.spread <= Duration::from_secs(600), "up to 10min"),
        ];
        match checks.into_iter().find(|(_, holds, _)| !holds) {
            Some((setting, _, bounds)) => Err(OutOfBounds { setting, bounds }),
            None => Ok(()),
        }
    }
}

impl Default for ReleaseSettings {
    fn default() -> ReleaseSettings {
        let s = Duration::from_secs;
        ReleaseSettings {
            low_percent: 60,
            capacity_per_s: None,
            service_max: Duration::from_micros(500),
            busy_percent_max: 60,
            low_for: s(10),
            low_for_max: s(600),
            spread: s(5),
            soon: s(60),
            forget: s(600),
        }
    }
}

/// Measurements of a server since the last look. Looks are about 250 ms apart, less than clients take to move, because
/// otherwise the rate at which help began would be missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Requests served, helped and direct.
    pub requests: u64,
    /// Helped requests served.
    pub helped: u64,
    /// Time from a request's arrival to its reply: p99, or the mean where only that is known. `None` without requests.
    pub service: Option<Duration>,
    /// CPU use in percent of what the server may use; `None` if unknown.
    pub busy_percent: Option<u32>,
    /// Number of helped sessions.
    pub helped_sessions: u32,
}

/// Why a release stops before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Throughput is not low any more.
    Throughput,
    /// Latency is not low any more.
    Latency,
    /// CPU use, or the estimate for direct load, is above `busy_percent_max`.
    Busy,
}

/// A decision, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseNotice {
    /// Throughput and latency were low for a while: sessions return.
    Begins {
        /// Helped sessions.
        sessions: u32,
        /// Requests a second.
        per_s: u64,
        /// The rate in requests a second up to which throughput is low.
        low_per_s: u64,
        /// Time from a request's arrival to its reply.
        service: Option<Duration>,
        /// How long both were low.
        lasted: Duration,
    },
    /// The release stops; the other sessions stay helped.
    Stops {
        /// The cause.
        why: Stop,
        /// Sessions that are still helped.
        sessions: u32,
        /// How long throughput and latency must be low before the next release.
        low_for: Duration,
    },
    /// All helped sessions have returned or ended.
    Ends,
    /// Help was called again soon after the release.
    TooSoon {
        /// Time since the release.
        after: Duration,
        /// How long throughput and latency must be low before the next release.
        low_for: Duration,
    },
}

impl fmt::Display for ReleaseNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ReleaseNotice::Begins { sessions, per_s, low_per_s, service, lasted } => {
                write!(
                    f,
                    "throughput and latency were low for {lasted:.0?} ({per_s} requests/s, low up to "
                )?;
                write!(f, "{low_per_s}; {:.1?} from arrival to reply): ", service.unwrap_or_default())?;
                write!(f, "{sessions} helped sessions are sent back")
            }
            ReleaseNotice::Stops { why, sessions, low_for } => {
                let why = match why {
                    Stop::Throughput => "throughput is not low any more",
                    Stop::Latency => "latency is not low any more",
                    Stop::Busy => "the CPU is busy",
                };
                write!(
                    f,
                    "{why}: {sessions} sessions stay helped; next release after {low_for:.0?} of low load"
                )
            }
            ReleaseNotice::Ends => f.write_str("no session is helped any more"),
            ReleaseNotice::TooSoon { after, low_for } => {
                write!(f, "help was called again {after:.1?} after the release: ")?;
                write!(f, "next release after {low_for:.0?} of low load")
            }
        }
    }
}

/// Counters since the start; each only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleaseCounters {
    /// Releases begun.
    pub releases: u64,
    /// Releases that stopped before their end.
    pub stopped: u64,
    /// Releases after which help was called again soon.
    pub too_soon: u64,
    /// Sessions asked to return to the server.
    pub drains: u64,
}

/// Number of looks whose rates are remembered to find the rate at which help began.
const RATES: usize = 10;
/// Help has begun when more than one request in this many is helped.
const HELPED_ONE_IN: u64 = 10;
/// Number of consecutive looks with load that is not low after which a release stops: a single one may be chance.
const STOP_LOOKS: u32 = 2;
/// Without a known rate or capacity, throughput is low up to one in this many of the highest helped rate.
const QUIET_ONE_IN: u64 = 10;
/// Time for which a late caller may make up drains: sessions return every 50 ms, and a call may be 50 ms late.
const CATCH_UP: Duration = Duration::from_millis(100);
/// Minimum number of requests in a look to measure the CPU cost of a direct one.
const COST_REQUESTS_MIN: u64 = 100;

/// Decides for one server. Pass a [`Sample`] to [`sample`](Self::sample) about every 250 ms; then call
/// [`poll_drain`](Self::poll_drain) until it returns false.
#[derive(Clone, Debug)]
pub struct Release {
    settings: ReleaseSettings,
    random: Random,
    relief_override: Override,
    last_look: Time,
    /// Rates of the last looks with hardly any helped requests: a ring buffer.
    rates: [u64; RATES],
    next_rate: usize,
    /// The rate at which help began, in requests a second; and the highest rate since then.
    help_began_per_s: Option<u64>,
    helped_per_s_max: u64,
    has_help: bool,
    /// CPU cost of a direct request, in ns of the CPU time that the server may use.
    direct_ns: Option<u64>,
    low_since: Option<Time>,
    low_for: Duration,
    /// When `low_for` was last doubled or halved.
    changed_at: Time,
    released_at: Option<Time>,
    /// Consecutive looks during a release that found load not low.
    not_low_looks: u32,
    /// Number of sessions still to be sent back, and the limiter of their rate.
    draining: Option<(u32, Limiter)>,
    notice: Option<ReleaseNotice>,
    counters: ReleaseCounters,
}

impl Release {
    /// A server without help. `seed` is for the jitter of the intervals at which sessions return.
    ///
    /// # Errors
    /// A setting is out of its bounds.
    pub fn new(now: Time, settings: ReleaseSettings, seed: u64) -> Result<Release, OutOfBounds> {
        settings.check()?;
        Ok(Release {
            settings,
            random: Random::new(seed),
            relief_override: Override::Auto,
            last_look: now,
            rates: [0; RATES],
            next_rate: 0,
            help_began_per_s: None,
            helped_per_s_max: 0,
            has_help: false,
            direct_ns: None,
            low_since: None,
            low_for: settings.low_for,
            changed_at: now,
            released_at: None,
            not_low_looks: 0,
            draining: None,
            notice: None,
            counters: ReleaseCounters::default(),
        })
    }

    /// Sets the operator's override: *on* keeps all sessions helped, *off* sends all back from the next look on.
    pub fn set_override(&mut self, relief_override: Override) {
        self.relief_override = relief_override;
        self.low_since = None;
        self.draining = None;
    }

    /// Decides by the measurements since the last look.
    pub fn sample(&mut self, now: Time, sample: Sample) {
        let passed_ms = u64::try_from(now.since(self.last_look).as_millis()).unwrap_or(u64::MAX).max(1);
        self.last_look = now;
        let per_s = sample.requests.saturating_mul(1000) / passed_ms;
        self.update_rates(now, per_s, passed_ms, &sample);
        if self.low_for > self.settings.low_for && now.since(self.changed_at) >= self.settings.forget {
            (self.low_for, self.changed_at) = ((self.low_for / 2).max(self.settings.low_for), now);
        }
        match self.relief_override {
            Override::On => {}
            Override::Off => self.drain(&sample),
            Override::Auto if self.draining.is_some() => self.continue_release(now, per_s, &sample),
            Override::Auto => self.consider_release(now, per_s, &sample),
        }
    }

    /// Whether to send *drain* now to one helped session of the caller's choice. Call until false, after each look and
    /// at [`poll_timeout`](Self::poll_timeout).
    pub fn poll_drain(&mut self, now: Time) -> bool {
        let Some((left, limiter)) = &mut self.draining else { return false };
        if *left == 0 || !limiter.take_at_random(now, &mut self.random) {
            return false;
        }
        *left -= 1;
        self.counters.drains += 1;
        true
    }

    /// When to call [`poll_drain`](Self::poll_drain); `None`: after the next look.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.draining.as_ref().filter(|(left, _)| *left > 0).map(|(_, limiter)| limiter.next_at())
    }

    /// The last decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<ReleaseNotice> {
        self.notice.take()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ReleaseCounters {
        &self.counters
    }

    /// Requests a second up to which throughput is low; `None` if no capacity is configured and no request has been
    /// helped yet.
    pub fn low_per_s(&self) -> Option<u64> {
        let percent = u64::from(self.settings.low_percent);
        match self.settings.capacity_per_s.or(self.help_began_per_s) {
            Some(reference) => Some(reference.saturating_mul(percent) / 100),
            None => (self.helped_per_s_max > 0).then_some(self.helped_per_s_max / QUIET_ONE_IN),
        }
    }

    fn update_rates(&mut self, now: Time, per_s: u64, passed_ms: u64, sample: &Sample) {
        let are_many_helped = sample.helped > sample.requests / HELPED_ONE_IN;
        if are_many_helped && !self.has_help {
            // The present look may include a burst before clients moved, so the look's direct requests count, too.
            let direct = sample.requests.saturating_sub(sample.helped).saturating_mul(1000) / passed_ms;
            self.help_began_per_s = self
                .rates
                .into_iter()
                .max()
                .map(|highest| highest.max(direct))
                .filter(|highest| *highest > 0);
            self.helped_per_s_max = 0;
            if let Some(after) = self.released_at.take().map(|at| now.since(at))
                && after < self.settings.soon
            {
                self.counters.too_soon += 1;
                self.wait_longer(now);
                self.notice = Some(ReleaseNotice::TooSoon { after, low_for: self.low_for });
            }
        }
        self.has_help = are_many_helped || (self.has_help && sample.helped_sessions > 0);
        if self.has_help {
            self.helped_per_s_max = self.helped_per_s_max.max(per_s);
            return;
        }
        self.rates[self.next_rate] = per_s;
        self.next_rate = (self.next_rate + 1) % RATES;
        if let Some(busy) = sample.busy_percent.filter(|_| sample.requests >= COST_REQUESTS_MIN) {
            let busy_ns = u64::from(busy).saturating_mul(passed_ms).saturating_mul(10_000);
            let cost = busy_ns / sample.requests;
            self.direct_ns = Some(self.direct_ns.map_or(cost, |known| known / 8 * 7 + cost / 8));
        }
    }

    /// The first measurement that is not low, if any.
    fn find_not_low(&self, per_s: u64, sample: &Sample) -> Option<Stop> {
        let busy_max = u64::from(self.settings.busy_percent_max);
        let estimated = self.direct_ns.map_or(0, |ns| per_s.saturating_mul(ns) / 10_000_000);
        if self.low_per_s().is_none_or(|low| per_s > low) {
            Some(Stop::Throughput)
        } else if sample.service.is_some_and(|service| service > self.settings.service_max) {
            Some(Stop::Latency)
        } else if sample.busy_percent.is_some_and(|busy| u64::from(busy).max(estimated) > busy_max) {
            Some(Stop::Busy)
        } else {
            None
        }
    }

    fn consider_release(&mut self, now: Time, per_s: u64, sample: &Sample) {
        if sample.helped_sessions == 0 || self.find_not_low(per_s, sample).is_some() {
            self.low_since = None;
            return;
        }
        let lasted = now.since(*self.low_since.get_or_insert(now));
        if lasted < self.low_for {
            return;
        }
        self.low_since = None;
        self.not_low_looks = 0;
        self.counters.releases += 1;
        self.notice = Some(ReleaseNotice::Begins {
            sessions: sample.helped_sessions,
            per_s,
            low_per_s: self.low_per_s().unwrap_or(0),
            service: sample.service,
            lasted,
        });
        self.drain(sample);
    }

    /// Begins to send all helped sessions back, at a rate that takes the whole time `spread`; or reduces the
    /// number that is still to be sent back, if sessions have ended since.
    fn drain(&mut self, sample: &Sample) {
        let sessions = sample.helped_sessions;
        match &mut self.draining {
            Some((left, _)) => *left = (*left).min(sessions),
            None if sessions > 0 => {
                let spread_ms = self.settings.spread.as_millis().max(1);
                let per_s = (u128::from(sessions) * 1000).div_ceil(spread_ms);
                let limiter = Limiter::new(u32::try_from(per_s).unwrap_or(u32::MAX)).with_catch_up(CATCH_UP);
                self.draining = Some((sessions, limiter));
            }
            None => {}
        }
        if self.relief_override == Override::Off && self.draining.as_ref().is_some_and(|(left, _)| *left == 0)
        {
            self.draining = None; // the next look sends back those that are still helped
        }
    }

    fn continue_release(&mut self, now: Time, per_s: u64, sample: &Sample) {
        if sample.helped_sessions == 0 {
            self.draining = None;
            self.released_at = Some(now);
            self.has_help = false;
            self.notice = Some(ReleaseNotice::Ends);
            return;
        }
        let Some(why) = self.find_not_low(per_s, sample) else {
            self.not_low_looks = 0;
            if self.draining.as_ref().is_some_and(|(left, _)| *left == 0) {
                // Sends *drain* again to sessions that have not returned, and to those helped since.
                self.draining = None;
                self.drain(sample);
            }
            return;
        };
        self.not_low_looks += 1;
        if self.not_low_looks >= STOP_LOOKS {
            self.draining = None;
            self.counters.stopped += 1;
            self.wait_longer(now);
            let sessions = sample.helped_sessions;
            self.notice = Some(ReleaseNotice::Stops { why, sessions, low_for: self.low_for });
        }
    }

    fn wait_longer(&mut self, now: Time) {
        let longest = self.settings.low_for_max.max(self.settings.low_for);
        (self.low_for, self.changed_at) = (self.low_for.saturating_mul(2).min(longest), now);
    }
}
