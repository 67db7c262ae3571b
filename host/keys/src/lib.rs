//! Key files and random bytes for programs that open or accept links. A key file holds one line, in the format of
//! [`spillway_auth::Key`]. Only its owner may use it, because a reader of the key can act for every client; a file of
//! root may be readable by its group.
#![forbid(unsafe_code)]

mod error;
mod file;
mod random;

pub use error::{KeyFileError, Problem, SecretFileError};
pub use file::{read_key_file, read_secret_file, write_new_key_file};
pub use random::{fresh_key, fresh_link_randomness, fresh_nonce};
