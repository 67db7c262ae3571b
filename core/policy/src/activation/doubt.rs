//! Doubt: a helped group that is late checks whether its connections would be faster direct, because helpers may be
//! slow or the burst may be over.
//!
//! A few members return to the server, and are compared with the helped ones. In a group too small for that, one member
//! or none returns by chance, with a probability that grows with each round. Thus small groups with the same problem
//! return gradually.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::Comparison;
use super::member::Carrier;
use super::notice::{Notice, ReleasedBy};
use super::stage::Stage;
use super::{Activation, Verdict};

/// Consecutive late looks before a doubt: three seconds by default.
const DOUBT_LOOKS: u32 = 30;
/// Length of a doubt's comparison in units of `compare`, longer than for canaries because a doubt is less urgent.
const DOUBT_COMPARES: u32 = 4;
/// Maximum length of a doubt's comparison in units of `compare`, where requests are rare.
const DOUBT_COMPARES_MAX: u32 = 16;

impl Activation {
    pub(super) fn consider_doubt(&mut self, now: Time) -> Option<Stage> {
        self.doubtful_looks = if self.side_view.is_late() { self.doubtful_looks + 1 } else { 0 };
        if self.doubtful_looks < DOUBT_LOOKS || !self.memory.may_doubt(now) || self.is_beyond_direct() {
            return None;
        }
        self.doubtful_looks = 0;
        let helped = self.members.helped();
        let percent = self.settings.canary_percent.saturating_mul(1 << self.doubts.min(7));
        let sent = self.share(helped, percent);
        self.doubts += 1;
        if sent == 0 {
            return None;
        }
        self.notice(Notice::ComparesWithDirect { sent, helped, figures: self.side_view.figures });
        self.counters.doubts += 1;
        self.comparison = Some(Comparison::new(now));
        self.send_canaries(now, sent, Carrier::Direct);
        Some(Stage::Doubting { until: now + self.settings.compare * DOUBT_COMPARES })
    }

    /// Makes the next late look begin a doubt. Call this after a trial that found the group faster but still
    /// late: the burst may be over.
    pub(super) fn doubt_soon(&mut self) {
        self.doubtful_looks = DOUBT_LOOKS;
    }

    /// Releases the few helped members of a direct group when they are late and the direct members are not.
    pub(super) fn watch_helped_minority(&mut self, now: Time) {
        let is_worse = self.other_view.is_late() && self.side_view.verdict == Verdict::Calm;
        self.doubtful_looks = if is_worse { self.doubtful_looks + 1 } else { 0 };
        if self.doubtful_looks >= DOUBT_LOOKS {
            let (helped, direct) = (self.other_view.high, self.side_view.high);
            self.stage = self.leave_helpers(now, helped, direct);
        }
    }

    /// Whether over 15 % more requests are served than when all members were direct and late.
    fn is_beyond_direct(&self) -> bool {
        let Some(before) = self.before else { return false };
        let window_ms = u64::try_from(self.windows.length().as_millis()).unwrap_or(u64::MAX);
        let replies_while_late = before.replies.map_or(0, |(count, time)| {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
            count.saturating_mul(window_ms) / ms
        });
        self.windows.count() * 100 > before.per_window.max(replies_while_late).saturating_mul(115)
    }

    /// All members return if direct members are within the SLA and helped ones are not; otherwise all move to helpers.
    pub(super) fn judge_doubt(&mut self, now: Time) -> Stage {
        let Some(comparison) = self.comparison.take() else { return self.end_doubt(now) };
        let compared = comparison.judge(now, &self.members, self.settings.sla);
        let compare = self.settings.compare;
        if !compared.is_known && now.since(comparison.began) < compare * DOUBT_COMPARES_MAX {
            self.comparison = Some(comparison);
            return Stage::Doubting { until: now + compare };
        }
        self.memory.record_doubt(now, &self.settings, &mut self.random);
        if compared.is_calm && (compared.is_helped_late || self.members.helped() == 0) {
            let (helped, direct) = (compared.helped, compared.direct);
            self.leave_helpers(now, helped, direct)
        } else {
            self.end_doubt(now)
        }
    }

    /// Helped members are slower than direct ones: records a failure, and all members return.
    fn leave_helpers(&mut self, now: Time, helped: Option<Duration>, direct: Option<Duration>) -> Stage {
        self.memory.record_failure(now, false, &self.settings, &mut self.random);
        let next = self.release(now, ReleasedBy::Doubt { helped, direct });
        self.return_all(now);
        next
    }

    fn end_doubt(&mut self, now: Time) -> Stage {
        self.doubts = 0;
        self.move_all(now, Carrier::Helped);
        Stage::Helped
    }
}
