//! Paced moves of connections between the server and helpers. A connection moves while no reply is pending.

use std::cmp::Reverse;
use std::time::Duration;

use super::Worker;
use super::mover::Mover;
use crate::engine::Engine;
use crate::protocol::Protocol;
use crate::report::{Move, Target};

/// Limit of the time for which a move holds requests back: several times the duration of a move under load.
const HOLD_NS: u64 = 500_000_000;

impl<P: Protocol, E: Engine> Worker<P, E> {
    pub(super) fn begin_move(
        &mut self,
        id: u32,
        target: Target,
        given_ns: u64,
        pace: Duration,
        count: Option<u32>,
    ) {
        self.end_move();
        let threads = self.setup.config.threads;
        let not_on_target =
            self.connections.iter().filter(|connection| connection.target != target).count() as u32;
        let share = |count: u32| count / threads + u32::from(self.setup.index < count % threads);
        let connections = count.map_or(not_on_target, share).min(not_on_target);
        // All threads together start one connection per `pace`.
        let pace_ns = u64::try_from(pace.as_nanos()).unwrap_or(u64::MAX).saturating_mul(threads.into());
        self.mover = Some(Mover {
            report: Move {
                id,
                target,
                given_us: given_ns / 1000,
                pace_us: pace.as_nanos() as f64 / 1000.0,
                connections,
                failed: 0,
                first_replies_us: Vec::with_capacity(connections as usize),
                complete: false,
            },
            given_ns,
            pace_ns,
            next_start_ns: given_ns,
            first: (self.round_robin_index as usize + 1) % self.connections.len(),
            scanned: 0,
            not_started: connections,
            awaiting_first_reply: 0,
        });
        self.end_move_if_complete();
    }

    /// Time at which the next connection starts to move; `None` if all have started.
    pub(super) fn next_move_ns(&self) -> Option<u64> {
        self.mover.as_ref().filter(|mover| mover.not_started > 0).map(|mover| mover.next_start_ns)
    }

    /// Starts the moves that are due. A connection with a pending reply moves after the reply.
    pub(super) fn start_moves(&mut self, now_ns: u64) {
        while let Some(mover) =
            self.mover.as_mut().filter(|mover| mover.not_started > 0 && mover.next_start_ns <= now_ns)
        {
            let (target, count) = (mover.report.target, self.connections.len());
            let mut remaining =
                (mover.scanned..count).map(|scanned| (scanned, (mover.first + scanned) % count));
            let Some((scanned, index)) =
                remaining.find(|&(_, index)| self.connections[index].target != target)
            else {
                mover.not_started = 0; // the other connections were lost, and reopened on the target
                break;
            };
            mover.connection_started(scanned + 1);
            self.connections[index].target = target;
            self.connections[index].awaits_first_reply = true;
            self.connections[index].hold_until_ns = now_ns + HOLD_NS;
            self.timers.push(Reverse((now_ns + HOLD_NS, index as u32)));
            // Prepares the new carrier, even while a reply is pending.
            self.advance(index);
        }
        self.end_move_if_complete();
    }

    /// Counts a reply if it is the connection's first on the new carrier.
    pub(super) fn count_first_reply(&mut self, index: usize, now_ns: u64) {
        let connection = &mut self.connections[index];
        let Some(mover) = self.mover.as_mut().filter(|mover| mover.report.target == connection.carrier)
        else {
            return;
        };
        if std::mem::take(&mut connection.awaits_first_reply) {
            mover.connection_moved(now_ns);
            self.end_move_if_complete();
        }
    }

    /// Counts a connection whose move has failed, or that moves back.
    pub(super) fn move_failed(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if std::mem::take(&mut connection.awaits_first_reply)
            && let Some(mover) = &mut self.mover
        {
            mover.connection_failed();
            self.end_move_if_complete();
        }
    }

    fn end_move_if_complete(&mut self) {
        if self.mover.as_ref().is_some_and(Mover::has_ended) {
            self.end_move();
        }
    }

    pub(super) fn end_move(&mut self) {
        if let Some(mover) = self.mover.take() {
            self.connections.iter_mut().for_each(|connection| connection.awaits_first_reply = false);
            self.notify(super::FromWorker::Moved(mover.into_report()));
        }
    }
}
