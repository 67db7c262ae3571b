//! A connection: its arrivals, and where it is.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::Time;

use super::plan::{Phase, SERVICE_MEAN};
use super::server::Job;
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Connection {
    /// The server that has the connection, or had it before the move that is under way.
    pub server: usize,
    /// The target of a move that has been decided.
    pub leaves_for: Option<usize>,
    /// Requests that wait for the target's import; `None`: the connection is at its server.
    pub in_transit: Option<VecDeque<Job>>,
    /// Draws the arrivals and the CPU times, the same with each policy.
    arrivals: Rng,
}

impl Connection {
    pub fn new(server: usize, arrivals: Rng) -> Connection {
        Connection { server, leaves_for: None, in_transit: None, arrivals }
    }

    /// When the next request after `now` is due; `None`: after the last phase.
    pub fn next_arrival(&mut self, now: Time, phases: &[Phase], index: usize) -> Option<Time> {
        let mut left = self.exponential();
        let mut at = now;
        for phase in phases.iter().filter(|phase| now < phase.until) {
            let per_s = phase.rates_per_s[index];
            let expected = phase.until.since(at).as_secs_f64() * per_s;
            if left < expected {
                return Some(at + Duration::from_secs_f64(left / per_s));
            }
            left -= expected;
            at = phase.until;
        }
        None
    }

    /// Draws the CPU time of a request.
    pub fn draw_service(&mut self) -> Duration {
        SERVICE_MEAN.mul_f64(self.exponential())
    }

    /// An exponential number with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.arrivals.unit()).ln()
    }
}
