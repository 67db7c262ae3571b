//! Knows who was late and who moved, and what must be true of it. Stands outside the code under test.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use spillway_policy::Carrier;
use spillway_transport::Time;

use super::plan::{Course, Plan};

/// One thing that must be true of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A connection has one order at a time.
    Orders,
    /// A process never moves more connections in a second than it may.
    Pace,
    /// No connection is sent to and fro.
    Switches,
    /// What was of no use is not tried again soon.
    Memory,
    /// Many who see the same do not act as one, and a few go first.
    Herd,
    /// A burst is relieved within the time that its backlog needs, and a second.
    Relief,
    /// Help does not make it worse.
    Harm,
}

impl Check {
    /// All of them.
    pub const ALL: [Check; 7] =
        [Check::Orders, Check::Pace, Check::Switches, Check::Memory, Check::Herd, Check::Relief, Check::Harm];
}

/// Something that must not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Of what.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.check, self.what)
    }
}

const BIN: Duration = Duration::from_millis(100);
/// Fewer requests than this say nothing about a bin.
const BIN_REQUESTS_MIN: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    requests: u32,
    late: u32,
}

impl Bin {
    fn is_late(self) -> bool {
        self.requests >= BIN_REQUESTS_MIN && self.late * 100 > self.requests
    }
}

#[derive(Clone, Debug, Default)]
struct Log {
    ordered: Option<(Carrier, Time)>,
    /// When it was moved by an order.
    moved_at: Vec<Time>,
}

/// One run.
#[derive(Debug)]
pub struct Books {
    sla: Duration,
    cap: usize,
    order_timeout: Duration,
    bins: Vec<Bin>,
    connections: Vec<Log>,
    /// Orders of each process within the last second.
    recent: Vec<VecDeque<Time>>,
    ordered_at: Vec<Time>,
    /// Requests, and late ones.
    pub requests: u64,
    /// Later than the SLA, or never answered.
    pub late: u64,
    violations: Vec<Violation>,
}

impl Books {
    /// Of a world.
    pub fn new(plan: &Plan) -> Books {
        let bins = Course::END.as_nanos() / BIN.as_nanos() as u64 + 1;
        Books {
            sla: plan.settings.sla,
            cap: plan.settings.moves_per_s_max as usize,
            order_timeout: plan.settings.order_timeout,
            bins: vec![Bin::default(); bins as usize],
            connections: vec![Log::default(); plan.connections() as usize],
            recent: vec![VecDeque::new(); plan.processes.len()],
            ordered_at: Vec::new(),
            requests: 0,
            late: 0,
            violations: Vec::new(),
        }
    }

    fn violation(&mut self, check: Check, what: String) {
        if self.violations.iter().filter(|violation| violation.check == check).count() < 3 {
            self.violations.push(Violation { check, what });
        }
    }

    /// A request has its reply, or was given up, so long after it was meant to be sent.
    pub fn answered(&mut self, intended: Time, latency: Duration) {
        let bin = (intended.as_nanos() / BIN.as_nanos() as u64) as usize;
        let late = u32::from(latency > self.sla);
        if let Some(bin) = self.bins.get_mut(bin) {
            bin.requests += 1;
            bin.late += late;
        }
        self.requests += 1;
        self.late += u64::from(late);
    }

    /// A request has none at the end.
    pub fn unanswered(&mut self, intended: Time, end: Time) {
        self.answered(intended, end.since(intended));
    }

    /// A process orders a connection elsewhere.
    pub fn ordered(&mut self, now: Time, process: u32, connection: u32, carrier: Carrier) {
        let log = &mut self.connections[connection as usize];
        let before = log.ordered.replace((carrier, now));
        if before.is_none_or(|(wanted, _)| wanted != carrier) {
            log.moved_at.push(now); // otherwise it was told again
        }
        self.ordered_at.push(now);
        if before.is_some_and(|(_, at)| now.since(at) < self.order_timeout) {
            self.violation(Check::Orders, format!("connection {connection} has two orders at {now:?}"));
        }
        let recent = &mut self.recent[process as usize];
        recent.push_back(now);
        while recent.front().is_some_and(|first| now.since(*first) >= SECOND) {
            recent.pop_front();
        }
        if recent.len() > self.cap {
            let moves = recent.len();
            self.violation(
                Check::Pace,
                format!("{moves} moves of process {process} in a second, at {now:?}"),
            );
        }
    }

    /// A connection is there.
    pub fn arrived(&mut self, connection: u32, carrier: Carrier) {
        self.connections[connection as usize].ordered.take_if(|(wanted, _)| *wanted == carrier);
    }

    /// It could not go.
    pub fn refused(&mut self, connection: u32) {
        let log = &mut self.connections[connection as usize];
        log.ordered = None;
        log.moved_at.pop();
    }

    /// Moves that were ordered and not refused.
    pub fn moves(&self) -> u64 {
        self.connections.iter().map(|log| log.moved_at.len() as u64).sum()
    }

    /// The most within a minute, of one connection.
    pub fn switches_max(&self) -> u64 {
        let most = |log: &Log| {
            let within = |first: Time| {
                log.moved_at.iter().filter(|at| **at >= first && at.since(first) < MINUTE).count()
            };
            log.moved_at.iter().map(|first| within(*first)).max().unwrap_or(0)
        };
        self.connections.iter().map(|log| most(log) as u64).max().unwrap_or(0)
    }

    /// Bins with p99 over the SLA, as a time.
    pub fn over_sla(&self) -> Duration {
        BIN * self.bins.iter().filter(|bin| bin.is_late()).count() as u32 // some hundred
    }

    /// After the beginning of the burst, the earliest moment from which three seconds in a row each have p99 within the
    /// SLA. Nothing if there is none before it ends.
    pub fn relieved_after(&self) -> Option<Duration> {
        let bin_of = |at: Time| (at.as_nanos() / BIN.as_nanos() as u64) as usize;
        let (begin, end) = (bin_of(Course::BEGINS), bin_of(Course::BURST_ENDS));
        let good = |from: usize| {
            self.bins[from..from + 30].chunks(10).all(|second| {
                let sum = |of: fn(&Bin) -> u32| second.iter().map(of).sum::<u32>();
                sum(|bin| bin.late) * 100 <= sum(|bin| bin.requests)
            })
        };
        (begin..end - 30).find(|from| good(*from)).map(|from| BIN * (from - begin) as u32)
    }

    /// When the last was ordered to move before the burst ends, after its beginning.
    fn moved_within(&self) -> Duration {
        let last = self.ordered_at.iter().filter(|at| **at < Course::BURST_ENDS).max();
        last.map_or(Duration::ZERO, |at| at.since(Course::BEGINS))
    }

    /// What must be true at the end, beside a run in which nobody was helped.
    pub fn finish(&mut self, plan: &Plan, never: &Books) {
        let connections = f64::from(plan.connections());
        let (switches, moves) = (self.switches_max(), self.moves() as f64 / connections);
        let well = plan.helpers_are_well();
        // In vain and back, twice or, of one connection in thousands, once more; the same where helpers die or lie.
        // With impatient clients a server is so late that orders to it time out.
        let (switches_max, moves_max) = match (well, plan.course.is_past_help()) {
            (false, _) if plan.course == Course::Impatience => (8, 4.2),
            (true, false) => (2, 2.2),
            (true, true) => (6, 2.5),
            (false, _) => (6, 4.2),
        };
        if switches > switches_max {
            self.violation(Check::Switches, format!("a connection moved {switches} times within a minute"));
        }
        if moves > moves_max {
            self.violation(Check::Memory, format!("connections moved {moves:.1} times each"));
        }
        self.finish_herd(plan);
        if plan.course == Course::Burst && well {
            self.finish_relief(plan);
        }
        self.finish_harm(plan, never);
    }

    fn finish_herd(&mut self, plan: &Plan) {
        let singles = plan.processes.iter().all(|connections| *connections == 1);
        let Some(first) = self.ordered_at.first().copied() else { return };
        if !singles || plan.course != Course::Burst || first < Course::BEGINS {
            return;
        }
        let within = |from: Time, time: Duration| {
            self.ordered_at.iter().filter(|at| **at >= from && at.since(from) < time).count()
        };
        let all = plan.processes.len();
        let early = within(first, BIN);
        let busiest = self.ordered_at.iter().map(|at| within(*at, BIN)).max().unwrap_or(0);
        if early * 5 > all {
            self.violation(Check::Herd, format!("{early} of {all} move within 100 ms of the first"));
        }
        if busiest * 10 > all * 7 {
            self.violation(Check::Herd, format!("{busiest} of {all} move within 100 ms"));
        }
    }

    fn finish_relief(&mut self, plan: &Plan) {
        // What came too much until all had moved, by what a helped server can do beyond what comes: four times as much
        // as direct, 1.5 of which come.
        let moved = self.moved_within();
        let floor = moved.mul_f64(0.5 / 2.5);
        let largest = f64::from(plan.processes.iter().max().copied().unwrap_or(0));
        let pacing = Duration::from_secs_f64(largest / self.cap as f64 * 1.1);
        let bound = floor + SECOND + pacing.saturating_sub(Duration::from_millis(150));
        match self.relieved_after() {
            Some(after) if after <= bound => {}
            Some(after) => {
                self.violation(Check::Relief, format!("relieved after {after:?}, the bound is {bound:.1?}"));
            }
            None => self.violation(Check::Relief, "never relieved".to_owned()),
        }
    }

    fn finish_harm(&mut self, plan: &Plan, never: &Books) {
        // To find out that help is of no use takes a trial; each death of a helper costs its clients a moment.
        // Helpers that make it worse are found out by each process for itself, by trial, twice a minute.
        let makes_worse = plan.liar.is_some() || !plan.helpers_slow.is_zero();
        let found_out = if makes_worse { SECOND * 20 } else { SECOND * plan.faults.len() as u32 };
        let allowed = SECOND * 5 + never.over_sla() / 10 + found_out;
        let (over, without) = (self.over_sla(), never.over_sla());
        if over > without + allowed && !makes_worse {
            self.violation(Check::Harm, format!("{over:?} over the SLA, {without:?} without help"));
        }
        let per_s = never.requests as f64 / 65.0;
        let late_max = never.late as f64 * 1.1 + per_s * allowed.as_secs_f64();
        if self.late as f64 > late_max {
            let (late, without) = (self.late, never.late);
            self.violation(Check::Harm, format!("{late} requests late, {without} without help"));
        }
    }

    /// What was wrong.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}
