//! What a run measured, in a form that several generators' runs can be merged exactly.
//!
//! Everything is counted in bins by the *intended* send time: a request that was meant to be sent at 3.42 s and
//! answered at 9 s belongs to the bin at 3.4 s. Bins hold counts and sparse histograms, so merging is addition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// Requests that went by one carrier. Every sent request is either answered or lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Replies received, right or wrong.
    pub answered: u64,
    /// Right replies that took longer than the SLA.
    pub late: u64,
    /// Replies that were not, byte for byte, what they had to be.
    pub wrong: u64,
    /// Sent and never answered: the connection went away, or nothing came until the end of the drain.
    pub lost: u64,
    /// Connections that the other side reset or closed, or that failed, in this bin's time.
    pub resets: u64,
    /// Of right replies, in µs, from the intended send time.
    pub latency_us: Histogram,
}

impl Carried {
    /// Requests that were sent.
    pub fn sent(&self) -> u64 {
        self.answered + self.lost
    }

    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &Carried) {
        self.answered += other.answered;
        self.late += other.late;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.resets += other.resets;
        self.latency_us.merge(&other.latency_us);
    }
}

/// What was intended to be sent within one span of time, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Where the span begins, in ms since time zero.
    pub at_ms: u64,
    /// Requests intended.
    pub offered: u64,
    /// Not sent because too many waited in the client already.
    pub dropped: u64,
    /// Still waiting in the client when the run ended, or longer than the run's end plus the SLA.
    pub unsent: u64,
    /// By plain connections.
    pub direct: Carried,
    /// Through a helper, over a link. (A *raw* helper port looks like a direct connection.)
    pub helped: Carried,
    /// The generator's own fault: actual − intended send time where the connection was idle, in µs.
    pub lag_us: Histogram,
    /// Throughput: right replies that *came* within the span, whenever they were asked for.
    #[serde(default)]
    pub replied: u64,
    /// Of the wrong, those that came within the span and that nobody had asked for: more bytes than the reply, or
    /// bytes while no reply was awaited.
    #[serde(default)]
    pub unasked: u64,
    /// How often sessions went on by another carrier within the span: they had lost theirs, or were told to move.
    #[serde(default)]
    pub carried_on: u64,
}

impl Bin {
    /// Adds everything in `other`; keeps `at_ms`.
    pub fn merge(&mut self, other: &Bin) {
        self.offered += other.offered;
        self.dropped += other.dropped;
        self.unsent += other.unsent;
        self.direct.merge(&other.direct);
        self.helped.merge(&other.helped);
        self.lag_us.merge(&other.lag_us);
        self.replied += other.replied;
        self.unasked += other.unasked;
        self.carried_on += other.carried_on;
    }

    /// The figures people read.
    pub fn summary(&self) -> Summary {
        let mut both = self.direct.clone();
        both.merge(&self.helped);
        let on_time = both.answered - both.late - both.wrong;
        // Whoever got no right reply waited longer than any percentile can say.
        let settled = both.answered + both.lost + self.dropped + self.unsent;
        let quantile = |q| match both.latency_us.quantile_of(q, settled) {
            u64::MAX => None,
            value => Some(value),
        };
        Summary {
            at_ms: self.at_ms,
            offered: self.offered,
            sent: both.sent(),
            answered: both.answered,
            helped: self.helped.answered,
            on_time,
            late: both.late,
            wrong: both.wrong,
            lost: both.lost,
            dropped: self.dropped,
            unsent: self.unsent,
            resets: both.resets,
            on_time_share: on_time as f64 / (self.offered.max(1) as f64),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            p9999_us: quantile(0.9999),
            max_us: both.latency_us.max_us(),
            mean_us: both.latency_us.mean_us(),
            lag_p50_us: self.lag_us.quantile_us(0.5),
            lag_p99_us: self.lag_us.quantile_us(0.99),
            lag_max_us: self.lag_us.max_us(),
            replied: self.replied,
            unasked: self.unasked,
            carried_on: self.carried_on,
        }
    }
}

/// A span of time in the figures that people read. Percentiles are of *all* requests: what got no right reply
/// counts as slower than anything, and a percentile that falls there is `None` (JSON `null`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Bin` and `Carried`, summed")]
pub struct Summary {
    pub at_ms: u64,
    pub offered: u64,
    pub sent: u64,
    pub answered: u64,
    /// Of the answered, those through a helper.
    pub helped: u64,
    /// Right replies within the SLA.
    pub on_time: u64,
    pub late: u64,
    pub wrong: u64,
    pub lost: u64,
    pub dropped: u64,
    pub unsent: u64,
    pub resets: u64,
    /// `on_time` by `offered`, 0 to 1.
    pub on_time_share: f64,
    pub p50_us: Option<u64>,
    pub p90_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub p999_us: Option<u64>,
    pub p9999_us: Option<u64>,
    /// Of right replies.
    pub max_us: u64,
    /// Of right replies.
    pub mean_us: f64,
    pub lag_p50_us: u64,
    pub lag_p99_us: u64,
    pub lag_max_us: u64,
    #[serde(default)]
    pub replied: u64,
    #[serde(default)]
    pub unasked: u64,
    #[serde(default)]
    pub carried_on: u64,
}

/// Where connections are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The server's ordinary port.
    Direct,
    /// A helper, over a link.
    Helper,
}

/// One move of connections, from the word to the last reply by the new carrier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Counts the run's moves, from 0; several generators that obey the same words count alike.
    pub id: u32,
    /// Where to.
    pub target: Target,
    /// When the word was given, in µs since time zero.
    pub given_us: u64,
    /// Time between the starts of two connections' moves, in µs.
    pub pace_us: f64,
    /// Connections that this move concerned: those that were elsewhere, at most as many as were asked for.
    pub connections: u32,
    /// Of these, those that could not be moved, and stayed or fell back.
    pub failed: u32,
    /// Each moved connection's first reply by the new carrier, in µs since the word was given, ascending.
    pub first_replies_us: Vec<u64>,
    /// False when the run ended, or another move began, before all had moved and had a reply.
    pub complete: bool,
}

impl Move {
    /// From relief on to the last moved connection's first reply, in ms.
    pub fn moved_ms(&self) -> f64 {
        self.first_replies_us.last().map_or(0.0, |&us| us as f64 / 1000.0)
    }

    /// Adds the connections of another generator (or thread) that obeyed the same word.
    pub fn merge(&mut self, other: &Move) {
        let earlier = self.given_us.min(other.given_us);
        let since = |m: &Move| m.given_us - earlier;
        let (ours, theirs) = (since(self), since(other));
        self.first_replies_us.iter_mut().for_each(|us| *us += ours);
        self.first_replies_us.extend(other.first_replies_us.iter().map(|us| us + theirs));
        self.first_replies_us.sort_unstable();
        self.given_us = earlier;
        self.connections += other.connections;
        self.failed += other.failed;
        self.complete &= other.complete;
    }
}

/// A name that somebody gave to a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// In µs since time zero.
    pub at_us: u64,
    /// The name.
    pub name: String,
}

/// A whole run: the final JSON document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Who was asked, and how: as given to the generator.
    pub server: String,
    /// `memcached`, `redis` or `echo`.
    pub protocol: String,
    /// Connections.
    pub connections: u32,
    /// They are sessions.
    #[serde(default)]
    pub sessions: bool,
    /// A reply later than this is late, in µs.
    pub sla_us: u64,
    /// Width of the bins, in ms.
    pub bin_ms: u64,
    /// Bins that begin earlier than this are left out of `total`, in ms since time zero.
    pub warmup_ms: u64,
    /// Time zero on this machine's monotonic clock, in ns: bins of generators on one machine that were started
    /// with the same time zero merge exactly.
    pub zero_monotonic_ns: u64,
    /// Time zero since 1970, in ms.
    pub zero_unix_ms: u64,
    /// From time zero to the end of arrivals, in ms.
    pub duration_ms: u64,
    /// CPU time of the whole generator from time zero to the end of the drain, in ms.
    pub cpu_ms: f64,
    /// All bins after the warm-up together.
    pub total: Summary,
    /// The same per second of the run, warm-up included.
    pub seconds: Vec<Summary>,
    /// Moves, in the order of their words.
    pub moves: Vec<Move>,
    /// Marks, in order.
    pub marks: Vec<Mark>,
    /// What connections that go to helpers by themselves have decided first, for people.
    #[serde(default)]
    pub decisions: Vec<String>,
    /// The first few things that went wrong, for people.
    pub troubles: Vec<String>,
    /// Everything measured, bin by bin, ascending; empty bins are left out.
    pub bins: Vec<Bin>,
}

/// The most `decisions` a report keeps.
pub const DECISIONS_MAX: usize = 256;
/// The most `troubles` a report keeps.
pub const TROUBLES_MAX: usize = 16;

impl Report {
    /// Adds another generator's run with the same time zero, bin width and SLA. The figures are then what one
    /// generator with all the connections would have reported.
    pub fn merge(&mut self, other: &Report) {
        self.connections += other.connections;
        self.duration_ms = self.duration_ms.max(other.duration_ms);
        self.cpu_ms += other.cpu_ms;
        let mut bins = Bins::default();
        self.bins.iter().chain(&other.bins).for_each(|bin| bins.add(bin));
        self.bins = bins.into_vec();
        for theirs in &other.moves {
            match self.moves.iter_mut().find(|m| m.id == theirs.id && m.target == theirs.target) {
                Some(ours) => ours.merge(theirs),
                None => self.moves.push(theirs.clone()),
            }
        }
        self.marks
            .extend(other.marks.iter().filter(|m| !self.marks.contains(m)).cloned().collect::<Vec<_>>());
        self.marks.sort_by_key(|mark| mark.at_us);
        let room = DECISIONS_MAX.saturating_sub(self.decisions.len());
        self.decisions.extend(other.decisions.iter().take(room).cloned());
        let room = TROUBLES_MAX.saturating_sub(self.troubles.len());
        self.troubles.extend(other.troubles.iter().take(room).cloned());
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

    /// All bins that begin within `from_ms..to_ms`, together.
    pub fn span(&self, from_ms: u64, to_ms: u64) -> Bin {
        let mut sum = Bin { at_ms: from_ms, ..Bin::default() };
        let within = |bin: &&Bin| (from_ms..to_ms).contains(&bin.at_ms);
        self.bins.iter().filter(within).for_each(|bin| sum.merge(bin));
        sum
    }
}

/// Bins by their time.
#[derive(Clone, Debug, Default)]
pub struct Bins {
    bins: BTreeMap<u64, Bin>,
}

impl Bins {
    /// Adds to the bin that begins at the same time.
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

/// One line for a controlling program. Times are in µs since time zero unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Everything is connected (and filled); the run begins now, or at the word `start` with `--hold`.
    Ready {
        /// Connections that are open.
        connections: u32,
    },
    /// Time zero is set.
    Start {
        /// On this machine's monotonic clock, in ns.
        zero_monotonic_ns: u64,
        /// Since 1970, in ms.
        zero_unix_ms: u64,
    },
    /// What came to light since the last such line. To be *added* to what is known of these bins.
    Bins {
        /// When this was gathered.
        at_us: u64,
        /// Connections on a helper now.
        helped_now: u32,
        /// The additions.
        bins: Vec<Bin>,
    },
    /// A command took effect.
    Command {
        /// When it was given.
        at_us: u64,
        /// The command, as `control` reads it.
        command: String,
    },
    /// A move is over: all moved and answered, or superseded, or the run ended.
    Moved {
        /// The move.
        #[serde(rename = "move")]
        moved: Move,
        /// See [`Move::moved_ms`].
        moved_ms: f64,
    },
    /// Connections that go to helpers by themselves have decided something.
    Decided {
        /// When.
        at_us: u64,
        /// What.
        what: String,
    },
    /// Something went wrong; said at most a few times.
    Trouble {
        /// When.
        at_us: u64,
        /// What.
        what: String,
    },
    /// The last line: the report without its bins, which the `bins` lines have already told.
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
    fn two_generators_merge_into_what_one_would_say() {
        let mut one = report(vec![bin(0, 100, 50), bin(900, 300, 50)]);
        let two = report(vec![bin(900, 200, 80), bin(1000, 900, 20)]);
        one.merge(&two);
        assert_eq!(one, {
            let mut bins = vec![bin(0, 100, 50), bin(900, 200, 80), bin(1000, 900, 20)];
            bins[1].merge(&bin(900, 300, 50));
            let mut whole = report(bins);
            whole.connections = 20;
            whole
        });
        assert_eq!(one.total.offered, 200);
        assert_eq!(one.total.p50_us, Some(200));
        assert_eq!(one.seconds.len(), 2);
        assert_eq!(one.span(900, 1000).offered, 130);
    }

    #[test]
    fn percentiles_count_what_got_no_right_reply() {
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
    fn moves_merge_from_the_earliest_word() {
        let part = |given_us, replies: &[u64]| Move {
            id: 0,
            target: Target::Helper,
            given_us,
            pace_us: 100.0,
            connections: 2,
            failed: 0,
            first_replies_us: replies.to_vec(),
            complete: true,
        };
        let mut whole = part(1_000_000, &[10_000, 70_000]);
        whole.merge(&part(1_000_500, &[20_000, 69_800]));
        assert_eq!(whole.first_replies_us, [10_000, 20_500, 70_000, 70_300]);
        assert_eq!((whole.connections, whole.moved_ms()), (4, 70.3));
    }

    #[test]
    fn events_are_read_back_as_written() {
        let event = Event::Bins { at_us: 5, helped_now: 0, bins: vec![bin(100, 5000, 3)] };
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.starts_with(r#"{"event":"bins""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
