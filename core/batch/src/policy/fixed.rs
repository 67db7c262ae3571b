use core::time::Duration;

use super::{Policy, SentBatch};

/// A policy whose batch size *S* and interval *T* never change: a link sends at most one batch in each interval, except
/// that a batch of *S* bytes leaves at once. The interval starts with the previous batch, not with the first waiting
/// message. Replies, credit and closes do not make a batch leave earlier.
#[derive(Clone, Debug)]
pub struct Fixed {
    interval: Duration,
    size_bytes: usize,
}

impl Fixed {
    /// `interval` is *T*, `size_bytes` is *S*.
    pub fn new(interval: Duration, size_bytes: usize) -> Fixed {
        Fixed { interval, size_bytes }
    }

    /// Batches leave at once.
    pub fn immediate() -> Fixed {
        Fixed::new(Duration::ZERO, 0)
    }
}

impl Policy for Fixed {
    fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn sent(&mut self, _batch: SentBatch) {}
}
