//! Authentication and encryption of links: keys and key files, proofs, sealed records.
//!
//! A link is authenticated when it is opened: each end proves its knowledge of the key with a keyed hash of
//! the [transcript](spillway_wire::preamble::transcript). The transcript is the *hello*, which the end that
//! opens the link sends first, followed by the *welcome*, the other end's answer, without its proof. These
//! contain both nonces and the role of the end that opens the link. Since link version 4, batches are then
//! [sealed](Channel) with keys that are derived for this link only. Each load query and each load reply
//! carries its own proof. Each control message of the switch carries a [tag](SwitchKey::tag). Servers that move
//! connections [seal](PeerSeal) the datagrams between them.
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
mod keyed_hash;
mod load;
mod primitives;
mod proof;
mod ring;
mod seal;
mod switch;

pub use channel::{Channel, Exchange, NotAuthentic, RECORDS_PER_KEY};
pub use fresh::LinkRandomness;
pub use key::{Key, KeyError, SECRET_BYTES};
pub use load::{LoadRejection, prove_load, prove_query, verify_load, verify_query};
pub use proof::{Prover, prove, verify};
pub use ring::KeyRing;
pub use seal::{COUNTERS_PER_SESSION, Opened, PeerSeal, SealCounters, SealError, SealRejection};
pub use switch::{SWITCH_KEY_BYTES, SwitchKey, SwitchRejection};
