//! A process: its activation policy and its connections.

use std::collections::{BTreeMap, VecDeque};

use spillway_policy::{Activation, Member};
use spillway_transport::Time;

use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Process {
    pub activation: Activation,
    pub connections: BTreeMap<Member, u32>,
    pub wake_at: Option<Time>,
    /// Number of the policy's back-offs when it was last driven.
    pub back_offs: u64,
}

/// The host to which a connection sends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CarrierHost {
    Server,
    Helper(u16),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub process: u32,
    pub member: Member,
    pub epoch: u32,
    pub carrier_host: CarrierHost,
    /// Requests wait, because the new carrier is not attached yet.
    pub is_moving: bool,
    /// Due times of the requests that wait.
    pub backlog: VecDeque<Time>,
    /// Number of the request in flight, and its due time.
    pub in_flight: Option<(u64, Time)>,
    pub next_request: u64,
    /// Draws the arrivals. The draws are the same with and without relief.
    pub arrivals: Rng,
}

impl Connection {
    /// Due time of the oldest unanswered request; `None` if all are answered.
    pub fn waits_since(&self) -> Option<Time> {
        self.in_flight.map(|(_, due_at)| due_at).or(self.backlog.front().copied())
    }
}
