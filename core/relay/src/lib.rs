//! What a helper does, without I/O.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
