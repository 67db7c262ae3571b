//! Small data structures for several crates: bounded tables with keys that are not reused, timers of one duration, and
//! seeded random numbers.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod random;
mod slots;
mod timer_queue;

pub use random::{Random, mix};
pub use slots::{SlotKey, Slots};
pub use timer_queue::TimerQueue;
