//! A sidecar's counters. Each network thread has its own counters; readers add up those of all threads.

use std::sync::atomic::{AtomicU64, Ordering};

use spillway_client::session::CarrierLoss;
use spillway_requests::StopReason;

/// A counter or gauge that one thread writes and all threads may read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    pub fn subtract(&self, number: u64) {
        self.0.fetch_sub(number, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct ByReason<const N: usize> {
    names: &'static [&'static str; N],
    counts: [Count; N],
}

impl<const N: usize> ByReason<N> {
    fn new(names: &'static [&'static str; N]) -> ByReason<N> {
        ByReason { names, counts: std::array::from_fn(|_| Count::default()) }
    }

    pub fn add(&self, reason: impl Reason) {
        if let Some(count) = self.counts.get(reason.index()) {
            count.add(1);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.names.iter().zip(&self.counts).map(|(name, count)| (*name, count.value()))
    }
}

/// A reason that a [`ByReason`] counts.
pub(crate) trait Reason {
    /// The index of this reason's name in the list of names.
    fn index(&self) -> usize;
}

/// Why a local connection was rejected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// `max_connections` is reached.
    Full,
    /// `max_memory` is used up.
    Memory,
    /// The client's address is not allowed.
    Address,
    /// The required PROXY header is missing or malformed.
    Proxy,
    /// The host has no descriptors left.
    Descriptors,
}

pub(crate) const REFUSALS: [&str; 5] = ["full", "memory", "address", "proxy", "descriptors"];

impl Reason for Refusal {
    fn index(&self) -> usize {
        *self as usize
    }
}

/// How a local connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Client and server have finished sending.
    InOrder,
    /// The client has reset the connection, or closed it before its replies arrived.
    Client,
    /// The server reset the session.
    Server,
    Refused,
    /// The server does not have the session any more, for instance after a restart.
    Gone,
    /// The session found no carrier in time.
    NoCarrier,
    /// The sidecar ended.
    Shutdown,
    /// Memory was scarce, and the client did not read.
    Memory,
}

pub(crate) const ENDINGS: [&str; 8] =
    ["in_order", "client_reset", "server_reset", "refused", "gone", "no_carrier", "shutdown", "memory"];

impl Reason for Ending {
    fn index(&self) -> usize {
        *self as usize
    }
}

/// Why a session moved to another carrier.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MoveReason {
    /// The previous carrier failed.
    Lost,
    /// The previous carrier drains.
    Drain,
    /// The server asked the session to move: for a release, or for an override.
    AskedByServer,
    /// The relief policy moved the session.
    Relief,
}

pub(crate) const MOVES: [&str; 4] = ["lost", "drain", "sent_away", "relief"];

impl Reason for MoveReason {
    fn index(&self) -> usize {
        *self as usize
    }
}

impl MoveReason {
    pub fn of(why: &CarrierLoss) -> MoveReason {
        match why {
            CarrierLoss::Drain => MoveReason::Drain,
            CarrierLoss::AskedToMove => MoveReason::AskedByServer,
            CarrierLoss::LeftOnRequest => MoveReason::Relief,
            _ => MoveReason::Lost,
        }
    }
}

pub(crate) const LOSSES: [&str; 7] = ["socket", "closed", "silent", "link", "refused", "drain", "asked"];

impl Reason for &CarrierLoss {
    fn index(&self) -> usize {
        match self {
            CarrierLoss::Socket(_) => 0,
            CarrierLoss::Closed => 1,
            CarrierLoss::Silent(_) => 2,
            CarrierLoss::Link(_) | CarrierLoss::TooOld | CarrierLoss::Carrier(_) => 3,
            CarrierLoss::Refused(_) => 4,
            CarrierLoss::Drain | CarrierLoss::AskedToMove => 5,
            CarrierLoss::LeftOnRequest => 6,
        }
    }
}

impl Reason for StopReason {
    fn index(&self) -> usize {
        StopReason::index(*self)
    }
}

#[derive(Debug)]
pub(crate) struct Counters {
    pub accepted: Count,
    /// Accepted connections with a load balancer's PROXY header.
    pub with_proxy_header: Count,
    pub refused: ByReason<5>,
    pub ended: ByReason<8>,
    /// Local connections now.
    pub connections: Count,
    /// Local connections without a carrier now.
    pub waiting: Count,
    /// Local connections that a helper carries now.
    pub helped: Count,
    pub buffered_bytes: Count,
    /// 1 while memory is scarce.
    pub is_scarce: Count,
    /// Clients paused because memory was scarce and they did not read their replies.
    pub paused: Count,
    pub moves: ByReason<4>,
    pub losses: ByReason<7>,
    pub request_bytes: Count,
    pub reply_bytes: Count,
    pub replies: Count,
    /// Replies whose latency does not depend on the server only, such as those of blocking commands.
    pub unmeasured: Count,
    pub measuring_given_up: ByReason<8>,
    pub cpu_ns: Count,
    /// Turns of the event loop; a thread that hangs makes none.
    pub turns: Count,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            accepted: Count::default(),
            with_proxy_header: Count::default(),
            refused: ByReason::new(&REFUSALS),
            ended: ByReason::new(&ENDINGS),
            connections: Count::default(),
            waiting: Count::default(),
            helped: Count::default(),
            buffered_bytes: Count::default(),
            is_scarce: Count::default(),
            paused: Count::default(),
            moves: ByReason::new(&MOVES),
            losses: ByReason::new(&LOSSES),
            request_bytes: Count::default(),
            reply_bytes: Count::default(),
            replies: Count::default(),
            unmeasured: Count::default(),
            measuring_given_up: ByReason::new(&StopReason::LABELS),
            cpu_ns: Count::default(),
            turns: Count::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_reason_of_each_list_has_its_name() {
        let counters = Counters::default();
        counters.refused.add(Refusal::Descriptors);
        counters.ended.add(Ending::Memory);
        counters.moves.add(MoveReason::Relief);
        counters.losses.add(&CarrierLoss::LeftOnRequest);
        counters.measuring_given_up.add(StopReason::TooDeep);
        let last = |name, mut all: Vec<(&'static str, u64)>| assert_eq!(all.pop(), Some((name, 1)));
        last("descriptors", counters.refused.iter().collect());
        last("memory", counters.ended.iter().collect());
        last("relief", counters.moves.iter().collect());
        last("asked", counters.losses.iter().collect());
        last("too_deep", counters.measuring_given_up.iter().collect());
    }
}
