//! When a batch is sent (PostMan §4.3).
//!
//! A batch goes when it has reached the size *S*, or when *T* has passed since the previous batch. What *S* and
//! *T* are is a policy's choice, told the size and interval of each batch that went.

mod algorithm1;
mod fixed;

use alloc::boxed::Box;
use core::time::Duration;

pub use algorithm1::{Adaptive, Algorithm1};
pub use fixed::Fixed;

/// Chooses *S* and *T*.
pub trait Policy: core::fmt::Debug + Send {
    /// *S*: a batch of this many bytes goes at once.
    fn size_bytes(&self) -> usize;
    /// *T*: a batch goes when this long has passed since the previous one.
    fn interval(&self) -> Duration;
    /// A batch of `size` bytes went, `elapsed` after the one before.
    fn sent(&mut self, size: usize, elapsed: Duration);
}

/// Names a policy with its settings, for configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`Fixed`].
    Fixed {
        /// *T*.
        delay: Duration,
        /// *S*.
        bytes: usize,
    },
    /// [`Algorithm1`].
    Algorithm1,
    /// [`Adaptive`].
    Adaptive {
        /// Upper bound of *T*.
        max_delay: Duration,
        /// Upper bound of *S*.
        max_bytes: usize,
    },
}

impl PolicyKind {
    /// A policy at its start.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fixed { delay, bytes } => Box::new(Fixed::new(delay, bytes)),
            PolicyKind::Algorithm1 => Box::new(Algorithm1::new()),
            PolicyKind::Adaptive { max_delay, max_bytes } => Box::new(Adaptive::new(max_delay, max_bytes)),
        }
    }
}
