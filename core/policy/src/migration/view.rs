//! What a rule sees at a look.

use alloc::vec::Vec;

use super::connections::{ConnectionId, Movable};
use super::decision::{Reason, Target};
use super::peers::Candidate;

/// Maximum number of moves that are planned at one look: over looks of 10 ms, six times the default limit of 1,000 moves a
/// second.
pub(crate) const PLANNED_MAX: usize = 64;

/// The state of a server and its peers at a look. Loads are shares of the capacity.
pub(crate) struct View<'a> {
    /// The server's load.
    pub load: f64,
    /// The server's demand: the rates of its connections times the cost of a request. Unlike CPU use it exceeds 1 when the
    /// server cannot keep up, and unlike the load it does not contain the backlog, which the server works off without moves.
    pub demand: f64,
    /// Mean of this server's demand and the loads of the other servers.
    pub mean: f64,
    /// Number of other servers in the mean.
    pub others: u32,
    /// CPU time of one request, in seconds of the capacity.
    pub cost_s: f64,
    /// The override is *on*: thresholds do not count.
    pub is_forced: bool,
    /// Servers that can be targets.
    pub candidates: Vec<Candidate>,
    /// Lists the connections that may move. This visits each connection, so rules call it only when they need it.
    pub movable: &'a dyn Fn() -> Vec<Movable>,
}

/// A move that the limits may still delay or forbid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Planned {
    pub connection: ConnectionId,
    pub target: Target,
    pub reason: Reason,
}
