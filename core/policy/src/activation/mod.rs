//! When a group of connections asks for help: the client's side (PostMan §5.3).
//!
//! A group is all connections of one process to one service: hundreds of a sidecar, often one of a library client. Its
//! course: *direct*; p99 over the SLA for some looks in a row; after a random time a few percent move first (of a group
//! too small for that, perhaps one, by chance); those are compared with the others over the same time; the rest moves,
//! paced, or all come back and the group remembers. Those few share the server's queue with everybody else, so what they
//! show is harm; whether help is the cure shows when all have moved. If it was not, all come back as well. The server's
//! drain ends help, or a long calm with little load; the operator's word overrides everything.

mod comparison;
mod course;
mod doubt;
mod member;
mod memory;
mod moves;
mod notice;
mod settings;
mod stage;
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
use crate::word::{Standing, Word};

/// What is to be done with one connection. Report what came of it: [`Activation::carried`], or
/// [`Activation::not_moved`]. A member has one order at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To a helper.
    Help(Member),
    /// Back to the server.
    Direct(Member),
}

/// Notices that wait to be fetched, at most; older ones are dropped and counted.
const NOTICES_MAX: usize = 64;

/// A group as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is about: `direct`, `late`, `comparing`, `moving`, `trial`, `helped`, `backed off`.
    pub stage: &'static str,
    /// The operator's word that holds.
    pub word: Word,
    /// Connections.
    pub members: u32,
    /// Of those, helped.
    pub helped: u32,
    /// What the last look saw.
    pub figures: Figures,
    /// Failures in a row that are remembered.
    pub failures: u32,
}

/// Decides for a group. Give it what happens, then [`poll`](Self::poll) until there is nothing more, then come back at
/// [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Activation {
    settings: ActivationSettings,
    random: Random,
    /// Slices of different groups do not begin at the same moments.
    phase: Duration,
    windows: Windows,
    members: Members,
    limiter: Limiter,
    /// Slower, for those that return by themselves.
    returns: Option<Limiter>,
    /// Members that are to move, in a random order.
    moves: VecDeque<Member>,
    /// Helpers are known.
    available: bool,
    standing: Standing,
    /// The word at the last look.
    word: Word,
    stage: Stage,
    memory: Memory,
    comparison: Option<Comparison>,
    before: Option<Before>,
    /// Looks in a row that found p99 over the SLA; that found it well; that found help to be worse than none.
    late_looks: u32,
    calm_looks: u32,
    worse_looks: u32,
    /// Looks in a row that found those that are helped late; rounds of doubt in which nobody of this group was sent.
    doubtful_looks: u32,
    doubts: u32,
    /// Since when some are helped.
    helped_since: Option<Time>,
    /// Since when it has been calm with little load.
    calm_since: Option<Time>,
    /// The server has asked for help: it ends it too.
    server_asked: bool,
    /// That no helper is there has been said.
    has_said_none: bool,
    next_look: Time,
    /// What the last look saw of those that the stage is about, and of the others.
    seen: View,
    others: View,
    /// Looks in a row that found nobody helped of those that are to be.
    empty_looks: u32,
    notices: VecDeque<Notice>,
    counters: Counters,
}

impl Activation {
    /// A group without connections. Helpers count as available until told otherwise. `seed`: another one in each
    /// process, or they move at the same moments.
    pub fn new(now: Time, settings: ActivationSettings, seed: u64) -> Result<Activation, OutOfBounds> {
        settings.check()?;
        let (windows, members) = (Windows::new(&settings), Members::new());
        let seen = view(now, &windows, Carrier::Direct, &members, &settings);
        let mut random = Random::new(seed);
        Ok(Activation {
            settings,
            phase: random.time(settings.slice),
            random,
            windows,
            members,
            limiter: Limiter::new(settings.moves_per_s_max),
            returns: None,
            moves: VecDeque::new(),
            available: true,
            standing: Standing::default(),
            word: Word::Auto,
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
            server_asked: false,
            has_said_none: false,
            next_look: now,
            seen,
            others: seen,
            empty_looks: 0,
            notices: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// A connection joins, and is to be opened there: where the group is. Nothing when there are [`MEMBERS_MAX`]: open it
    /// direct, without this group. When it comes to be carried elsewhere, say [`carried`](Self::carried).
    pub fn join(&mut self, now: Time) -> Option<(Member, Carrier)> {
        let is_helped = match self.standing.at(now) {
            Word::On => true,
            Word::Off => false,
            Word::Auto => self.stage.is_for_all(),
        };
        let wanted = if is_helped { Carrier::Helped } else { Carrier::Direct };
        let carrier = if self.available { wanted } else { Carrier::Direct };
        if carrier == Carrier::Helped {
            self.helped_since.get_or_insert(now);
        }
        let member = self.members.join(now, carrier)?;
        if let Some(standing) = self.members.at_mut(member) {
            standing.wanted = wanted; // it follows when there is a helper
        }
        Some((member, carrier))
    }

    /// A connection leaves. A request of its that has waited for longer than the SLA counts as late: clients that give
    /// up are no sign of calm.
    pub fn leave(&mut self, now: Time, member: Member) {
        if let Some(left) = self.members.leave(member)
            && let Some(waited) = left.waits(now).filter(|waited| *waited > self.settings.sla)
        {
            self.counters.gave_up += 1;
            self.calm_since = None;
            self.windows.record(now + self.phase, waited, left.carrier);
        }
    }

    /// A reply came, so long after the request was meant to be sent. Not for blocking commands, which wait because they
    /// are asked to.
    pub fn measured(&mut self, now: Time, member: Member, latency: Duration) {
        let Some(standing) = self.members.at(member) else { return };
        let on = (standing.carrier, standing.since);
        // What it waited on an earlier carrier, and for the move, is none of this one's.
        self.windows.record(now + self.phase, latency.min(now.since(on.1)), on.0);
        if let Some(comparison) = &mut self.comparison {
            comparison.measured(now, latency, on, self.settings.sla);
        }
    }

    /// Since when the oldest request of this connection waits for its reply; nothing when none does. Say so whenever it
    /// changes. Not for blocking commands.
    pub fn waits_since(&mut self, member: Member, since: Option<Time>) {
        self.members.set_waits_since(member, since);
    }

    /// The client gave a request up that had waited for so long: it counts as late as that. The connection stays.
    pub fn gave_up(&mut self, now: Time, member: Member, waited: Duration) {
        let Some(carrier) = self.carrier(member) else { return };
        if self.members.set_waits_since(member, None).is_some() {
            self.counters.gave_up += 1;
            self.calm_since = None;
            self.windows.record(now + self.phase, waited, carrier);
        }
    }

    /// This connection is carried there now, by an order or for any other reason.
    pub fn carried(&mut self, now: Time, member: Member, carrier: Carrier) {
        let by_itself = self.random.about(self.settings.retry);
        let Some(standing) = self.members.at_mut(member) else { return };
        match standing.order {
            Some((wanted, _)) if wanted == carrier => {
                self.members.set_order(member, None);
                self.counters.orders_done += 1;
            }
            // Later than the order's timeout, on a server that is very late: sending the connection back to that server
            // would only add load.
            None if standing.overdue && carrier == Carrier::Helped => standing.wanted = carrier,
            // By itself, as when its helper is lost: there is time before it is told to go back.
            None if carrier != standing.carrier => standing.not_before = now + by_itself,
            _ => {}
        }
        if carrier == Carrier::Helped {
            self.memory.taken();
            self.has_said_none = false;
            self.helped_since.get_or_insert(now);
        }
        self.members.carried(now, member, carrier);
        if self.members.helped() == 0 {
            self.helped_since = None;
        }
    }

    /// An order came to nothing: no helper took the connection, or the server did not. It is where it was, and is told
    /// again later if that is still wanted.
    pub fn not_moved(&mut self, now: Time, member: Member) {
        let again = self.random.about(self.memory.retry(&self.settings));
        let was_ordered = self.members.set_order(member, None).is_some();
        let Some(standing) = self.members.at_mut(member) else { return };
        standing.overdue = false;
        if was_ordered {
            standing.not_before = now + again;
            self.counters.orders_failed += 1;
        }
    }

    /// The server's *drain* for this connection: it wants it elsewhere. From a helper it returns, from the server's own
    /// port it goes to a helper; an order follows.
    pub fn asked_elsewhere(&mut self, now: Time, member: Member) {
        if self.standing.at(now) == Word::Auto {
            self.follow_server(now, member);
        }
    }

    /// Whether there are helpers at all. Without, nobody is told to go to one; those that are helped and lose theirs
    /// return by themselves, as sessions do.
    pub fn helpers(&mut self, available: bool) {
        if self.available != available {
            self.available = available;
            self.has_said_none = false;
        }
    }

    /// The operator's word, for ever or for a time.
    pub fn say(&mut self, now: Time, word: Word, lasts: Option<Duration>) {
        self.standing.say(now, word, lasts);
        self.counters.words += 1;
        self.memory.forgive();
        self.follow_word(now, lasts);
    }

    /// What to do next, if anything. Call it after anything was told, until there is nothing, and at
    /// [`poll_timeout`](Self::poll_timeout).
    pub fn poll(&mut self, now: Time) -> Option<Order> {
        self.run(now);
        self.next_move(now)
    }

    /// When to call [`poll`](Self::poll) at the latest. Nothing: when something has been told.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let look = self.needs_looks().then_some(self.next_look);
        [look, self.next_move_at(), self.stage.until(), self.standing.until()].into_iter().flatten().min()
    }

    /// The next decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// What has happened since the beginning.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What the group is about.
    pub fn status(&self, now: Time) -> Status {
        let stage = match self.stage {
            Stage::Direct if self.memory.is_barred(now) => "backed off",
            stage => stage.name(),
        };
        Status {
            stage,
            word: self.standing.at(now),
            members: self.members.count(),
            helped: self.members.helped(),
            figures: self.seen.figures,
            failures: self.memory.failures(),
        }
    }

    /// Where a connection is, as far as is known; nothing if it has left.
    pub fn carrier(&self, member: Member) -> Option<Carrier> {
        self.members.at(member).map(|standing| standing.carrier)
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
