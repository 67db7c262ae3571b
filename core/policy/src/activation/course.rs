//! The transitions between a group's stages, and what happens in each.

use core::time::Duration;

use spillway_transport::Time;

use super::comparison::{Compared, Comparison, is_more};
use super::member::{Carrier, Member};
use super::notice::{BackOff, Notice, ReleasedBy};
use super::stage::{Before, Stage};
use super::{Activation, Verdict, view};
use crate::relief_override::Override;

/// Consecutive looks that find help to be worse than none before it is given up: two seconds by default.
const WORSE_LOOKS: u32 = 20;
/// Consecutive looks that find no helped member before help is given up: one second by default.
const EMPTY_LOOKS: u32 = 10;
/// Consecutive calm looks after which the next late period counts as new: five seconds by default.
const CALM_LOOKS: u32 = 50;

/// The event that may change the stage.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// A look at the group.
    Look,
    /// The stage's moves have completed, or its time is over.
    End,
}

impl Activation {
    /// Whether regular looks are needed; not for a direct group without requests and moves.
    pub(super) fn needs_looks(&self) -> bool {
        let is_at_rest = matches!(self.stage, Stage::Direct) && self.members.helped() == 0;
        !is_at_rest
            || self.windows.count() > 0
            || !self.seen.is_idle()
            || !self.others.is_idle()
            || self.is_moving()
            || self.members.waiting() > 0
    }

    /// Does all that is due: the end of an override, a look, changes of the stage.
    pub(super) fn run(&mut self, now: Time) {
        if self.standing.until().is_some_and(|until| until <= now) {
            self.standing.say(now, Override::Auto, None);
        }
        if self.standing.at(now) != self.word {
            self.follow_word(now, None);
        }
        if now >= self.next_look {
            self.look(now);
        }
        // At most three transitions happen at one time.
        for _ in 0..4 {
            let due = self.stage.until().is_some_and(|until| until <= now);
            let arrived = matches!(self.stage, Stage::Canaries { .. } | Stage::Moving) && !self.is_moving();
            if !due && !arrived {
                break;
            }
            self.change(now, Moment::End);
        }
    }

    fn look(&mut self, now: Time) {
        let slice = u64::try_from(self.settings.slice.as_nanos()).unwrap_or(u64::MAX);
        let shifted = now + self.phase;
        let passed = shifted.as_nanos() % slice;
        self.next_look = now + Duration::from_nanos(slice - passed);
        self.windows.advance(shifted);
        self.expire_orders(now);
        self.see(now);
        (self.late_looks, self.calm_looks) = match self.seen.verdict {
            Verdict::Late => (self.late_looks.saturating_add(1), 0),
            Verdict::Silent => (self.late_looks, 0),
            Verdict::Calm => (0, self.calm_looks.saturating_add(1)),
            Verdict::Unknown if self.seen.has_late() => (self.late_looks, self.calm_looks),
            Verdict::Easing | Verdict::Unknown => (0, self.calm_looks),
        };
        if self.calm_looks >= CALM_LOOKS {
            self.memory.calm();
        }
        if self.moves.is_empty() {
            self.line_up(now);
        }
        if self.word != Override::Auto {
            return;
        }
        self.change(now, Moment::Look);
        if matches!(self.stage, Stage::Direct | Stage::Helped)
            && let Some(next) = self.watch_calm(now)
        {
            self.stage = next;
        }
    }

    fn change(&mut self, now: Time, moment: Moment) {
        if let Some(next) = self.next(now, moment) {
            self.stage = next;
        }
    }

    /// The next stage, if it changes: see the diagram of [`Stage`].
    fn next(&mut self, now: Time, moment: Moment) -> Option<Stage> {
        match (self.stage, moment) {
            (Stage::Direct, Moment::Look) => {
                self.watch_few(now);
                self.watch(now)
            }
            (Stage::Helped, Moment::Look) => self.watch_helped(now),
            (_, Moment::Look) | (Stage::Direct | Stage::Helped, Moment::End) => None,
            (Stage::Jitter { .. }, Moment::End) => Some(self.begin_canaries(now)),
            (Stage::OthersFirst { .. }, Moment::End) => Some(self.follow_others(now)),
            (Stage::Canaries { .. }, Moment::End) => Some(self.begin_comparison(now)),
            (Stage::Comparing { latest, .. }, Moment::End) => Some(self.compare(now, latest)),
            (Stage::Spread { .. }, Moment::End) => Some(self.begin_rest(now)),
            (Stage::Moving, Moment::End) => Some(self.begin_trial(now)),
            (Stage::Trial { prolonged, level, .. }, Moment::End) => {
                Some(self.judge_trial(now, prolonged, level))
            }
            (Stage::Doubting { .. }, Moment::End) => Some(self.judge_doubt(now)),
        }
    }

    /// Updates the views of the members that [`Stage::side`] selects, and of the others.
    pub(super) fn see(&mut self, now: Time) {
        let side = self.stage.side();
        let other = if side == Carrier::Direct { Carrier::Helped } else { Carrier::Direct };
        let of = |side| view(now, &self.windows, side, &self.members, &self.settings);
        (self.seen, self.others) = (of(side), of(other));
    }

    fn watch(&mut self, now: Time) -> Option<Stage> {
        if self.is_moving() {
            self.late_looks = 0; // late replies while members return do not count
        }
        let (members, helped) = (self.members.count(), self.members.helped());
        if members == helped && members > 0 && !self.is_moving() {
            return Some(Stage::Helped); // the direct members have left, or the server asked for help
        } else if self.late_looks < self.settings.late_looks || self.memory.is_barred(now) {
            // Not late, or within a back-off.
        } else if !self.available {
            if !core::mem::replace(&mut self.has_said_none, true) {
                self.notice(Notice::NoHelpers { retry_in: None });
            }
        } else {
            self.memory.called(now, &self.settings);
            return Some(Stage::Jitter { until: now + self.random.time(self.settings.jitter) });
        }
        None
    }

    /// Gives help up when latency and throughput are worse than before it, even if it was of use for a long time.
    fn watch_helped(&mut self, now: Time) -> Option<Stage> {
        let is_empty = self.members.helped() == 0 && self.members.count() > 0;
        self.empty_looks = if is_empty { self.empty_looks + 1 } else { 0 };
        if self.empty_looks >= EMPTY_LOOKS {
            return Some(self.nobody_takes(now)); // all lost their helpers, and no helper accepts them
        }
        let is_worse = self.before.is_some_and(|before| {
            let slower = self.seen.high > before.high.map(|high| high + high / 4);
            let (now_count, over) = (self.seen.figures.replies, self.windows.length());
            let fewer =
                before.replies.is_some_and(|(count, time)| is_more((count, time), (now_count, over), 85));
            slower && fewer && before.high.is_some()
        });
        self.worse_looks = if self.seen.is_late() && is_worse { self.worse_looks + 1 } else { 0 };
        if self.worse_looks >= WORSE_LOOKS {
            let before = self.before.and_then(|before| before.p99);
            return Some(self.back_off(now, BackOff::NoCure { before, after: self.seen.figures.p99 }));
        }
        self.consider_doubt(now)
    }

    /// Returns the group to the server after a long calm with little load.
    fn watch_calm(&mut self, now: Time) -> Option<Stage> {
        if self.members.helped() == 0 && matches!(self.stage, Stage::Direct) {
            self.helped_since = None; // the helped members have left
        }
        let Some(helped_since) = self.helped_since.filter(|_| !self.server_asked) else {
            self.calm_since = None;
            return None;
        };
        let is_little = self.before.is_some_and(|before| {
            let percent = u64::from(self.settings.calm_percent);
            self.windows.count() * 100 <= before.per_window * percent
        });
        let is_idle = self.seen.is_idle() && self.others.is_idle();
        if !(self.seen.is_calm() && self.others.is_calm() && (is_little || is_idle)) {
            self.calm_since = None;
            return None;
        }
        let lasted = now.since(*self.calm_since.get_or_insert(now));
        let needed = self.memory.calm_needed(&self.settings);
        if lasted < needed || now.since(helped_since) < self.settings.stay_min {
            return None;
        }
        let next = self.release(now, ReleasedBy::Calm(lasted));
        self.want_return(now);
        Some(next)
    }

    pub(super) fn release(&mut self, now: Time, by: ReleasedBy) -> Stage {
        self.notice(Notice::Released { by, helped: self.members.helped() });
        self.counters.releases += 1;
        self.memory.returned(now);
        self.calm_since = None;
        self.server_asked = false;
        self.begin_direct()
    }

    fn begin_direct(&mut self) -> Stage {
        self.comparison = None;
        (self.late_looks, self.worse_looks) = (0, 0);
        (self.doubtful_looks, self.doubts) = (0, 0);
        self.want_direct_to_stay();
        Stage::Direct
    }

    /// The wait without canaries is over: the rest follows unless other groups' canaries were enough.
    fn follow_others(&mut self, now: Time) -> Stage {
        if self.memory.is_wary(&self.settings) {
            self.memory.pass(now, &self.settings, &mut self.random);
            self.begin_direct()
        } else if self.has_eased(now) {
            self.memory.calmed(now);
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
        Stage::Spread { until: now + self.spread(self.settings.spread) }
    }

    /// Sends a share of the group to helpers; in a group too small for that, one member by chance.
    fn begin_canaries(&mut self, now: Time) -> Stage {
        let (members, helped, figures) = (self.members.count(), self.members.helped(), self.seen.figures);
        let percent = self.settings.canary_percent;
        let canaries = self.share(members - helped, percent);
        self.remember_before(None);
        if percent == 100 && !self.memory.is_wary(&self.settings) {
            Stage::Spread { until: now }
        } else if helped > 0 && u64::from(helped) * 100 >= u64::from(members) * u64::from(percent) {
            Stage::Canaries { until: now } // enough members are helped for a comparison
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
                self.nobody_takes(now)
            } else if comparison.answered_direct() > 0 {
                self.back_off(now, BackOff::Worse { permille, helped, direct })
            } else if self.memory.is_wary(&self.settings) {
                self.back_off(now, BackOff::NotBetter { permille, helped, direct })
            } else {
                // The server answers no request.
                self.remember_before(Some((comparison.replies, now.since(comparison.began))));
                self.begin_spread(now)
            }
        } else if compared.is_worse {
            self.back_off(now, BackOff::Worse { permille, helped, direct })
        } else if !all_are_helped && compared.is_calm && !self.memory.is_at_the_edge(now) {
            self.calm_again(now)
        } else if !all_are_helped && self.memory.is_wary(&self.settings) && !compared.is_better {
            self.back_off(now, BackOff::NotBetter { permille, helped, direct })
        } else {
            self.remember_before(Some((comparison.replies, now.since(comparison.began))));
            self.begin_spread(now)
        }
    }

    /// No helper accepted any member.
    pub(super) fn nobody_takes(&mut self, now: Time) -> Stage {
        let retry_in = self.memory.refused(now, &self.settings, &mut self.random);
        self.notice(Notice::NoHelpers { retry_in: Some(retry_in) });
        self.begin_direct()
    }

    fn begin_rest(&mut self, now: Time) -> Stage {
        let (members, helped) = (self.members.count(), self.members.helped());
        if !self.available || (helped < members && self.has_eased(now)) {
            return self.calm_again(now);
        }
        let figures = self.seen.figures;
        let moving = self.want_all(now, Carrier::Helped);
        self.counters.activations += 1;
        self.comparison = None;
        self.notice(Notice::RestMoves { moving, members, figures });
        Stage::Moving
    }

    /// Whether the group is no longer late, and not late repeatedly.
    fn has_eased(&self, now: Time) -> bool {
        self.late_looks == 0 && !self.memory.is_at_the_edge(now)
    }

    /// Calm before the rest moved: direct members stay direct.
    fn calm_again(&mut self, now: Time) -> Stage {
        self.notice(Notice::CalmAgain { helped: self.members.helped(), members: self.members.count() });
        self.memory.calmed(now);
        self.begin_direct()
    }

    /// All members return, and there is no attempt for some time.
    pub(super) fn back_off(&mut self, now: Time, why: BackOff) -> Stage {
        let all_had_moved = matches!(why, BackOff::NoCure { .. } | BackOff::NotBetter { .. });
        let lasts = self.memory.fail(now, all_had_moved, &self.settings, &mut self.random);
        self.counters.back_offs += 1;
        let next = self.begin_direct();
        let returning = self.want_return(now);
        let failures = self.memory.failures();
        self.notice(Notice::BacksOff { why, returning, lasts, failures });
        next
    }

    fn remember_before(&mut self, replies: Option<(u64, Duration)>) {
        let figures = self.seen.figures;
        let per_window =
            self.before.filter(|_| replies.is_some()).map_or(self.windows.count(), |b| b.per_window);
        self.before = Some(Before { p99: figures.p99, high: self.seen.high, replies, per_window });
    }

    /// `percent` % of `of`, rounded up or down at random so that the mean is exact.
    pub(super) fn share(&mut self, of: u32, percent: u32) -> u32 {
        let share = u64::from(of) * u64::from(percent.min(100));
        u32::try_from((share + self.random.below(100)) / 100).unwrap_or(u32::MAX).min(of)
    }

    pub(super) fn follow_server(&mut self, now: Time, member: Member) {
        let Some(standing) = self.members.at_mut(member) else { return };
        match standing.carrier {
            Carrier::Helped => {
                (standing.wanted, standing.not_before) = (Carrier::Direct, Time::ZERO);
                if self.seen.is_late() && self.stage.is_on_trial() {
                    self.stage = self.back_off(now, BackOff::ServerRefuses);
                } else if self.server_asked || !matches!(self.stage, Stage::Direct) {
                    self.stage = self.release(now, ReleasedBy::Server);
                }
            }
            Carrier::Direct if self.available => {
                (standing.wanted, standing.not_before) = (Carrier::Helped, Time::ZERO);
                if !core::mem::replace(&mut self.server_asked, true) {
                    self.notice(Notice::ServerAsks);
                }
            }
            Carrier::Direct => {}
        }
        // Repeated entries of a member are harmless; the bound limits them.
        if self.moves.len() < self.members.count() as usize * 2 {
            self.moves.push_back(member);
        }
    }

    pub(super) fn follow_word(&mut self, now: Time, lasts: Option<Duration>) {
        let word = self.standing.at(now);
        (self.word, self.server_asked) = (word, false);
        let moving = match word {
            Override::On => {
                self.begin_direct();
                (self.stage, self.before) = (Stage::Helped, None);
                self.want_all(now, Carrier::Helped)
            }
            Override::Off => {
                self.stage = self.begin_direct();
                self.want_all(now, Carrier::Direct)
            }
            Override::Auto => 0,
        };
        (self.late_looks, self.worse_looks) = (0, 0);
        self.notice(Notice::Override { word, lasts, moving });
    }
}
