//! Key files and fresh random bytes, for everything that opens or accepts links.
//!
//! A key file holds one line, as [`spillway_auth::Key`] writes it. It must be readable by its owner only:
//! whoever can read it can speak for every client.
#![forbid(unsafe_code)]

mod error;
mod file;
mod random;

pub use error::{KeyFileError, Problem, SecretFileError};
pub use file::{read_key_file, read_secret_file, write_new_key_file};
pub use random::{fresh, fresh_key, fresh_nonce};
