//! Configuration files of daemons, in TOML.
//!
//! - [`read_text_file`], [`parse`]: the text of a file, and its sections; unknown keys are errors that suggest a known one
//! - [`Values`]: parses each value, and collects all errors with their lines and columns ([`Problem`])
//! - [`section!`]: defines a section for the parser and for the reference of all keys ([`write_section`])
//! - [`Reading`]: where key files are, and whether the host may be looked at
#![forbid(unsafe_code)]

mod file;
mod problem;
mod reference;
mod schema;
mod suggestion;
mod values;

pub use file::{Reading, parse, read_file, read_text_file};
pub use problem::{Problem, Problems};
pub use reference::{is_toml, write_section};
pub use schema::{Any, Entry, Section, Texts};
pub use values::Values;
