//! A link driver over a blocking TCP stream, and real servers with the preload library: for tests and measurements.
#![allow(dead_code, reason = "each test program and example uses a part")]

pub mod driver;
pub mod inside;
pub mod memcached;
pub mod process;
pub mod redis;
