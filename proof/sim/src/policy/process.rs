//! A process: its connections, and what it decides for them.

use std::collections::{BTreeMap, VecDeque};

use spillway_policy::{Activation, Member};
use spillway_transport::Time;

use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Process {
    pub activation: Activation,
    pub connections: BTreeMap<Member, u32>,
    /// The earliest time at which it is woken.
    pub wakes_at: Option<Time>,
    /// Failures that were seen.
    pub back_offs: u64,
}

/// Where a connection's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Server,
    Helper(u16),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub process: u32,
    pub member: Member,
    /// Of its carrier.
    pub epoch: u32,
    pub place: Place,
    /// The carrier is not there yet: nothing is sent.
    pub is_moving: bool,
    /// When requests were meant to be sent that wait their turn.
    pub backlog: VecDeque<Time>,
    /// The request that is under way, and when it was meant to be sent.
    pub asked: Option<(u64, Time)>,
    pub next_request: u64,
    /// Arrivals, the same in every run of a seed.
    pub arrivals: Rng,
}

impl Connection {
    /// When the oldest request was meant to be sent that has no reply.
    pub fn waits_since(&self) -> Option<Time> {
        self.asked.map(|(_, intended)| intended).or(self.backlog.front().copied())
    }
}
