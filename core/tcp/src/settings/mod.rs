//! The configuration of a stack.
//!
//! - `values`: the settings and their defaults
//! - `address`: the stack's addresses, and which addresses a host may have
//! - `check`: which settings are valid, and the errors of those that are not
//! - `derived`: what follows from the settings for one flow or one target
//! - `test_settings`: settings for the tests of these files

mod address;
mod check;
mod derived;
#[cfg(test)]
mod test_settings;
mod values;

pub use address::OwnAddress;
pub(crate) use address::is_host;
pub(crate) use check::IPV6_MTU_MIN;
pub use check::SettingsError;
pub use values::{KeepAlive, Listener, Resolver, Settings};
