//! Moves of connections between the server and a helper: paced, each at a moment without a pending reply.

use std::cmp::Reverse;
use std::time::Duration;

use super::Worker;
use super::mover::Mover;
use crate::protocol::Protocol;
use crate::report::{Move, Target};

/// How long a connection sends nothing for the sake of its move: several times what a move takes under load.
const HOLD_NS: u64 = 500_000_000;

impl<P: Protocol> Worker<P> {
    pub(super) fn begin_move(
        &mut self,
        id: u32,
        target: Target,
        given_ns: u64,
        pace: Duration,
        count: Option<u32>,
    ) {
        self.end_move();
        let threads = self.setting.config.threads;
        let elsewhere = self.connections.iter().filter(|c| c.wanted != target).count() as u32;
        let share = |count: u32| count / threads + u32::from(self.setting.index < count % threads);
        let left = count.map_or(elsewhere, share).min(elsewhere);
        // Every thread tells one connection per pace × threads.
        let pace_ns = u64::try_from(pace.as_nanos()).unwrap_or(u64::MAX).saturating_mul(threads.into());
        self.mover = Some(Mover {
            report: Move {
                id,
                target,
                given_us: given_ns / 1000,
                pace_us: pace.as_nanos() as f64 / 1000.0,
                connections: left,
                failed: 0,
                first_replies_us: Vec::with_capacity(left as usize),
                complete: false,
            },
            given_ns,
            pace_ns,
            next_ns: given_ns,
            first: (self.turn as usize + 1) % self.connections.len(),
            passed: 0,
            left,
            awaited: 0,
        });
        self.end_move_if_over();
    }

    /// When the next connection is to be told, if one is.
    pub(super) fn next_move_ns(&self) -> Option<u64> {
        self.mover.as_ref().filter(|mover| mover.left > 0).map(|mover| mover.next_ns)
    }

    /// Tells the connections whose time has come. One that awaits a reply moves when it has it.
    pub(super) fn start_moves(&mut self, now_ns: u64) {
        while let Some(mover) = self.mover.as_mut().filter(|m| m.left > 0 && m.next_ns <= now_ns) {
            let (target, count) = (mover.report.target, self.connections.len());
            let mut later = (mover.passed..count).map(|passed| (passed, (mover.first + passed) % count));
            let Some((passed, index)) = later.find(|&(_, index)| self.connections[index].wanted != target)
            else {
                mover.left = 0; // the others were lost, and are where they were to go
                break;
            };
            mover.told(passed + 1);
            self.connections[index].wanted = target;
            self.connections[index].awaited = true;
            self.connections[index].hold_until_ns = now_ns + HOLD_NS;
            self.timers.push(Reverse((now_ns + HOLD_NS, index as u32)));
            // The new carrier is made ready while the pending reply is awaited.
            self.go_on(index);
        }
        self.end_move_if_over();
    }

    /// A reply came: perhaps the first by the new carrier.
    pub(super) fn first_reply(&mut self, index: usize, now_ns: u64) {
        let connection = &mut self.connections[index];
        let Some(mover) = self.mover.as_mut().filter(|m| m.report.target == connection.carrier) else {
            return;
        };
        if std::mem::take(&mut connection.awaited) {
            mover.answered(now_ns);
            self.end_move_if_over();
        }
    }

    /// This connection stays where it is, or is on its way back.
    pub(super) fn move_failed(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if std::mem::take(&mut connection.awaited)
            && let Some(mover) = &mut self.mover
        {
            mover.failed();
            self.end_move_if_over();
        }
    }

    fn end_move_if_over(&mut self) {
        if self.mover.as_ref().is_some_and(Mover::is_over) {
            self.end_move();
        }
    }

    /// Reports the move under way, finished or not.
    pub(super) fn end_move(&mut self) {
        if let Some(mover) = self.mover.take() {
            self.connections.iter_mut().for_each(|c| c.awaited = false);
            self.tell(super::FromWorker::Moved(mover.into_report()));
        }
    }
}
