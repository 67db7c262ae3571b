//! Assembling and disassembling batches, both ends of a link.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
