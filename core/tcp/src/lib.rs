//! A user-level TCP stack without I/O: frames in, frames out, `now` always a parameter.
//!
//! Deterministic: the same frames at the same times give the same output, byte for byte (Capybara §3.3).
#![no_std]
#![forbid(unsafe_code)]
// Tests may use lossy casts: their numbers are small.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

extern crate alloc;

mod connection;
mod cookies;
mod counters;
pub mod drive;
mod dropped;
mod event;
mod flow;
mod hasher;
pub mod isn;
mod moving;
mod narrow;
mod neighbour;
mod reassembly;
pub mod recovery;
mod seq;
mod settings;
mod stack;
mod timer;
pub mod timers;

pub use counters::Counters;
pub use dropped::{Dropped, DroppedSegment, Dropping};
pub use event::{Delivery, StackEvent};
pub use flow::Flow;
pub use moving::{ExportError, ImportError, Importable};
pub use settings::{KeepAlive, Listener, OwnAddress, Resolver, Settings, SettingsError};
pub use stack::Stack;
pub use timer::{Timer, Timers};
