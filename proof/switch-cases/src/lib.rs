//! Proof that the two implementations of the switch decide alike: the rules in Rust (`core/rules`) and the XDP program
//! (`host/bpf/c/switch.bpf.c`).
//!
//! - **Cases** ([`case`]): text files in `core/rules/cases`, in which packets are written symbolically. This crate
//!   builds their bytes without code of either implementation, and runs them through each implementation ([`run`]).
//! - **Random sequences** ([`random`]): the same packets and messages go to both implementations, which must agree in
//!   verdict, egress and every byte, and in the state that remains.

#![forbid(unsafe_code)]

pub mod case;
mod error;
pub mod mac;
pub mod message;
pub mod packet;
pub mod program;
pub mod random;
pub mod rules;
pub mod run;
pub mod setup;
pub mod switch;
mod text;

pub use error::{CaseFileError, Position, TextError};
