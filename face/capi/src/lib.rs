//! The C ABI of the client and server libraries: `libspillway` and `spillway.h`, which is made from this crate.
//!
//! All names begin with `spw_` or `SPW_`: the verbs are PostMan's (§4.2, *pm_connect*, *compose*, *decompose*, *get_info*).
//! The rules of the interface are told once, at the top of the header (`cbindgen.toml`).
//!
//! - [`status`]: what functions return, and the text of the last error.
//! - [`object`]: what C holds a pointer to, and how a wrong pointer, a second thread and a panic are met.
//! - [`settings`], [`session`]: a client's session, on [`spillway_client::Session`].
//! - [`relief`]: sessions that are helped when replies are late, on [`spillway_client::Relief`].
//! - [`listening`], [`port`]: a server's link port, on [`spillway_server::Links`].
#![allow(non_camel_case_types, reason = "the names are those of the header, and C's are in small letters")]
#![allow(
    clippy::missing_safety_doc,
    reason = "these comments become the header's, which says once what callers vouch for"
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
