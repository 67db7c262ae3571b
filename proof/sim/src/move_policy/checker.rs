//! Checks each decision against the limits, outside the code under test, and counts moves and latencies.

use std::time::Duration;

use serde::Serialize;
use spillway_policy::migration::{Decision, MigrationSettings, MovePolicy, PeerReport, Reason};
use spillway_transport::Time;

use super::plan::{COUNTS_FROM, COUNTS_UNTIL, Plan};
use crate::violations::{self, Violations};

/// A property of every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A server moves at most `moves_per_s_max` connections in any second.
    Pace,
    /// A connection stays for 100 ms where it has arrived by a move.
    Stay,
    /// A connection does not return within a second to where it came from.
    Return,
    /// Between two heartbeats of a target, a source uses at most a share of its free places.
    Room,
    /// Moves begin with a larger load than that with which they end.
    Hysteresis,
    /// The override *off* forbids moves.
    Override,
    /// A policy moves only connections that its server has, and only to other servers.
    Owner,
}

impl Check {
    /// All checks of a limit.
    pub const LIMITS: [Check; 6] =
        [Check::Pace, Check::Stay, Check::Return, Check::Room, Check::Hysteresis, Check::Override];
}

/// A violation of a check.
pub type Violation = violations::Violation<Check>;

const SECOND: Duration = Duration::from_secs(1);
const STAY_MIN: Duration = Duration::from_millis(100);
const RETURN_MIN: Duration = Duration::from_secs(1);
/// Three looks without a decision end a server's moves.
const PAUSE: Duration = Duration::from_millis(30);

/// The last arrival of a connection by a move.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    source: usize,
    at: Time,
}

/// A target's free places at its last heartbeat, and the moves of a source to it since then.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    free_places: u32,
    sent: u32,
}

/// The checker of one run.
#[derive(Debug)]
pub struct Checker {
    settings: MigrationSettings,
    servers: usize,
    arrivals: Vec<Option<Arrival>>,
    /// Times of all decisions, by source.
    decided_at: Vec<Vec<Time>>,
    /// Room of each target, by source and then by target.
    rooms: Vec<Room>,
    is_forbidden: bool,
    latencies_ns: Vec<u64>,
    /// Moves that the policies have decided, and that were not refused.
    pub moves: u64,
    /// Moves that a target or the switch refused.
    pub refused: u64,
    violations: Violations<Violation>,
}

impl Checker {
    /// A checker for a run of this plan, with the settings that the policy should have.
    pub fn new(plan: &Plan, settings: MigrationSettings) -> Checker {
        Checker {
            settings,
            servers: plan.servers,
            arrivals: vec![None; plan.homes.len()],
            decided_at: vec![Vec::new(); plan.servers],
            rooms: vec![Room::default(); plan.servers * plan.servers],
            is_forbidden: false,
            latencies_ns: Vec::new(),
            moves: 0,
            refused: 0,
            violations: Violations::default(),
        }
    }

    /// A request is answered, or is unanswered at the end, this long after it was due.
    pub fn answered(&mut self, due_at: Time, latency: Duration) {
        if due_at >= COUNTS_FROM && due_at < COUNTS_UNTIL {
            self.latencies_ns.push(latency.as_nanos() as u64); // fits: some seconds
        }
    }

    /// A heartbeat of `target` arrives at `source`.
    pub fn heartbeat(&mut self, source: usize, target: usize, report: PeerReport) {
        self.rooms[source * self.servers + target] = Room { free_places: report.free_places, sent: 0 };
    }

    /// From now on no moves are allowed.
    pub fn forbid(&mut self) {
        self.is_forbidden = true;
    }

    /// A server decides to move a connection. `is_here`: the server has the connection, and no move is under way.
    pub fn decided(&mut self, now: Time, source: usize, target: usize, decision: &Decision, is_here: bool) {
        if !is_here || source == target {
            self.violation(now, Check::Owner, format!("server {source} has no such connection: {decision}"));
        }
        if self.is_forbidden {
            self.violation(now, Check::Override, format!("server {source}: {decision}"));
        }
        self.check_connection(now, target, decision);
        self.check_room(now, source, decision);
        self.check_hysteresis(now, source, &decision.reason);
        self.decided_at[source].push(now);
        let recent = self.decided_at[source].iter().rev().take_while(|at| now.since(**at) < SECOND).count();
        let moves_max = self.settings.limits.moves_per_s_max;
        if recent > moves_max as usize {
            let what = format!("{recent} moves of server {source} within a second, the limit is {moves_max}");
            self.violation(now, Check::Pace, what);
        }
        self.moves += 1;
    }

    fn check_connection(&mut self, now: Time, target: usize, decision: &Decision) {
        let Some(Arrival { source, at }) = self.arrivals[decision.connection.0 as usize] else { return };
        let stayed = now.since(at);
        if stayed < STAY_MIN {
            self.violation(now, Check::Stay, format!("arrived {stayed:.0?} ago: {decision}"));
        }
        if stayed < RETURN_MIN && source == target {
            self.violation(now, Check::Return, format!("came from there {stayed:.0?} ago: {decision}"));
        }
    }

    fn check_room(&mut self, now: Time, source: usize, decision: &Decision) {
        let target = usize::from(decision.target.expected().0) - 1;
        let room = &mut self.rooms[source * self.servers + target];
        room.sent += 1;
        let Room { sent, free_places } = *room;
        let allowed = (free_places * self.settings.limits.room_percent / 100).max(free_places.min(1));
        if sent > allowed {
            let what = format!(
                "{sent} moves by server {source} since the target had {free_places} free places, of which \
                 {allowed} may be used: {decision}"
            );
            self.violation(now, Check::Room, what);
        }
    }

    fn check_hysteresis(&mut self, now: Time, source: usize, reason: &Reason) {
        let pause = PAUSE.max(SECOND * 2 / self.settings.limits.moves_per_s_max);
        let last = self.decided_at[source].last();
        if last.is_some_and(|last| now.since(*last) < pause) {
            return; // this decision continues earlier moves
        }
        let (above, start) = match (*reason, self.settings.policy) {
            (Reason::Load { load, .. }, MovePolicy::Reactive(reactive)) => (load, reactive.load_start),
            (Reason::AboveMean { demand, mean, .. }, MovePolicy::Proactive(proactive)) => {
                // Both figures are rounded to millionths.
                (demand.saturating_sub(mean) + 2, proactive.excess_start)
            }
            _ => return,
        };
        if above < start {
            self.violation(
                now,
                Check::Hysteresis,
                format!("moves begin at {above} millionths, below {start}"),
            );
        }
    }

    /// A connection has arrived by a move from `source`.
    pub fn arrived(&mut self, now: Time, connection: usize, source: usize) {
        self.arrivals[connection] = Some(Arrival { source, at: now });
    }

    /// The target of a move, or the switch, refused.
    pub fn refused(&mut self) {
        self.moves -= 1;
        self.refused += 1;
    }

    fn violation(&mut self, now: Time, check: Check, what: String) {
        let what = format!("at {:.1} ms: {what}", now.as_nanos() as f64 / 1e6);
        self.violations.push(Violation { check, what });
    }

    /// The violations, and the quantile of the latencies in µs. Call once, at the end.
    pub fn finish(&mut self, quantile: f64) -> (Vec<Violation>, f64) {
        let count = self.latencies_ns.len();
        let index = ((count as f64 * quantile) as usize).min(count.saturating_sub(1));
        let at = if count == 0 { 0 } else { *self.latencies_ns.select_nth_unstable(index).1 };
        (self.violations.as_slice().to_vec(), at as f64 / 1_000.0)
    }

    /// Number of requests that count.
    pub fn requests(&self) -> u64 {
        self.latencies_ns.len() as u64
    }
}
