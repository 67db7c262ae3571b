//! A process: its connections, and its activation policy.

use std::collections::{BTreeMap, VecDeque};

use spillway_policy::{Activation, Member};
use spillway_transport::Time;

use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Process {
    pub activation: Activation,
    pub connections: BTreeMap<Member, u32>,
    pub wake_at: Option<Time>,
    /// Back-offs counted so far.
    pub back_offs: u64,
}

/// The present target of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Server,
    Helper(u16),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub process: u32,
    pub member: Member,
    pub epoch: u32,
    pub place: Place,
    /// The carrier is not attached yet: requests wait.
    pub is_moving: bool,
    /// Due times of the requests that wait.
    pub backlog: VecDeque<Time>,
    /// The request in flight, and when it was due.
    pub in_flight: Option<(u64, Time)>,
    pub next_request: u64,
    /// Draws the arrivals: the same in every run of a seed.
    pub arrivals: Rng,
}

impl Connection {
    /// When the oldest unanswered request was due.
    pub fn waits_since(&self) -> Option<Time> {
        self.in_flight.map(|(_, intended)| intended).or(self.backlog.front().copied())
    }
}
