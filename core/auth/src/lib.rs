//! Keyed hashes, key files, wiping.
//!
//! A link is authenticated when it begins: each end proves that it knows the key, over both nonces, the role and
//! everything else that the preamble says. Since link version 4 batches are then [sealed](Channel) with keys of that link
//! alone. Questions of a helper's load, and their answers, are proven one by one.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod channel;
mod fresh;
mod key;
mod keyed;
mod load;
mod primitives;
mod proof;
mod ring;

pub use channel::{Altered, Channel, Exchange, RECORDS_PER_KEY};
pub use fresh::Fresh;
pub use key::{Key, KeyError, SECRET_BYTES};
pub use load::{LoadRefusal, prove_ask, prove_load, verify_ask, verify_load};
pub use proof::{Prover, prove, verify};
pub use ring::KeyRing;
