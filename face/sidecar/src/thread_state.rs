//! The state of one network thread that other threads may read.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use spillway_policy::Override;
use spillway_policy::activation::Counters as Decisions;

use crate::carriers::CarrierHistory;
use crate::counters::Counters;
use crate::latency::Latencies;

#[derive(Debug)]
pub(crate) struct ThreadState {
    pub counters: Counters,
    pub latencies: Latencies,
    pub carrier_history: CarrierHistory,
    relief: Mutex<ReliefState>,
    connections_of_all_threads: Arc<AtomicI64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReliefState {
    pub stage: &'static str,
    pub relief_override: Override,
    pub counters: Decisions,
    pub helpers: Vec<SocketAddr>,
}

impl ThreadState {
    pub fn new(now: Instant, connections: Arc<AtomicI64>) -> ThreadState {
        ThreadState {
            counters: Counters::default(),
            latencies: Latencies::new(now),
            carrier_history: CarrierHistory::default(),
            relief: Mutex::default(),
            connections_of_all_threads: connections,
        }
    }

    pub fn set_relief(&self, relief: ReliefState) {
        *self.relief.lock().unwrap_or_else(PoisonError::into_inner) = relief;
    }

    pub fn relief(&self) -> ReliefState {
        self.relief.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds to the number of connections of all threads; a negative number subtracts.
    pub fn add_connections(&self, number: i64) {
        self.connections_of_all_threads.fetch_add(number, Ordering::Relaxed);
    }

    pub fn connections_of_all_threads(&self) -> u64 {
        u64::try_from(self.connections_of_all_threads.load(Ordering::Relaxed)).unwrap_or(0)
    }
}
