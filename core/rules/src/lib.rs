//! The switch's whole decision on packets, without I/O: the same rules as the XDP program `host/bpf/c/switch.bpf.c`.
//!
//! docs/switch.md specifies the rules. Both implementations decide alike, byte for byte. The caller passes a frame, the
//! port on which the frame arrived, and the time; the frame is rewritten in place.
#![no_std]
#![forbid(unsafe_code)]
// Tests may use lossy casts: their numbers are small.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

extern crate alloc;

mod address;
mod arrival;
pub mod config;
mod control;
mod delivery;
mod flow;
mod forward;
mod host;
mod icmp;
mod load;
mod neighbour;
mod parse;
mod quote;
mod replay;
mod rewrite;
mod state;
mod switch;
mod tables;
mod tcp;
#[cfg(test)]
mod test_config;
pub mod times;
mod too_long;
mod tunnel;
mod unwrap;
mod verdict;

pub use address::Address;
pub use config::{Config, ConfigError, Mode, PortId, ServiceId};
pub use flow::{FlowView, SiteView};
pub use load::OwnerView;
pub use spillway_wire::switch::{Endpoint, FlowState, ServerId};
pub use switch::Switch;
pub use verdict::{Action, Decision, Verdict, VerdictCounters};
