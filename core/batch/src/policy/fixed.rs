//! *S* and *T* stay as configured.

use core::time::Duration;

use super::{Policy, Sent};

/// Constant *S* and *T*: a link sends one batch for each *T* at most, and more only if each of them holds *S* bytes. *T*
/// runs from batch to batch, however long a message has waited; replies, credit and closes hasten nothing.
#[derive(Clone, Debug)]
pub struct Fixed {
    delay: Duration,
    bytes: usize,
}

impl Fixed {
    /// *T* and *S*.
    pub fn new(delay: Duration, bytes: usize) -> Fixed {
        Fixed { delay, bytes }
    }

    /// Nothing waits.
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
