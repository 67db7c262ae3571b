//! The client library: sessions that outlive what carries them, and go to helpers and back by themselves.
//!
//! A [`Session`] is one ordered stream of bytes in each direction (PostMan §4.2, "Ensure packet ordering"). Its bytes
//! travel over a link to a helper's link port, or straight to the server's link port, in batches with those of other
//! clients. When what carries it is lost, silent, or to be left, it goes on elsewhere, requests in flight included.
//!
//! Nothing here blocks: a session lives in an event loop of the caller's, with thousands of others; its documentation
//! says how. For programs without such a loop there is [`BlockingSession`](session::BlockingSession).
//!
//! With [`relief`], sessions go to helpers when replies are slow, and come back.
//!
//! # Example
//! Two lines more than a `TcpStream` needs:
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
//! cache.move_to(1)?; // replies are slow: let the helper carry us
//! cache.write_all(b"get key\r\n")?;
//! let _length = cache.read(&mut reply)?;
//! cache.close()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod ask;
mod jitter;
pub mod relief;
mod scratch;
pub mod session;
mod socket;

pub use ask::{ASK_TIMEOUT, Ask, Asked};
pub use relief::{Relief, ReliefSettings};
pub use session::{Session, SessionSettings};
pub use spillway_auth::Key;
pub use spillway_batch::Encryption;
pub use spillway_policy::Word;
pub use spillway_session::LinkTarget;
