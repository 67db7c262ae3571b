//! What one network thread shows to whoever asks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use spillway_policy::Override;
use spillway_policy::activation::Counters as Decisions;

use crate::carriers::Seen;
use crate::counters::Counters;
use crate::latency::Latencies;

#[derive(Debug)]
pub(crate) struct Part {
    pub counters: Counters,
    pub latencies: Latencies,
    pub seen: Seen,
    relief: Mutex<ReliefPart>,
    /// Local connections of all threads.
    connections: Arc<AtomicI64>,
}

/// How relief stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReliefPart {
    pub stage: &'static str,
    pub word: Override,
    pub counters: Decisions,
    pub helpers: Vec<SocketAddr>,
}

impl Part {
    pub fn new(now: Instant, connections: Arc<AtomicI64>) -> Part {
        Part {
            counters: Counters::default(),
            latencies: Latencies::new(now),
            seen: Seen::default(),
            relief: Mutex::default(),
            connections,
        }
    }

    pub fn show(&self, relief: ReliefPart) {
        *self.relief.lock().unwrap_or_else(PoisonError::into_inner) = relief;
    }

    pub fn relief(&self) -> ReliefPart {
        self.relief.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn count_connection(&self, more: i64) {
        self.connections.fetch_add(more, Ordering::Relaxed);
    }

    /// Local connections of all threads.
    pub fn connections(&self) -> u64 {
        u64::try_from(self.connections.load(Ordering::Relaxed)).unwrap_or(0)
    }
}
