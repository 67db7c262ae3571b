//! Finds requests and replies in the two byte streams of a connection, so that a proxy can measure their latency.
//!
//! A [`Tracker`] reads the bytes of both directions, in pieces of any size, without storing or changing them. Its
//! memory per connection is bounded for any input.
//!
//! When a tracker cannot match replies to requests (an unknown command, broken syntax, a subscription), it stops
//! measuring this connection and reports the reason once, because a guess could give a wrong latency.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod memcached;
mod number;
mod outstanding;
mod redis;
mod stop_reason;
mod tcp;
mod tracker;
mod words;

pub use outstanding::OUTSTANDING_MAX;
pub use stop_reason::StopReason;
pub use tracker::{Protocol, Reply, Tracker};
