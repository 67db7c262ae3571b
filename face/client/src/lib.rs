//! The client library: sessions that outlive their carriers, and move to helpers and back.
//!
//! A [`Session`] is one ordered stream of bytes in each direction (PostMan §4.2, "Ensure packet ordering"). Its bytes
//! travel over a link to the link port of a helper or of the server. When this carrier is lost, silent or draining, the
//! session continues on another one, with its requests in flight.
//!
//! A [`Session`] never blocks: it runs in the caller's event loop, together with thousands of others. A program without
//! such a loop uses [`BlockingSession`](session::BlockingSession).
//!
//! With [`relief`], sessions move to helpers when replies are slow, and back later.
//!
//! # Example
//! ```no_run
//! use std::io::{Read, Write};
//! use spillway_client::{LinkTarget, SessionSettings, session::BlockingSession};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = spillway_keys::read_key_file("/etc/spillway/client.key")?;
//! let port = |address: &str| -> Result<LinkTarget, std::net::AddrParseError> {
//!     Ok(LinkTarget { address: address.parse()?, key: key.clone(), server: None, encryption: Default::default() })
//! };
//! let (server, helper) = (port("10.0.0.5:11511")?, port("10.0.0.9:11411")?);
//!
//! let mut cache = BlockingSession::open(vec![server, helper], SessionSettings::default())?;
//! let mut reply = [0; 4096];
//! cache.write_all(b"get key\r\n")?;
//! let _length = cache.read(&mut reply)?;
//! cache.move_to(1)?; // replies are slow: move to the helper
//! cache.write_all(b"get key\r\n")?;
//! let _length = cache.read(&mut reply)?;
//! cache.close()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod jitter;
mod load_queries;
pub mod relief;
mod scratch;
pub mod session;
mod socket;

pub use load_queries::{LOAD_QUERY_TIMEOUT, LoadQueries, LoadQueryOutcome};
pub use relief::{Relief, ReliefSettings};
pub use session::{Session, SessionSettings};
pub use spillway_auth::Key;
pub use spillway_batch::Encryption;
pub use spillway_policy::Override;
pub use spillway_session::LinkTarget;
