//! What the load generators have reported so far, merged over all generators.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spillway_load::report::{Bin, Bins, Event, Move, Report};

/// Limit of the problems kept for [`Progress::problems`]; later problems are dropped.
const PROBLEMS_MAX: usize = 16;

/// [`Progress`], shared by the threads that read the generators' output and the thread that waits for it.
#[derive(Debug)]
pub(super) struct SharedProgress {
    progress: Mutex<Progress>,
    /// Notified after each change of `progress`.
    changed: Condvar,
}

impl SharedProgress {
    /// The progress of `count` generators that have reported nothing yet.
    pub(super) fn new(count: usize) -> SharedProgress {
        SharedProgress { progress: Mutex::new(Progress::new(count)), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock until the next change, or for `timeout`. May also return early.
    pub(super) fn wait_for_change<'a>(
        &self,
        progress: MutexGuard<'a, Progress>,
        timeout: Duration,
    ) -> MutexGuard<'a, Progress> {
        self.changed.wait_timeout(progress, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads the events of one generator until it closes its output.
    pub(super) fn read_events(&self, out: ChildStdout, index: usize) {
        // Lowest priority: this thread must not take CPU time from the generator.
        let _ = rustix::process::nice(19);
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { break };
            let event = serde_json::from_str(&line);
            let mut progress = self.lock();
            match event {
                Ok(event) => progress.handle_event(event, index),
                Err(why) => {
                    progress.add_problem(format!("cannot parse an event of a load generator: {why}"));
                }
            }
            drop(progress);
            self.changed.notify_all();
        }
        self.lock().ended += 1;
        self.changed.notify_all();
    }
}

/// Events of all generators, merged.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Number of generators whose connections are established.
    ready: usize,
    /// Number of generators that have closed their output.
    ended: usize,
    bins: Bins,
    /// Number of requests due so far.
    offered: u64,
    /// Number of requests that are answered, lost, dropped, or given up unsent.
    settled: u64,
    answered: u64,
    /// Connections on a helper, by generator.
    helped_now: Vec<u32>,
    /// Moves, each with the number of generators that have finished it.
    moves: Vec<(Move, usize)>,
    reports: Vec<Report>,
    problems: Vec<String>,
}

impl Progress {
    fn new(count: usize) -> Progress {
        Progress { helped_now: vec![0; count], ..Progress::default() }
    }

    /// Number of generators.
    fn count(&self) -> usize {
        self.helped_now.len()
    }

    /// Number of generators whose connections are established.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Number of generators that have closed their output.
    pub(super) fn ended(&self) -> usize {
        self.ended
    }

    /// Whether all generators have closed their output.
    pub(super) fn has_ended(&self) -> bool {
        self.ended == self.count()
    }

    /// Whether all requests that are due so far are answered, lost, dropped, or given up unsent.
    pub(super) fn is_settled(&self) -> bool {
        self.settled >= self.offered
    }

    /// The bins that start within `from_ms..to_ms`.
    pub(super) fn bins(&self, from_ms: u64, to_ms: u64) -> Vec<Bin> {
        self.bins.iter().filter(|bin| (from_ms..to_ms).contains(&bin.at_ms)).cloned().collect()
    }

    /// Number of replies received.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    /// Connections that are on a helper now.
    pub(super) fn helped_now(&self) -> u32 {
        self.helped_now.iter().sum()
    }

    /// The failures, at most the first [`PROBLEMS_MAX`].
    pub(super) fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    /// Number of moves that any generator has finished.
    pub(super) fn moves_seen(&self) -> usize {
        self.moves.len()
    }

    /// The move with this index, if all generators have finished it.
    pub(super) fn finished_move(&self, index: usize) -> Option<&Move> {
        let (moved, finished) = self.moves.get(index)?;
        (*finished == self.count()).then_some(moved)
    }

    /// Moves that all generators have finished, in order.
    pub(super) fn finished_moves(&self) -> Vec<Move> {
        (0..self.moves.len()).filter_map(|index| self.finished_move(index)).cloned().collect()
    }

    /// The merged report of all generators; `None` if one of them has not reported.
    pub(super) fn into_report(self) -> Option<Report> {
        if self.reports.len() != self.count() {
            return None;
        }
        let mut merged: Option<Report> = None;
        for report in &self.reports {
            match &mut merged {
                Some(merged) => merged.merge(report),
                None => merged = Some(report.clone()),
            }
        }
        let mut merged = merged.unwrap_or_default();
        merged.bins = self.bins.into_vec();
        merged.summarize();
        Some(merged)
    }

    fn handle_event(&mut self, event: Event, index: usize) {
        match event {
            Event::Ready { .. } => self.ready += 1,
            Event::Bins { helped_now, bins, .. } => {
                if let Some(helped) = self.helped_now.get_mut(index) {
                    *helped = helped_now;
                }
                for bin in &bins {
                    self.offered += bin.offered;
                    self.settled += bin.dropped + bin.unsent + bin.direct.sent() + bin.helped.sent();
                    self.answered += bin.direct.answered + bin.helped.answered;
                    self.bins.add(bin);
                }
            }
            Event::Moved { moved, .. } => {
                match self.moves.iter_mut().find(|(m, _)| m.id == moved.id && m.target == moved.target) {
                    Some((known, finished)) => {
                        known.merge(&moved);
                        *finished += 1;
                    }
                    None => self.moves.push((moved, 1)),
                }
            }
            Event::Trouble { what, .. } => self.add_problem(what),
            Event::End { report } => self.reports.push(*report),
            // The final report contains the sessions' policy decisions.
            Event::Start { .. } | Event::Command { .. } | Event::Decided { .. } => {}
        }
    }

    fn add_problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_load::report::Target;

    fn bin(at_ms: u64, offered: u64, answered: u64) -> Bin {
        let mut bin = Bin { at_ms, offered, ..Bin::default() };
        bin.direct.answered = answered;
        bin
    }

    #[test]
    fn events_of_several_generators_are_merged() {
        let mut progress = Progress::new(2);
        progress.handle_event(Event::Bins { at_us: 0, helped_now: 3, bins: vec![bin(100, 10, 4)] }, 0);
        progress.handle_event(
            Event::Bins { at_us: 0, helped_now: 4, bins: vec![bin(100, 10, 9), bin(200, 1, 0)] },
            1,
        );
        progress.handle_event(Event::Bins { at_us: 0, helped_now: 5, bins: vec![bin(100, 0, 6)] }, 0);
        assert_eq!(
            (progress.offered, progress.settled, progress.helped_now.iter().sum::<u32>()),
            (21, 19, 9)
        );
        assert_eq!(progress.bins.at(100).direct.answered, 19);
        let moved = |replies: &[u64]| Move {
            id: 0,
            target: Target::Helper,
            given_us: 5,
            pace_us: 1.0,
            connections: 1,
            failed: 0,
            first_replies_us: replies.to_vec(),
            complete: true,
        };
        progress.handle_event(Event::Moved { moved: moved(&[7]), moved_ms: 0.0 }, 0);
        progress.handle_event(Event::Moved { moved: moved(&[9]), moved_ms: 0.0 }, 1);
        assert_eq!((progress.moves.len(), progress.moves[0].1), (1, 2));
        assert_eq!(progress.moves[0].0.first_replies_us, [7, 9]);
    }
}
