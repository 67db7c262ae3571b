//! Small parts that several crates use: entries in slots that are reused, timers that all run equally long, and seeded numbers.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod delays;
mod random;
mod slots;

pub use delays::Delays;
pub use random::{Random, mix};
pub use slots::{SlotKey, Slots};
