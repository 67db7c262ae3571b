//! When a batch is sent (PostMan §4.3).
//!
//! A batch leaves when it has reached the size *S*, or when *T* has passed since the previous batch. A policy chooses
//! *S* and *T* from the size and interval of each batch sent. It may also choose the time itself, from the gathered
//! messages.

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

/// A batch that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentBatch {
    /// When it was sent.
    pub at: Time,
    /// *s*: its size, control messages included.
    pub bytes: usize,
    /// *t*: time since the previous batch; `None` for a link's first.
    pub elapsed: Option<Duration>,
}

/// The present batch, which is not sent yet, and unanswered batches before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatheredMessages {
    /// Data messages in the batch.
    pub messages: u64,
    /// Messages in the batch that do not follow a reply: their clients have received none since the last batch was sent.
    pub fresh: u64,
    /// Batches sent for which neither a reply nor a reply to a later batch has arrived.
    pub unanswered: u64,
}

/// Decides when batches are sent.
pub trait Policy: core::fmt::Debug + Send {
    /// *S*: a batch of this many bytes leaves at once.
    fn size_bytes(&self) -> usize;
    /// *T*: a batch leaves when this long has passed since the previous one.
    fn interval(&self) -> Duration;
    /// When the present batch leaves if it stays below *S*; `None`: at once. `last_batch`: when the previous batch was
    /// sent. `waiting_since`: end of the first turn that did not send the present batch's messages.
    fn due(&self, last_batch: Option<Time>, waiting_since: Option<Time>) -> Option<Time> {
        let _ = waiting_since;
        last_batch.map(|last| last + self.interval())
    }
    /// Reports the present batch's contents at the end of a turn, before [`due`](Self::due) is called.
    fn gathered(&mut self, now: Time, batch: GatheredMessages) {
        let _ = (now, batch);
    }
    /// A batch was sent.
    fn sent(&mut self, batch: SentBatch);
    /// The first reply to a batch arrived this long after the batch was sent. Calls follow the order of batches;
    /// batches whose reply cannot be recognised are left out.
    fn answered(&mut self, after: Duration) {
        let _ = after;
    }
}

/// A policy with its settings, for configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`Fixed`].
    Fixed {
        /// *T*: time between batches.
        interval: Duration,
        /// *S*: a batch of this many bytes leaves at once.
        size_bytes: usize,
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
        /// A batch of this many bytes leaves at once.
        max_bytes: usize,
    },
    /// [`Following`].
    Following {
        /// Upper bound of each message's waiting time; four times this while the server is busy.
        max_delay: Duration,
        /// A batch of this many bytes leaves at once.
        max_bytes: usize,
    },
}

impl PolicyKind {
    /// Makes a policy in its initial state.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fixed { interval, size_bytes } => Box::new(Fixed::new(interval, size_bytes)),
            PolicyKind::Algorithm1 => Box::new(Algorithm1::new()),
            PolicyKind::Adaptive { max_delay, max_bytes } => Box::new(Adaptive::new(max_delay, max_bytes)),
            PolicyKind::Deadline { max_delay, max_bytes } => Box::new(Deadline::new(max_delay, max_bytes)),
            PolicyKind::Following { max_delay, max_bytes } => Box::new(Following::new(max_delay, max_bytes)),
        }
    }
}
