//! Where requests and replies begin and end in two streams of bytes, so that their latency can be measured from outside.
//!
//! A [`Tracker`] is shown what a client sends and what its server answers, in pieces cut anywhere. It keeps no bytes and
//! changes none. What it needs per connection is bounded, whatever comes.
//!
//! When it cannot follow a stream (an unknown command, broken syntax, a mode in which replies are not answers) it gives
//! up for this connection, says so once, and measures no more. It never guesses.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod gave_up;
mod memcached;
mod number;
mod outstanding;
mod redis;
mod tcp;
mod tracker;
mod words;

pub use gave_up::GaveUp;
pub use outstanding::OUTSTANDING_MAX;
pub use tracker::{Protocol, Reply, Tracker};
