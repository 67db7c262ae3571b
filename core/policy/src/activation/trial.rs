//! The trial after all members have moved: whether help is a cure. The canaries could not show that, because they
//! shared the server's queue with all others.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::is_clearly_more;
use super::notice::{BackOff, Notice};
use super::stage::{Before, Stage};
use super::{Activation, Verdict};
use crate::relief_override::Override;

/// Maximum number of times that a trial is prolonged while latency falls or requests are rare.
const PROLONGED_MAX: u32 = 5;

impl Activation {
    pub(super) fn begin_trial(&mut self, now: Time) -> Stage {
        if self.members.helped() == 0 {
            return self.wait_for_helpers(now);
        }
        self.windows.clear();
        Stage::Trial { until: now + self.settings.trial, prolonged: 0, level: None }
    }

    /// Judges the trial: help is a cure if latency is within the SLA or clearly lower than before, or if the rate of
    /// replies is clearly higher.
    pub(super) fn judge_trial(&mut self, now: Time, prolonged: u32, level: Option<Duration>) -> Stage {
        self.update_views(now);
        let figures = self.side_view.figures;
        let (helped, members) = (self.members.helped(), self.members.count());
        if self.followed_override != Override::Auto || u64::from(helped) * 10 < u64::from(members) * 9 {
            return Stage::Helped; // too few have moved to judge help
        }
        let before = self.before.unwrap_or(Before { p99: None, high: None, replies: None, per_window: 0 });
        let length = self.windows.length();
        // A latency above the window's length is not comparable: the trial is too short for such waits to show.
        let comparable = before.high.filter(|high| *high <= length);
        let is_faster = comparable.is_some_and(|high| self.side_view.high < Some(high / 5 * 4));
        let has_more_replies =
            before.replies.is_some_and(|earlier| is_clearly_more((figures.replies, length), earlier, 87));
        let is_falling = level.zip(figures.p50).is_some_and(|(level, p50)| p50 < level / 10 * 9);
        let is_within_sla = matches!(self.side_view.verdict, Verdict::Calm | Verdict::Easing);
        if self.side_view.verdict == Verdict::Unknown && prolonged < PROLONGED_MAX {
            let (until, prolonged) = (now + self.settings.window, prolonged + 1);
            Stage::Trial { until, prolonged, level: figures.p50 }
        } else if self.side_view.verdict == Verdict::Unknown && figures.waiting == 0 {
            Stage::Helped // too few requests to judge help
        } else if is_within_sla || is_faster || has_more_replies {
            self.memory.record_cure();
            self.counters.cures += 1;
            let per_s = |count: u64, time: Duration| {
                count.saturating_mul(1_000_000) / u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
            };
            let (count, time) = before.replies.unwrap_or((before.per_window, length));
            self.notice(Notice::Cured {
                before: before.p99,
                after: figures.p99,
                replies_per_s_before: per_s(count, time),
                replies_per_s_after: per_s(figures.replies, length),
            });
            if !is_within_sla {
                self.doubt_soon();
            }
            Stage::Helped
        } else if level.is_none() || (is_falling && prolonged < PROLONGED_MAX) {
            let prolonged = prolonged + 1;
            Stage::Trial { until: now + self.settings.window, prolonged, level: figures.p50 }
        } else {
            self.back_off(now, BackOff::NoCure { before: before.p99, after: figures.p99 })
        }
    }
}
