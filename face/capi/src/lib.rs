//! The C ABI of the client and server libraries: `libspillway`, and `spillway.h`, which is generated from this crate.
//!
//! All names begin with `spw_` or `SPW_`: the verbs are PostMan's (§4.2, *pm_connect*, *compose*, *decompose*, *get_info*).
//! The interface's general rules are at the top of the header (`header.txt`).
//!
//! - [`status`]: return values, and the text of the last error.
//! - [`object`]: the objects behind C's pointers; checks for wrong pointers, concurrent use and panics.
//! - [`settings`], [`session`]: a client's sessions, on [`spillway_client::Session`].
//! - [`relief`]: sessions that move to helpers when replies are late, on [`spillway_client::Relief`].
//! - [`listening`], [`port`]: a server's link port, on [`spillway_server::Links`].
#![allow(non_camel_case_types, reason = "these are the names in the C header, where types are lower case")]
#![allow(
    clippy::missing_safety_doc,
    reason = "doc comments become the header's, whose first comment has the rules for pointers"
)]

mod argument;
pub mod listening;
pub mod object;
pub mod port;
pub mod relief;
pub mod session;
pub mod settings;
pub mod status;
mod waiting;
