//! When a batch is sent (PostMan §4.3).
//!
//! A batch goes when it has reached the size *S*, or when *T* has passed since the previous batch. What *S* and
//! *T* are is a policy's choice, told the size and interval of each batch that went. A policy may also choose the moment
//! itself, by what it is told of messages.

mod algorithm1;
mod deadline;
mod fixed;
mod following;

use alloc::boxed::Box;
use core::time::Duration;

use spillway_transport::Time;

pub use algorithm1::{Adaptive, Algorithm1};
pub use deadline::Deadline;
pub use fixed::Fixed;
pub use following::Following;

/// A batch that went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When.
    pub at: Time,
    /// *s*: its size, control messages included.
    pub bytes: usize,
    /// *t*: how long after the one before; none for a link's first.
    pub elapsed: Option<Duration>,
}

/// A batch in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Data messages.
    pub messages: u64,
    /// Of those, from clients that were not answered since the last batch went.
    pub fresh: u64,
    /// Batches that have gone and that no reply has come to, nor to a later one.
    pub unanswered: u64,
}

/// Chooses *S* and *T*, or the moment itself.
pub trait Policy: core::fmt::Debug + Send {
    /// *S*: a batch of this many bytes goes at once.
    fn size_bytes(&self) -> usize;
    /// *T*: a batch goes when this long has passed since the previous one.
    fn interval(&self) -> Duration;
    /// When the batch in the making goes if it stays below *S*; none: at once. It was first seen waiting at
    /// `waiting_since`, if it was seen, and the one before went at `last_batch`.
    fn due(&self, last_batch: Option<Time>, waiting_since: Option<Time>) -> Option<Time> {
        let _ = waiting_since;
        last_batch.map(|last| last + self.interval())
    }
    /// What the batch in the making holds at the end of a turn. Told before [`due`](Self::due) is asked.
    fn gathered(&mut self, now: Time, batch: Gathered) {
        let _ = (now, batch);
    }
    /// A batch went.
    fn sent(&mut self, batch: Sent);
    /// The first reply to a batch came this long after it went. Told of batches in their order, not of all.
    fn answered(&mut self, after: Duration) {
        let _ = after;
    }
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
    /// [`Deadline`].
    Deadline {
        /// Upper bound of each message's waiting time.
        max_delay: Duration,
        /// A batch of this size goes at once.
        max_bytes: usize,
    },
    /// [`Following`].
    Following {
        /// Upper bound of each message's waiting time.
        max_delay: Duration,
        /// A batch of this size goes at once.
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
            PolicyKind::Deadline { max_delay, max_bytes } => Box::new(Deadline::new(max_delay, max_bytes)),
            PolicyKind::Following { max_delay, max_bytes } => Box::new(Following::new(max_delay, max_bytes)),
        }
    }
}
