//! Measurements of a run. Reports of several generators merge exactly.
//!
//! Requests count in bins by *intended* send time: a request due at 3.42 s and answered at 9 s belongs to the bin at
//! 3.4 s. Bins hold counts and sparse histograms, so that merging is addition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Requests sent on one kind of carrier. Every sent request is either answered or lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarrierFigures {
    /// Requests with a reply, right or wrong.
    pub answered: u64,
    /// Right replies that took longer than the SLA.
    pub late: u64,
    /// Replies that differ from the expected bytes.
    pub wrong: u64,
    /// Requests sent and not answered: the connection was lost, or the drain ended first.
    pub lost: u64,
    /// Connections lost within the bin's span: reset, closed by the other side, or failed.
    pub resets: u64,
    /// Latency of right replies from the intended send time, in µs.
    pub latency_us: Histogram,
}

impl CarrierFigures {
    /// Requests sent.
    pub fn sent(&self) -> u64 {
        self.answered + self.lost
    }

    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &CarrierFigures) {
        self.answered += other.answered;
        self.late += other.late;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.resets += other.resets;
        self.latency_us.merge(&other.latency_us);
    }
}

/// The requests with an intended send time in one span of time, and their outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Start of the span, in ms since time zero.
    pub at_ms: u64,
    /// Requests due.
    pub offered: u64,
    /// Requests not sent because the client's queue was full.
    pub dropped: u64,
    /// Requests that waited in the client until the end of the run plus the SLA, and were not sent.
    pub unsent: u64,
    /// Requests on plain connections, or on the server's own link port.
    pub direct: CarrierFigures,
    /// Requests through a helper's link port. Requests through a helper's port for plain clients count as direct.
    pub helped: CarrierFigures,
    /// The generator's own delay: actual minus intended send time on idle connections, in µs.
    pub lag_us: Histogram,
    /// Throughput: right replies *received* within the span, with any intended send time.
    #[serde(default)]
    pub replied: u64,
    /// Wrong replies, received within the span, that answer no request: bytes after a reply or without a request.
    #[serde(default)]
    pub unasked: u64,
    /// Changes of sessions' carriers within the span: after a loss, by a command or by the policy.
    #[serde(default, rename = "carried_on")]
    pub carrier_changes: u64,
}

impl Bin {
    /// Adds everything in `other` except `at_ms`.
    pub fn merge(&mut self, other: &Bin) {
        self.offered += other.offered;
        self.dropped += other.dropped;
        self.unsent += other.unsent;
        self.direct.merge(&other.direct);
        self.helped.merge(&other.helped);
        self.lag_us.merge(&other.lag_us);
        self.replied += other.replied;
        self.unasked += other.unasked;
        self.carrier_changes += other.carrier_changes;
    }

    /// The bin's totals and percentiles.
    pub fn summary(&self) -> Summary {
        let mut total = self.direct.clone();
        total.merge(&self.helped);
        let on_time = total.answered - total.late - total.wrong;
        // Requests without a right reply count as slower than all others.
        let finished = total.answered + total.lost + self.dropped + self.unsent;
        let quantile = |q| match total.latency_us.quantile_of(q, finished) {
            u64::MAX => None,
            value => Some(value),
        };
        Summary {
            at_ms: self.at_ms,
            offered: self.offered,
            sent: total.sent(),
            answered: total.answered,
            helped: self.helped.answered,
            on_time,
            late: total.late,
            wrong: total.wrong,
            lost: total.lost,
            dropped: self.dropped,
            unsent: self.unsent,
            resets: total.resets,
            on_time_share: on_time as f64 / (self.offered.max(1) as f64),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            p9999_us: quantile(0.9999),
            max_us: total.latency_us.max_us(),
            mean_us: total.latency_us.mean_us(),
            lag_p50_us: self.lag_us.quantile_us(0.5),
            lag_p99_us: self.lag_us.quantile_us(0.99),
            lag_max_us: self.lag_us.max_us(),
            replied: self.replied,
            unasked: self.unasked,
            carrier_changes: self.carrier_changes,
        }
    }
}

/// Totals and percentiles of a span of time. Percentiles are of *all* requests: those without a right reply count as
/// slower than all others, and a percentile that falls among them is `None` (JSON `null`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Bin` and `CarrierFigures`, summed")]
pub struct Summary {
    pub at_ms: u64,
    pub offered: u64,
    pub sent: u64,
    pub answered: u64,
    /// Answered requests through a helper.
    pub helped: u64,
    /// Right replies within the SLA.
    pub on_time: u64,
    pub late: u64,
    pub wrong: u64,
    pub lost: u64,
    pub dropped: u64,
    pub unsent: u64,
    pub resets: u64,
    /// `on_time` divided by `offered`, 0 to 1.
    pub on_time_share: f64,
    pub p50_us: Option<u64>,
    pub p90_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub p999_us: Option<u64>,
    pub p9999_us: Option<u64>,
    /// Largest latency of a right reply.
    pub max_us: u64,
    /// Mean latency of right replies.
    pub mean_us: f64,
    pub lag_p50_us: u64,
    pub lag_p99_us: u64,
    pub lag_max_us: u64,
    #[serde(default)]
    pub replied: u64,
    #[serde(default)]
    pub unasked: u64,
    #[serde(default, rename = "carried_on")]
    pub carrier_changes: u64,
}

/// The carrier to which connections move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The server's ordinary port; for sessions, the server's link port.
    Direct,
    /// A helper's link port.
    Helper,
}

/// One move of connections, from the command to the last connection's first reply on the new carrier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Number of the move in its run, from 0: the same in all generators that execute the same commands.
    pub id: u32,
    /// The new carrier.
    pub target: Target,
    /// Time of the command, in µs since time zero.
    pub given_us: u64,
    /// Time between the starts of two connections' moves, in µs.
    pub pace_us: f64,
    /// Number of connections that must move: those on another carrier, at most the command's `count`.
    pub connections: u32,
    /// Number of these connections that did not move, or fell back.
    pub failed: u32,
    /// Times of the moved connections' first replies on the new carrier, in µs since the command, ascending.
    pub first_replies_us: Vec<u64>,
    /// False if the run ended, or another move began, before every connection had its first reply.
    pub complete: bool,
}

impl Move {
    /// Time from the command to the last of the first replies, in ms.
    pub fn moved_ms(&self) -> f64 {
        self.first_replies_us.last().map_or(0.0, |&us| us as f64 / 1000.0)
    }

    /// Adds the same move as reported by another generator or thread.
    pub fn merge(&mut self, other: &Move) {
        let earlier = self.given_us.min(other.given_us);
        let delay_of = |part: &Move| part.given_us - earlier;
        let (own_delay_us, other_delay_us) = (delay_of(self), delay_of(other));
        self.first_replies_us.iter_mut().for_each(|us| *us += own_delay_us);
        self.first_replies_us.extend(other.first_replies_us.iter().map(|us| us + other_delay_us));
        self.first_replies_us.sort_unstable();
        self.given_us = earlier;
        self.connections += other.connections;
        self.failed += other.failed;
        self.complete &= other.complete;
    }
}

/// A named time, recorded by the command `mark`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The time, in µs since time zero.
    pub at_us: u64,
    /// The name.
    pub name: String,
}

/// A whole run: the final JSON document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The server's address as given to the generator.
    pub server: String,
    /// `memcached`, `redis` or `echo`.
    pub protocol: String,
    /// Number of connections.
    pub connections: u32,
    /// Whether connections are sessions.
    #[serde(default)]
    pub sessions: bool,
    /// Replies that take longer than this are late, in µs.
    pub sla_us: u64,
    /// Width of the bins, in ms.
    pub bin_ms: u64,
    /// `total` omits bins that begin earlier, in ms since time zero.
    pub warmup_ms: u64,
    /// Time zero on this machine's monotonic clock, in ns. Bins of generators with the same time zero merge exactly.
    pub zero_monotonic_ns: u64,
    /// Time zero, in ms since 1970.
    pub zero_unix_ms: u64,
    /// Time from time zero to the end of arrivals, in ms.
    pub duration_ms: u64,
    /// CPU time of the generator's process from time zero to the end of the drain, in ms.
    pub cpu_ms: f64,
    /// Sum of all bins after the warm-up.
    pub total: Summary,
    /// Sums for each second of the run, warm-up included.
    pub seconds: Vec<Summary>,
    /// Moves, in the order of their commands.
    pub moves: Vec<Move>,
    /// Marks, in the order of their times.
    pub marks: Vec<Mark>,
    /// The first decisions of the client library's policy, for people.
    #[serde(default)]
    pub decisions: Vec<String>,
    /// The first problems of the run, for people.
    #[serde(rename = "troubles")]
    pub problems: Vec<String>,
    /// All non-empty bins, in the order of their times.
    pub bins: Vec<Bin>,
}

/// Limit of `decisions` in a report.
pub const DECISIONS_MAX: usize = 256;
/// Limit of `problems` in a report.
pub const PROBLEMS_MAX: usize = 16;

impl Report {
    /// Adds the report of another generator with the same time zero, bin width and SLA, as if one generator had had all
    /// connections.
    pub fn merge(&mut self, other: &Report) {
        self.connections += other.connections;
        self.duration_ms = self.duration_ms.max(other.duration_ms);
        self.cpu_ms += other.cpu_ms;
        let mut bins = Bins::default();
        self.bins.iter().chain(&other.bins).for_each(|bin| bins.add(bin));
        self.bins = bins.into_vec();
        for other_move in &other.moves {
            match self.moves.iter_mut().find(|own| own.id == other_move.id && own.target == other_move.target)
            {
                Some(own_move) => own_move.merge(other_move),
                None => self.moves.push(other_move.clone()),
            }
        }
        self.marks.extend(
            other.marks.iter().filter(|mark| !self.marks.contains(mark)).cloned().collect::<Vec<_>>(),
        );
        self.marks.sort_by_key(|mark| mark.at_us);
        let room = DECISIONS_MAX.saturating_sub(self.decisions.len());
        self.decisions.extend(other.decisions.iter().take(room).cloned());
        let room = PROBLEMS_MAX.saturating_sub(self.problems.len());
        self.problems.extend(other.problems.iter().take(room).cloned());
        self.summarize();
    }

    /// Computes `total` and `seconds` from the bins.
    pub fn summarize(&mut self) {
        self.total = self.span(self.warmup_ms, u64::MAX).summary();
        let mut seconds = Bins::default();
        for bin in &self.bins {
            let at_ms = bin.at_ms / 1000 * 1000;
            seconds.add(&Bin { at_ms, ..bin.clone() });
        }
        self.seconds = seconds.into_vec().iter().map(Bin::summary).collect();
    }

    /// Sum of the bins that begin within `from_ms..to_ms`.
    pub fn span(&self, from_ms: u64, to_ms: u64) -> Bin {
        let mut sum = Bin { at_ms: from_ms, ..Bin::default() };
        let within = |bin: &&Bin| (from_ms..to_ms).contains(&bin.at_ms);
        self.bins.iter().filter(within).for_each(|bin| sum.merge(bin));
        sum
    }
}

/// Bins, sorted by their start.
#[derive(Clone, Debug, Default)]
pub struct Bins {
    bins: BTreeMap<u64, Bin>,
}

impl Bins {
    /// Adds `bin` to the bin that begins at the same time.
    pub fn add(&mut self, bin: &Bin) {
        self.at(bin.at_ms).merge(bin);
    }

    /// The bin that begins at `at_ms`.
    pub fn at(&mut self, at_ms: u64) -> &mut Bin {
        self.bins.entry(at_ms).or_insert_with(|| Bin { at_ms, ..Bin::default() })
    }

    /// The bins, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &Bin> {
        self.bins.values()
    }

    /// The bins, ascending.
    pub fn into_vec(self) -> Vec<Bin> {
        self.bins.into_values().collect()
    }
}

/// One line of output for a controlling program. Times in `_us` are since time zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The key space is filled and all connections are open. The run starts now or, with `--hold`, at `start`.
    Ready {
        /// Number of open connections.
        connections: u32,
    },
    /// Time zero is set.
    Start {
        /// Time zero on this machine's monotonic clock, in ns.
        zero_monotonic_ns: u64,
        /// Time zero, in ms since 1970.
        zero_unix_ms: u64,
    },
    /// Figures since the previous line of this kind. *Add* them to earlier figures of the same bins.
    Bins {
        /// Time of this line.
        at_us: u64,
        /// Connections on a helper now.
        helped_now: u32,
        /// The figures to add.
        bins: Vec<Bin>,
    },
    /// A command took effect.
    Command {
        /// The command's time.
        at_us: u64,
        /// The command in the syntax of [`crate::control::Command::parse`].
        command: String,
    },
    /// A move ended: all connections have a first reply or failed, another move began, or the run ended.
    Moved {
        /// The move.
        #[serde(rename = "move")]
        moved: Move,
        /// See [`Move::moved_ms`].
        moved_ms: f64,
    },
    /// The client library's policy decided.
    Decided {
        /// Time of the decision.
        at_us: u64,
        /// The decision, for people.
        what: String,
    },
    /// A problem. Each worker thread reports its first 8.
    Trouble {
        /// Time of the problem.
        at_us: u64,
        /// The problem, for people.
        what: String,
    },
    /// The last line: the report without its bins, which the `bins` lines contain.
    End {
        /// The report.
        report: Box<Report>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bin(at_ms: u64, latency_us: u64, count: u64) -> Bin {
        let mut bin = Bin { at_ms, offered: count, ..Bin::default() };
        bin.direct.answered = count;
        bin.direct.latency_us.record(latency_us, count);
        bin
    }

    fn report(bins: Vec<Bin>) -> Report {
        let mut report = Report { bins, connections: 10, sla_us: 1000, bin_ms: 100, ..Report::default() };
        report.summarize();
        report
    }

    #[test]
    fn merged_reports_equal_the_report_of_a_single_generator() {
        let mut merged = report(vec![bin(0, 100, 50), bin(900, 300, 50)]);
        let other = report(vec![bin(900, 200, 80), bin(1000, 900, 20)]);
        merged.merge(&other);
        assert_eq!(merged, {
            let mut bins = vec![bin(0, 100, 50), bin(900, 200, 80), bin(1000, 900, 20)];
            bins[1].merge(&bin(900, 300, 50));
            let mut single = report(bins);
            single.connections = 20;
            single
        });
        assert_eq!(merged.total.offered, 200);
        assert_eq!(merged.total.p50_us, Some(200));
        assert_eq!(merged.seconds.len(), 2);
        assert_eq!(merged.span(900, 1000).offered, 130);
    }

    #[test]
    fn requests_without_a_right_reply_count_in_percentiles_as_infinite() {
        let mut bin = bin(0, 100, 97);
        bin.offered = 100;
        bin.direct.lost = 1;
        bin.dropped = 1;
        bin.unsent = 1;
        let summary = bin.summary();
        assert_eq!((summary.p50_us, summary.p99_us), (Some(100), None));
        assert_eq!((summary.on_time, summary.sent), (97, 98));
        assert!((summary.on_time_share - 0.97).abs() < 1e-9);
    }

    #[test]
    fn times_of_merged_moves_count_from_the_earliest_command() {
        let thread_move = |given_us, replies: &[u64]| Move {
            id: 0,
            target: Target::Helper,
            given_us,
            pace_us: 100.0,
            connections: 2,
            failed: 0,
            first_replies_us: replies.to_vec(),
            complete: true,
        };
        let mut merged = thread_move(1_000_000, &[10_000, 70_000]);
        merged.merge(&thread_move(1_000_500, &[20_000, 69_800]));
        assert_eq!(merged.first_replies_us, [10_000, 20_500, 70_000, 70_300]);
        assert_eq!((merged.connections, merged.moved_ms()), (4, 70.3));
    }

    #[test]
    fn events_are_unchanged_after_a_round_trip_through_json() {
        let event = Event::Bins { at_us: 5, helped_now: 0, bins: vec![bin(100, 5000, 3)] };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"event":"bins""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
