//! When to help, and which helper (PostMan §5.2, §5.3); when connections move between servers (Capybara §3.3): decisions
//! without I/O.
//!
//! The caller supplies the time and the random seeds: the same events give the same decisions in production, in the
//! simulator and in tests.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

pub mod activation;
pub mod histogram;
pub mod limiter;
pub mod memory;
pub mod migration;
pub mod release;
pub mod window;

mod choice;
mod gauge;
mod lots;
mod relief_override;
mod shedding;

pub use activation::{Activation, ActivationSettings, Carrier, Member, Order, OutOfBounds};
pub use choice::{Choice, Decision, HELPERS_ASKED_DEFAULT, HELPERS_ASKED_MAX};
pub use gauge::{Capacity, Gauge, Usage};
pub use release::{Release, ReleaseSettings, Sample};
pub use relief_override::{CurrentOverride, Override};
pub use shedding::{Shedding, SheddingSettings};
