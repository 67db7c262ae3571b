//! Parsers of times, sizes, rates, addresses and names in configuration files and on command lines.
#![forbid(unsafe_code)]

mod address;
mod mac;
mod name;
mod quantity;

pub use address::{AddressError, listen_address, listen_addresses, server_address};
pub use mac::parse_mac;
pub use name::is_name;
pub use quantity::{ValueError, duration_text, parse_duration, parse_rate, parse_size, rate_text, size_text};
