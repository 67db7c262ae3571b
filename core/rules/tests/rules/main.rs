//! The rules of the switch as hosts see them: frames in, frames out.

extern crate alloc;

mod bounds;
mod checks;
mod closing;
mod endings;
mod explore;
mod forwarding;
mod frames;
mod heard;
mod host;
mod interleavings;
mod liveness;
mod load;
mod properties;
mod states;
#[path = "../../src/test_config.rs"]
#[allow(dead_code, reason = "the unit tests use some of these names, the integration tests others")]
mod test_config;
mod world;

// `test_config.rs` finds these names at the root of the crate, here and in the crate's own tests.
use spillway_rules::{Address, Endpoint, ServerId, config};
