//! The transitions between a group's stages, and what happens in each.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::{Compared, Comparison, is_clearly_more};
use super::member::{Carrier, Member};
use super::notice::{BackOff, Notice, ReleasedBy};
use super::stage::{Before, Stage};
use super::{Activation, Verdict, view};
use crate::relief_override::Override;

/// Consecutive looks that find help to be worse than none before help is given up: two seconds by default.
const WORSE_LOOKS: u32 = 20;
/// Consecutive looks that find no helped member before help is given up: one second by default.
const EMPTY_LOOKS: u32 = 10;
/// Consecutive calm looks after which the next late period counts as new: five seconds by default.
const CALM_LOOKS: u32 = 50;

/// What may change the stage.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    Look,
    /// The stage's moves have completed, or the stage's time is over.
    End,
}

impl Activation {
    /// Whether regular looks are needed: not in a direct group without requests and moves.
    pub(super) fn needs_looks(&self) -> bool {
        let is_at_rest = matches!(self.stage, Stage::Direct) && self.members.helped() == 0;
        !is_at_rest
            || self.windows.count() > 0
            || !self.side_view.is_idle()
            || !self.other_view.is_idle()
            || self.is_moving()
            || self.members.waiting() > 0
    }

    /// Handles what is due: the end of an override, a look, changes of the stage.
    pub(super) fn run(&mut self, now: Time) {
        if self.current_override.until().is_some_and(|until| until <= now) {
            self.current_override.set(now, Override::Auto, None);
        }
        if self.current_override.at(now) != self.followed_override {
            self.follow_override(now, None);
        }
        if now >= self.next_look {
            self.look(now);
        }
        // At most three transitions are due at the same time.
        for _ in 0..4 {
            let is_due = self.stage.until().is_some_and(|until| until <= now);
            let have_arrived =
                matches!(self.stage, Stage::Canaries { .. } | Stage::Moving) && !self.is_moving();
            if !is_due && !have_arrived {
                break;
            }
            self.change(now, Trigger::End);
        }
    }

    fn look(&mut self, now: Time) {
        let slice = u64::try_from(self.settings.slice.as_nanos()).unwrap_or(u64::MAX);
        let shifted = now + self.slice_offset;
        let passed = shifted.as_nanos() % slice;
        self.next_look = now + Duration::from_nanos(slice - passed);
        self.windows.advance(shifted);
        self.expire_orders(now);
        self.update_views(now);
        (self.late_looks, self.calm_looks) = match self.side_view.verdict {
            Verdict::Late => (self.late_looks.saturating_add(1), 0),
            Verdict::Silent => (self.late_looks, 0),
            Verdict::Calm => (0, self.calm_looks.saturating_add(1)),
            Verdict::Unknown if self.side_view.has_late() => (self.late_looks, self.calm_looks),
            Verdict::Easing | Verdict::Unknown => (0, self.calm_looks),
        };
        if self.calm_looks >= CALM_LOOKS {
            self.memory.record_long_calm();
        }
        if self.moves.is_empty() {
            self.queue_moves(now);
        }
        if self.followed_override != Override::Auto {
            return;
        }
        self.change(now, Trigger::Look);
        if matches!(self.stage, Stage::Direct | Stage::Helped)
            && let Some(next) = self.watch_calm(now)
        {
            self.stage = next;
        }
    }

    fn change(&mut self, now: Time, trigger: Trigger) {
        if let Some(next) = self.next(now, trigger) {
            self.stage = next;
        }
    }

    /// The next stage, if it changes: see the diagram of [`Stage`].
    fn next(&mut self, now: Time, trigger: Trigger) -> Option<Stage> {
        match (self.stage, trigger) {
            (Stage::Direct, Trigger::Look) => {
                self.watch_helped_minority(now);
                self.watch_direct(now)
            }
            (Stage::Helped, Trigger::Look) => self.watch_helped(now),
            (_, Trigger::Look) | (Stage::Direct | Stage::Helped, Trigger::End) => None,
            (Stage::Jitter { .. }, Trigger::End) => Some(self.begin_canaries(now)),
            (Stage::OthersFirst { .. }, Trigger::End) => Some(self.follow_others(now)),
            (Stage::Canaries { .. }, Trigger::End) => Some(self.begin_comparison(now)),
            (Stage::Comparing { latest, .. }, Trigger::End) => Some(self.compare(now, latest)),
            (Stage::Spread { .. }, Trigger::End) => Some(self.begin_rest(now)),
            (Stage::Moving, Trigger::End) => Some(self.begin_trial(now)),
            (Stage::Trial { prolonged, level, .. }, Trigger::End) => {
                Some(self.judge_trial(now, prolonged, level))
            }
            (Stage::Doubting { .. }, Trigger::End) => Some(self.judge_doubt(now)),
        }
    }

    /// Updates the views of the members that [`Stage::side`] selects, and of the others.
    pub(super) fn update_views(&mut self, now: Time) {
        let side = self.stage.side();
        let other = if side == Carrier::Direct { Carrier::Helped } else { Carrier::Direct };
        let view_of = |side| view(now, &self.windows, side, &self.members, &self.settings);
        (self.side_view, self.other_view) = (view_of(side), view_of(other));
    }

    fn watch_direct(&mut self, now: Time) -> Option<Stage> {
        if self.is_moving() {
            self.late_looks = 0; // late replies do not count while members return
        }
        let (members, helped) = (self.members.count(), self.members.helped());
        if members == helped && members > 0 && !self.is_moving() {
            return Some(Stage::Helped); // the direct members have left, or the server has requested help
        } else if self.late_looks < self.settings.late_looks || self.memory.is_barred(now) {
            // No attempt: the group is not late, or a back-off lasts.
        } else if !self.has_helpers {
            if !core::mem::replace(&mut self.has_reported_no_helpers, true) {
                self.notice(Notice::NoHelpers { retry_in: None });
            }
        } else {
            self.memory.record_call(now, &self.settings);
            return Some(Stage::Jitter { until: now + self.random.time(self.settings.jitter) });
        }
        None
    }

    /// Gives help up when latency and throughput are worse than before help, even if the trial found help to be a cure.
    fn watch_helped(&mut self, now: Time) -> Option<Stage> {
        let is_empty = self.members.helped() == 0 && self.members.count() > 0;
        self.empty_looks = if is_empty { self.empty_looks + 1 } else { 0 };
        if self.empty_looks >= EMPTY_LOOKS {
            return Some(self.wait_for_helpers(now)); // all have lost their helpers, and no other helper accepts them
        }
        let is_worse = self.before.is_some_and(|before| {
            let slower = self.side_view.high > before.high.map(|high| high + high / 4);
            let replies = (self.side_view.figures.replies, self.windows.length());
            let fewer =
                before.replies.is_some_and(|(count, time)| is_clearly_more((count, time), replies, 85));
            slower && fewer && before.high.is_some()
        });
        self.worse_looks = if self.side_view.is_late() && is_worse { self.worse_looks + 1 } else { 0 };
        if self.worse_looks >= WORSE_LOOKS {
            let before = self.before.and_then(|before| before.p99);
            return Some(self.back_off(now, BackOff::NoCure { before, after: self.side_view.figures.p99 }));
        }
        self.consider_doubt(now)
    }

    /// Returns the group to the server after a long calm with little load.
    fn watch_calm(&mut self, now: Time) -> Option<Stage> {
        if self.members.helped() == 0 && matches!(self.stage, Stage::Direct) {
            self.helped_since = None; // the helped members have left
        }
        let Some(helped_since) = self.helped_since.filter(|_| !self.server_requested_help) else {
            self.calm_since = None;
            return None;
        };
        let is_load_little = self.before.is_some_and(|before| {
            let percent = u64::from(self.settings.calm_percent);
            self.windows.count() * 100 <= before.per_window * percent
        });
        let is_idle = self.side_view.is_idle() && self.other_view.is_idle();
        if !(self.side_view.is_calm() && self.other_view.is_calm() && (is_load_little || is_idle)) {
            self.calm_since = None;
            return None;
        }
        let lasted = now.since(*self.calm_since.get_or_insert(now));
        let needed = self.memory.calm_needed(&self.settings);
        if lasted < needed || now.since(helped_since) < self.settings.stay_min {
            return None;
        }
        let next = self.release(now, ReleasedBy::Calm(lasted));
        self.return_all(now);
        Some(next)
    }

    pub(super) fn release(&mut self, now: Time, by: ReleasedBy) -> Stage {
        self.notice(Notice::Released { by, helped: self.members.helped() });
        self.counters.releases += 1;
        self.memory.record_return(now);
        self.calm_since = None;
        self.server_requested_help = false;
        self.begin_direct()
    }

    fn begin_direct(&mut self) -> Stage {
        self.comparison = None;
        (self.late_looks, self.worse_looks) = (0, 0);
        (self.doubtful_looks, self.doubts) = (0, 0);
        self.cancel_moves_to_helpers();
        Stage::Direct
    }

    /// The wait for other groups' canaries is over: all members move unless those canaries were enough.
    fn follow_others(&mut self, now: Time) -> Stage {
        if self.memory.needs_faster_canaries(&self.settings) {
            self.memory.wait_again(now, &self.settings, &mut self.random);
            self.begin_direct()
        } else if self.has_eased(now) {
            self.memory.record_calm_before_all_moved(now);
            self.begin_direct()
        } else {
            self.remember_before(None);
            self.begin_spread(now)
        }
    }

    fn begin_comparison(&mut self, now: Time) -> Stage {
        self.comparison = Some(Comparison::new(now));
        let compare = self.settings.compare;
        Stage::Comparing { until: now + compare, latest: now + compare * 4 }
    }

    fn begin_spread(&mut self, now: Time) -> Stage {
        Stage::Spread { until: now + self.random_spread(self.settings.spread) }
    }

    /// Sends a share of the group to helpers; in a group too small for that, one member or none by chance.
    fn begin_canaries(&mut self, now: Time) -> Stage {
        let (members, helped, figures) =
            (self.members.count(), self.members.helped(), self.side_view.figures);
        let percent = self.settings.canary_percent;
        let canaries = self.share(members - helped, percent);
        self.remember_before(None);
        if percent == 100 && !self.memory.needs_faster_canaries(&self.settings) {
            Stage::Spread { until: now }
        } else if helped > 0 && u64::from(helped) * 100 >= u64::from(members) * u64::from(percent) {
            Stage::Canaries { until: now } // enough members for a comparison are helped already
        } else if canaries == 0 {
            self.notice(Notice::OthersFirst { members, figures });
            Stage::OthersFirst { until: now + self.settings.compare }
        } else {
            self.notice(Notice::CanariesMove { canaries, members, figures });
            self.counters.canaries += 1;
            self.send_canaries(now, canaries, Carrier::Helped);
            // A move may wait for a reply of the late server: do not wait for all canaries.
            Stage::Canaries { until: now + self.settings.compare / 2 }
        }
    }

    fn compare(&mut self, now: Time, latest: Time) -> Stage {
        let Some(comparison) = self.comparison.take() else { return self.begin_direct() };
        let compared = comparison.judge(now, &self.members, self.settings.sla);
        let Compared { permille, helped, direct, .. } = compared;
        let all_are_helped = self.members.helped() == self.members.count();
        if self.members.helped() == 0 {
            if now < latest && self.is_moving() {
                self.comparison = Some(comparison);
                Stage::Comparing { until: now + self.settings.compare / 4, latest }
            } else if !self.is_moving() {
                self.wait_for_helpers(now)
            } else if comparison.answered_direct() > 0 {
                self.back_off(now, BackOff::Worse { permille, helped, direct })
            } else if self.memory.needs_faster_canaries(&self.settings) {
                self.back_off(now, BackOff::NotBetter { permille, helped, direct })
            } else {
                // The server answers no request.
                self.remember_before(Some((comparison.replies, now.since(comparison.began))));
                self.begin_spread(now)
            }
        } else if compared.is_worse {
            self.back_off(now, BackOff::Worse { permille, helped, direct })
        } else if !all_are_helped && compared.is_calm && !self.memory.is_at_the_edge(now) {
            self.stay_direct(now)
        } else if !all_are_helped && self.memory.needs_faster_canaries(&self.settings) && !compared.is_better
        {
            self.back_off(now, BackOff::NotBetter { permille, helped, direct })
        } else {
            self.remember_before(Some((comparison.replies, now.since(comparison.began))));
            self.begin_spread(now)
        }
    }

    /// No helper accepted any member: the group stays direct until the next attempt.
    pub(super) fn wait_for_helpers(&mut self, now: Time) -> Stage {
        let retry_in = self.memory.record_refusal(now, &self.settings, &mut self.random);
        self.notice(Notice::NoHelpers { retry_in: Some(retry_in) });
        self.begin_direct()
    }

    fn begin_rest(&mut self, now: Time) -> Stage {
        let (members, helped) = (self.members.count(), self.members.helped());
        if !self.has_helpers || (helped < members && self.has_eased(now)) {
            return self.stay_direct(now);
        }
        let figures = self.side_view.figures;
        let moving = self.move_all(now, Carrier::Helped);
        self.counters.activations += 1;
        self.comparison = None;
        self.notice(Notice::RestMoves { moving, members, figures });
        Stage::Moving
    }

    /// Whether the group is no longer late, and not at the edge of the server's capacity.
    fn has_eased(&self, now: Time) -> bool {
        self.late_looks == 0 && !self.memory.is_at_the_edge(now)
    }

    /// The group became calm before the rest moved: direct members stay direct.
    fn stay_direct(&mut self, now: Time) -> Stage {
        self.notice(Notice::CalmAgain { helped: self.members.helped(), members: self.members.count() });
        self.memory.record_calm_before_all_moved(now);
        self.begin_direct()
    }

    /// All members return, and the next attempt waits for some time.
    pub(super) fn back_off(&mut self, now: Time, why: BackOff) -> Stage {
        let all_had_moved = matches!(why, BackOff::NoCure { .. } | BackOff::NotBetter { .. });
        let lasts = self.memory.record_failure(now, all_had_moved, &self.settings, &mut self.random);
        self.counters.back_offs += 1;
        let next = self.begin_direct();
        let returning = self.return_all(now);
        let failures = self.memory.failures();
        self.notice(Notice::BacksOff { why, returning, lasts, failures });
        next
    }

    fn remember_before(&mut self, replies: Option<(u64, Duration)>) {
        let figures = self.side_view.figures;
        let per_window = self
            .before
            .filter(|_| replies.is_some())
            .map_or(self.windows.count(), |before| before.per_window);
        self.before = Some(Before { p99: figures.p99, high: self.side_view.high, replies, per_window });
    }

    /// `percent` % of `total`, rounded up or down at random so that the mean is exact.
    pub(super) fn share(&mut self, total: u32, percent: u32) -> u32 {
        let hundredfold = u64::from(total) * u64::from(percent.min(100));
        u32::try_from((hundredfold + self.random.below(100)) / 100).unwrap_or(u32::MAX).min(total)
    }

    pub(super) fn follow_server_drain(&mut self, now: Time, member: Member) {
        let Some(state) = self.members.at_mut(member) else { return };
        match state.carrier {
            Carrier::Helped => {
                (state.wanted, state.not_before) = (Carrier::Direct, Time::ZERO);
                if self.side_view.is_late() && self.stage.is_on_trial() {
                    self.stage = self.back_off(now, BackOff::ServerRefuses);
                } else if self.server_requested_help || !matches!(self.stage, Stage::Direct) {
                    self.stage = self.release(now, ReleasedBy::Server);
                }
            }
            Carrier::Direct if self.has_helpers => {
                (state.wanted, state.not_before) = (Carrier::Helped, Time::ZERO);
                if !core::mem::replace(&mut self.server_requested_help, true) {
                    self.notice(Notice::ServerRequestsHelp);
                }
            }
            Carrier::Direct => {}
        }
        // A member may be queued several times: spurious entries are harmless, and the bound limits them.
        if self.moves.len() < self.members.count() as usize * 2 {
            self.moves.push_back(member);
        }
    }

    pub(super) fn follow_override(&mut self, now: Time, lasts: Option<Duration>) {
        let relief_override = self.current_override.at(now);
        (self.followed_override, self.server_requested_help) = (relief_override, false);
        let moving = match relief_override {
            Override::On => {
                self.begin_direct();
                (self.stage, self.before) = (Stage::Helped, None);
                self.move_all(now, Carrier::Helped)
            }
            Override::Off => {
                self.stage = self.begin_direct();
                self.move_all(now, Carrier::Direct)
            }
            Override::Auto => 0,
        };
        (self.late_looks, self.worse_looks) = (0, 0);
        self.notice(Notice::Override { manual_override: relief_override, lasts, moving });
    }
}
