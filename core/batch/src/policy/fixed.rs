use core::time::Duration;

use super::{Policy, Sent};

/// Constant *S* and *T*: a link sends at most one batch for each *T*, and more only if each of them holds *S* bytes.
/// *T* runs from batch to batch, however long a message has waited; replies, credit and closes do not shorten it.
#[derive(Clone, Debug)]
pub struct Fixed {
    delay: Duration,
    bytes: usize,
}

impl Fixed {
    /// `delay` is *T*, `bytes` is *S*.
    pub fn new(delay: Duration, bytes: usize) -> Fixed {
        Fixed { delay, bytes }
    }

    /// Batches leave at once.
    pub fn immediate() -> Fixed {
        Fixed::new(Duration::ZERO, 0)
    }
}

impl Policy for Fixed {
    fn size_bytes(&self) -> usize {
        self.bytes
    }

    fn interval(&self) -> Duration {
        self.delay
    }

    fn sent(&mut self, _batch: Sent) {}
}
