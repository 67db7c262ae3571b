//! When a group of connections moves to helpers, and back: the client's side (PostMan §5.3).
//!
//! A group is all connections of one process to one service: hundreds for a sidecar, often one for a library
//! client. A group starts *direct*, and is judged at regular *looks*. When p99 exceeds the SLA in consecutive
//! looks, the canaries, a few percent of the group, move after a random time; a small group sends one canary
//! or none by chance. The canaries are compared with the others over the same time. Then the rest moves at a
//! limited rate, or the canaries return and the group backs off. Canaries share the server's queue with all
//! others, so the comparison only shows whether helpers do harm; a trial after all members have moved shows
//! whether help is a cure. Help ends by the server's *drain* or after a long calm with little load. The
//! operator's override replaces these rules.

mod comparison;
mod doubt;
mod member;
mod memory;
mod moves;
mod notice;
mod settings;
mod stage;
mod transitions;
mod trial;
mod view;

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

pub use member::{Carrier, MEMBERS_MAX, Member};
pub use notice::{BackOff, Counters, Figures, Notice, ReleasedBy};
pub use settings::{ActivationSettings, OutOfBounds};

use self::comparison::Comparison;
use self::member::Members;
use self::memory::Memory;
use self::stage::{Before, Stage};
use self::view::{Verdict, View, Windows, view};
use crate::limiter::Limiter;
use crate::relief_override::{CurrentOverride, Override};

/// An order to move one connection. Report its outcome by [`Activation::carried`] or [`Activation::not_moved`]. A
/// member has one order at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Move to a helper.
    ToHelper(Member),
    /// Return to the server.
    Direct(Member),
}

/// Maximum number of notices that wait to be polled; beyond it the oldest are dropped and counted.
const NOTICES_MAX: usize = 64;

/// A group's state, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The stage: `direct`, `late`, `comparing`, `moving`, `trial`, `helped`, `doubting`, `backed off`.
    pub stage: &'static str,
    /// The override in force.
    pub manual_override: Override,
    /// Number of connections.
    pub members: u32,
    /// Number of helped connections.
    pub helped: u32,
    /// The figures of the last look.
    pub figures: Figures,
    /// Remembered consecutive failures.
    pub failures: u32,
}

/// Decides for a group. Report events, then call [`poll`](Self::poll) until `None`, and again at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Activation {
    settings: ActivationSettings,
    random: Random,
    /// Random offset of this group's slices, so that not all groups look at the same moments.
    slice_offset: Duration,
    windows: Windows,
    members: Members,
    limiter: Limiter,
    /// A slower limit while the group returns without the server's *drain*.
    return_limiter: Option<Limiter>,
    /// Members to move, in random order.
    moves: VecDeque<Member>,
    /// Whether any helper is known.
    has_helpers: bool,
    current_override: CurrentOverride,
    /// The override that the stage follows.
    followed_override: Override,
    stage: Stage,
    memory: Memory,
    comparison: Option<Comparison>,
    before: Option<Before>,
    /// Consecutive looks that found: p99 over the SLA; calm; help worse than none.
    late_looks: u32,
    calm_looks: u32,
    worse_looks: u32,
    /// Consecutive looks that found helped members late; rounds of doubt, each of which doubles the share that returns.
    doubtful_looks: u32,
    doubts: u32,
    /// Since when any member is helped.
    helped_since: Option<Time>,
    /// Since when the group has been calm with little load.
    calm_since: Option<Time>,
    /// The server has requested help by *drain*, so only the server ends the help.
    server_requested_help: bool,
    /// Whether the notice was given that no helper is known.
    has_reported_no_helpers: bool,
    next_look: Time,
    /// The last look's view of the members that [`Stage::side`] selects, and of the others.
    side_view: View,
    other_view: View,
    /// Consecutive looks in stage *helped* that found no helped member.
    empty_looks: u32,
    notices: VecDeque<Notice>,
    counters: Counters,
}

impl Activation {
    /// A group without connections. Helpers count as available until
    /// [`set_helpers_available`](Self::set_helpers_available) reports otherwise. `seed` must differ between processes,
    /// or they move at the same moments.
    pub fn new(now: Time, settings: ActivationSettings, seed: u64) -> Result<Activation, OutOfBounds> {
        settings.check()?;
        let (windows, members) = (Windows::new(&settings), Members::new());
        let side_view = view(now, &windows, Carrier::Direct, &members, &settings);
        let mut random = Random::new(seed);
        Ok(Activation {
            settings,
            slice_offset: random.time(settings.slice),
            random,
            windows,
            members,
            limiter: Limiter::new(settings.moves_per_s_max),
            return_limiter: None,
            moves: VecDeque::new(),
            has_helpers: true,
            current_override: CurrentOverride::default(),
            followed_override: Override::Auto,
            stage: Stage::Direct,
            memory: Memory::default(),
            comparison: None,
            before: None,
            late_looks: 0,
            calm_looks: 0,
            worse_looks: 0,
            doubtful_looks: 0,
            doubts: 0,
            helped_since: None,
            calm_since: None,
            server_requested_help: false,
            has_reported_no_helpers: false,
            next_look: now,
            side_view,
            other_view: side_view,
            empty_looks: 0,
            notices: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// A connection joins. Open it on the returned carrier, or report another by [`carried`](Self::carried). `None` if
    /// the group has [`MEMBERS_MAX`]: open the connection direct, outside of the group.
    pub fn join(&mut self, now: Time) -> Option<(Member, Carrier)> {
        let is_for_helpers = match self.current_override.at(now) {
            Override::On => true,
            Override::Off => false,
            Override::Auto => self.stage.is_for_all(),
        };
        let wanted = if is_for_helpers { Carrier::Helped } else { Carrier::Direct };
        let carrier = if self.has_helpers { wanted } else { Carrier::Direct };
        if carrier == Carrier::Helped {
            self.helped_since.get_or_insert(now);
        }
        let member = self.members.join(now, carrier)?;
        if let Some(state) = self.members.at_mut(member) {
            state.wanted = wanted; // an order follows when a helper is known
        }
        Some((member, carrier))
    }

    /// A connection leaves. If its oldest request has waited for longer than the SLA, the request counts as late,
    /// because clients that give up are not a sign of calm.
    pub fn leave(&mut self, now: Time, member: Member) {
        if let Some(left) = self.members.leave(member)
            && let Some(waited) = left.waited(now).filter(|waited| *waited > self.settings.sla)
        {
            self.counters.gave_up += 1;
            self.calm_since = None;
            self.windows.record(now + self.slice_offset, waited, left.carrier);
        }
    }

    /// A reply arrived; `latency` counts from the time at which the request was due. Not for blocking commands, which
    /// wait on purpose.
    pub fn record_latency(&mut self, now: Time, member: Member, latency: Duration) {
        let Some(state) = self.members.at(member) else { return };
        let (carrier, since) = (state.carrier, state.since);
        // Time on an earlier carrier, and for the move, does not count for the present carrier.
        self.windows.record(now + self.slice_offset, latency.min(now.since(since)), carrier);
        if let Some(comparison) = &mut self.comparison {
            comparison.record_latency(now, latency, (carrier, since), self.settings.sla);
        }
    }

    /// Reports when the oldest request without a reply was sent on this connection; `None` without such a request. Call
    /// at each change. Not for blocking commands.
    pub fn set_oldest_request(&mut self, member: Member, since: Option<Time>) {
        self.members.set_waits_since(member, since);
    }

    /// The client gave a request up after `waited`, which counts as the request's latency. The connection stays.
    /// Call for each request given up, and then report the oldest of the others with
    /// [`set_oldest_request`](Self::set_oldest_request). Not for blocking commands.
    pub fn record_given_up(&mut self, now: Time, member: Member, waited: Duration) {
        let Some(carrier) = self.carrier(member) else { return };
        self.members.set_waits_since(member, None);
        self.counters.gave_up += 1;
        self.calm_since = None;
        self.windows.record(now + self.slice_offset, waited, carrier);
    }

    /// The connection is on this carrier now, by an order or for any other reason.
    pub fn carried(&mut self, now: Time, member: Member, carrier: Carrier) {
        let pause = self.random.about(self.settings.retry);
        let Some(state) = self.members.at_mut(member) else { return };
        match state.order {
            Some((wanted, _)) if wanted == carrier => {
                self.members.set_order(member, None);
                self.counters.orders_done += 1;
            }
            // The move took longer than the order's timeout because the server is very late: sending the connection
            // back would only add load to that server.
            None if state.overdue && carrier == Carrier::Helped => state.wanted = carrier,
            // A move without an order, such as after the loss of a helper: wait before ordering the connection back.
            None if carrier != state.carrier => state.not_before = now + pause,
            _ => {}
        }
        if carrier == Carrier::Helped {
            self.memory.record_acceptance();
            self.has_reported_no_helpers = false;
            self.helped_since.get_or_insert(now);
        }
        self.members.set_carrier(now, member, carrier);
        if self.members.helped() == 0 {
            self.helped_since = None;
        }
    }

    /// An order failed: neither a helper nor the server accepted the connection. The connection stays on its carrier,
    /// and the order is repeated later if still needed.
    pub fn not_moved(&mut self, now: Time, member: Member) {
        let pause = self.random.about(self.memory.retry(&self.settings));
        let was_ordered = self.members.set_order(member, None).is_some();
        let Some(state) = self.members.at_mut(member) else { return };
        state.overdue = false;
        if was_ordered {
            state.not_before = now + pause;
            self.counters.orders_failed += 1;
        }
    }

    /// The server sent *drain* for this connection: an order to return follows for a helped one, an order to move to a
    /// helper for a direct one.
    pub fn release_requested(&mut self, now: Time, member: Member) {
        if self.current_override.at(now) == Override::Auto {
            self.follow_server_drain(now, member);
        }
    }

    /// Reports whether any helper is known. Without one, no member is ordered to move to helpers. Sessions that lose
    /// their helper return without an order.
    pub fn set_helpers_available(&mut self, has_helpers: bool) {
        if self.has_helpers != has_helpers {
            self.has_helpers = has_helpers;
            self.has_reported_no_helpers = false;
        }
    }

    /// Sets the operator's override, for the time `lasts` or without limit.
    pub fn set_override(&mut self, now: Time, relief_override: Override, lasts: Option<Duration>) {
        self.current_override.set(now, relief_override, lasts);
        self.counters.overrides += 1;
        self.memory.reset();
        self.follow_override(now, lasts);
    }

    /// The next order. Call until `None`, after each report and at [`poll_timeout`](Self::poll_timeout).
    pub fn poll(&mut self, now: Time) -> Option<Order> {
        self.run(now);
        self.next_move(now)
    }

    /// When to call [`poll`](Self::poll) at the latest; `None`: after the next report.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let look = self.needs_looks().then_some(self.next_look);
        [look, self.next_move_at(), self.stage.until(), self.current_override.until()]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The group's state, for operators.
    pub fn status(&self, now: Time) -> Status {
        let stage = match self.stage {
            Stage::Direct if self.memory.is_barred(now) => "backed off",
            stage => stage.name(),
        };
        Status {
            stage,
            manual_override: self.current_override.at(now),
            members: self.members.count(),
            helped: self.members.helped(),
            figures: self.side_view.figures,
            failures: self.memory.failures(),
        }
    }

    /// The last reported carrier of a connection; `None` if the connection has left.
    pub fn carrier(&self, member: Member) -> Option<Carrier> {
        self.members.at(member).map(|state| state.carrier)
    }

    /// The settings.
    pub fn settings(&self) -> &ActivationSettings {
        &self.settings
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() == NOTICES_MAX {
            self.notices.pop_front();
            self.counters.notices_dropped += 1;
        }
        self.notices.push_back(notice);
    }
}
