//! A user-level TCP stack without I/O: frames in, frames out, `now` always a parameter.
//!
//! Deterministic: the same frames at the same times give the same output, byte for byte (Capybara §3.3).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cookies;
pub mod isn;
pub mod neighbour;
pub mod reassembly;
pub mod recovery;
pub mod seq;
pub mod timers;
