//! Keyed hashes, key files, wiping.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
