//! Counts late requests and moves, outside the code under test, and compares them with bounds.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use spillway_policy::Carrier;
use spillway_transport::Time;

use super::plan::{Course, Plan};
use crate::violations;

/// A property of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A connection has at most one order at a time.
    Orders,
    /// A process moves at most `moves_per_s_max` connections per second.
    Pace,
    /// No connection oscillates between helper and server.
    Switches,
    /// Relief that did not help is not tried again soon.
    Memory,
    /// Many processes with the same observations do not move at the same time; a few move first.
    Herd,
    /// A burst is relieved within the time that its backlog and the limit on moves need, plus one second.
    Relief,
    /// Relief does not make requests later than they are without it.
    Harm,
}

impl Check {
    /// All checks.
    pub const ALL: [Check; 7] =
        [Check::Orders, Check::Pace, Check::Switches, Check::Memory, Check::Herd, Check::Relief, Check::Harm];
}

/// A violation of a check.
pub type Violation = violations::Violation<Check>;

const BIN_WIDTH: Duration = Duration::from_millis(100);
/// A bin with fewer requests has no meaningful p99.
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
struct ConnectionLog {
    open_order: Option<(Carrier, Time)>,
    /// Times of the orders that moved the connection.
    moved_at: Vec<Time>,
}

/// The checker of one run.
#[derive(Debug)]
pub struct Checker {
    sla: Duration,
    moves_per_s_max: usize,
    order_timeout: Duration,
    bins: Vec<Bin>,
    connections: Vec<ConnectionLog>,
    /// By process: times of the orders of the last second.
    recent_orders: Vec<VecDeque<Time>>,
    ordered_at: Vec<Time>,
    /// Number of requests that were due: answered, given up, or unanswered at the end.
    pub requests: u64,
    /// Number of requests answered later than the SLA, or not at all.
    pub late: u64,
    violations: Vec<Violation>,
}

impl Checker {
    /// A checker for a run of this plan.
    pub fn new(plan: &Plan) -> Checker {
        let bins = Course::END.as_nanos() / BIN_WIDTH.as_nanos() as u64 + 1;
        Checker {
            sla: plan.settings.sla,
            moves_per_s_max: plan.settings.moves_per_s_max as usize,
            order_timeout: plan.settings.order_timeout,
            bins: vec![Bin::default(); bins as usize],
            connections: vec![ConnectionLog::default(); plan.connections() as usize],
            recent_orders: vec![VecDeque::new(); plan.processes.len()],
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

    /// A request is answered or given up `latency` after it was due.
    pub fn answered(&mut self, due_at: Time, latency: Duration) {
        let bin = (due_at.as_nanos() / BIN_WIDTH.as_nanos() as u64) as usize;
        let late = u32::from(latency > self.sla);
        if let Some(bin) = self.bins.get_mut(bin) {
            bin.requests += 1;
            bin.late += late;
        }
        self.requests += 1;
        self.late += u64::from(late);
    }

    /// A request is still unanswered at the end of the run.
    pub fn unanswered(&mut self, due_at: Time, end: Time) {
        self.answered(due_at, end.since(due_at));
    }

    /// A process orders a connection to move to `carrier`.
    pub fn ordered(&mut self, now: Time, process: u32, connection: u32, carrier: Carrier) {
        let log = &mut self.connections[connection as usize];
        let earlier_order = log.open_order.replace((carrier, now));
        if earlier_order.is_none_or(|(ordered, _)| ordered != carrier) {
            log.moved_at.push(now); // a repeated order is not a second move
        }
        self.ordered_at.push(now);
        if earlier_order.is_some_and(|(_, at)| now.since(at) < self.order_timeout) {
            self.violation(Check::Orders, format!("connection {connection} has two orders at {now:?}"));
        }
        let recent = &mut self.recent_orders[process as usize];
        recent.push_back(now);
        while recent.front().is_some_and(|first| now.since(*first) >= SECOND) {
            recent.pop_front();
        }
        if recent.len() > self.moves_per_s_max {
            let (moves, bound) = (recent.len(), self.moves_per_s_max);
            self.violation(
                Check::Pace,
                format!(
                    "{moves} moves of process {process} within a second, at {now:?}, but the bound is {bound}"
                ),
            );
        }
    }

    /// A connection's new carrier is attached.
    pub fn carrier_attached(&mut self, connection: u32, carrier: Carrier) {
        self.connections[connection as usize].open_order.take_if(|(ordered, _)| *ordered == carrier);
    }

    /// A connection's move was refused.
    pub fn refused(&mut self, connection: u32) {
        let log = &mut self.connections[connection as usize];
        log.open_order = None;
        log.moved_at.pop();
    }

    /// Number of moves that were ordered and not refused.
    pub fn moves(&self) -> u64 {
        self.connections.iter().map(|log| log.moved_at.len() as u64).sum()
    }

    /// Largest number of moves of one connection within a minute.
    pub fn switches_max(&self) -> u64 {
        let max_per_minute = |log: &ConnectionLog| {
            let moves_from = |first: Time| {
                log.moved_at.iter().filter(|at| **at >= first && at.since(first) < MINUTE).count()
            };
            log.moved_at.iter().map(|first| moves_from(*first)).max().unwrap_or(0)
        };
        self.connections.iter().map(|log| max_per_minute(log) as u64).max().unwrap_or(0)
    }

    /// Total time with p99 above the SLA, in bins of 100 ms.
    pub fn over_sla(&self) -> Duration {
        BIN_WIDTH * self.bins.iter().filter(|bin| bin.is_late()).count() as u32 // fits: some hundred
    }

    /// Time from the beginning of the burst until the first of three consecutive seconds with p99 within the SLA;
    /// `None` if the burst ends first.
    pub fn relieved_after(&self) -> Option<Duration> {
        let bin_of = |at: Time| (at.as_nanos() / BIN_WIDTH.as_nanos() as u64) as usize;
        let (begin, end) = (bin_of(Course::BEGINS), bin_of(Course::BURST_ENDS));
        let is_relieved = |from: usize| {
            self.bins[from..from + 30].chunks(10).all(|second| {
                let sum = |of: fn(&Bin) -> u32| second.iter().map(of).sum::<u32>();
                sum(|bin| bin.late) * 100 <= sum(|bin| bin.requests)
            })
        };
        (begin..end - 30).find(|from| is_relieved(*from)).map(|from| BIN_WIDTH * (from - begin) as u32)
    }

    /// Time from the beginning of the burst until the last order in it.
    fn moved_within(&self) -> Duration {
        let last = self.ordered_at.iter().filter(|at| **at < Course::BURST_ENDS).max();
        last.map_or(Duration::ZERO, |at| at.since(Course::BEGINS))
    }

    /// Checks the whole run, compared with a run without relief.
    pub fn finish(&mut self, plan: &Plan, without_relief: &Checker) {
        let connections = f64::from(plan.connections());
        let (switches, moves) = (self.switches_max(), self.moves() as f64 / connections);
        let is_healthy = plan.helpers_are_healthy();
        // Within a minute a connection moves at most twice, to a helper and back; in the whole run, few
        // connections move more often. Failed trials of relief cause more moves, and so do helpers that fail,
        // are slow or full, or report a wrong load. Impatient clients make the server so slow that orders
        // time out: still more moves.
        let (switches_max, moves_max) = match (is_healthy, plan.course.is_beyond_relief()) {
            (false, _) if plan.course == Course::Impatience => (8, 4.2),
            (true, false) => (2, 2.2),
            (true, true) => (6, 2.5),
            (false, _) => (6, 4.2),
        };
        if switches > switches_max {
            self.violation(
                Check::Switches,
                format!(
                    "a connection moved {switches} times within a minute, but the bound is {switches_max}"
                ),
            );
        }
        if moves > moves_max {
            self.violation(
                Check::Memory,
                format!("connections moved {moves:.1} times each, but the bound is {moves_max}"),
            );
        }
        self.check_herd(plan);
        if plan.course == Course::Burst && is_healthy {
            self.check_relief(plan);
        }
        self.check_harm(plan, without_relief);
    }

    fn check_herd(&mut self, plan: &Plan) {
        let has_single_connections = plan.processes.iter().all(|connections| *connections == 1);
        let Some(first) = self.ordered_at.first().copied() else { return };
        if !has_single_connections || plan.course != Course::Burst || first < Course::BEGINS {
            return;
        }
        let orders_within = |from: Time, time: Duration| {
            self.ordered_at.iter().filter(|at| **at >= from && at.since(from) < time).count()
        };
        let all = plan.processes.len();
        let early = orders_within(first, BIN_WIDTH);
        let busiest = self.ordered_at.iter().map(|at| orders_within(*at, BIN_WIDTH)).max().unwrap_or(0);
        if early * 5 > all {
            self.violation(
                Check::Herd,
                format!("{early} of {all} processes move within 100 ms after the first, more than a fifth"),
            );
        }
        if busiest * 10 > all * 7 {
            self.violation(
                Check::Herd,
                format!("{busiest} of {all} processes move within 100 ms, more than seven tenths"),
            );
        }
    }

    fn check_relief(&mut self, plan: &Plan) {
        // At 1.5 times the direct capacity, half of the capacity queues up until all connections have moved.
        // Then the server serves four times the capacity, of which 2.5 times are left for the backlog.
        let moving_time = self.moved_within();
        let backlog_time = moving_time.mul_f64(0.5 / 2.5);
        let largest_process = f64::from(plan.processes.iter().max().copied().unwrap_or(0));
        let pacing = Duration::from_secs_f64(largest_process / self.moves_per_s_max as f64 * 1.1);
        let bound = backlog_time + SECOND + pacing.saturating_sub(Duration::from_millis(150));
        match self.relieved_after() {
            Some(after) if after <= bound => {}
            Some(after) => {
                self.violation(
                    Check::Relief,
                    format!("the burst was relieved after {after:?}, but the bound is {bound:.1?}"),
                );
            }
            None => self.violation(Check::Relief, "the burst was not relieved before its end".to_owned()),
        }
    }

    fn check_harm(&mut self, plan: &Plan, without_relief: &Checker) {
        // A trial of relief makes requests late even if relief is useless, and so does each failure of a
        // helper. If helpers increase the latency, each process has a trial of its own, twice a minute.
        let makes_worse = plan.misreporting_helper.is_some() || !plan.helpers_delay.is_zero();
        let trial_time = if makes_worse { SECOND * 20 } else { SECOND * plan.faults.len() as u32 };
        let allowed = SECOND * 5 + without_relief.over_sla() / 10 + trial_time;
        let (with_relief, without) = (self.over_sla(), without_relief.over_sla());
        if with_relief > without + allowed && !makes_worse {
            self.violation(Check::Harm, format!("{with_relief:?} above the SLA, {without:?} without relief"));
        }
        let per_s = without_relief.requests as f64 / 65.0;
        let late_max = without_relief.late as f64 * 1.1 + per_s * allowed.as_secs_f64();
        if self.late as f64 > late_max {
            let (late, without) = (self.late, without_relief.late);
            self.violation(Check::Harm, format!("{late} requests late, {without} without relief"));
        }
    }

    /// The first violations, at most three of each check.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}
