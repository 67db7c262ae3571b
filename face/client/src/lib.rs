//! The client library (PostMan §4.2): direct connections, helped ones, and moves between them.
//!
//! A [`Connection`] carries one ordered stream of bytes in each direction. *Direct*, it is plain TCP to the
//! server's ordinary port. *Helped*, its bytes travel over a link to a helper's link port, or straight to the
//! server's link port, in batches with those of other clients.
//!
//! Nothing here blocks: a connection lives in an epoll loop of the caller's, with thousands of others. For
//! programs without such a loop there is [`blocking`].
//!
//! # A turn of the loop
//! 1. Whatever was called on the connection, call [`Connection::watch_in`] after it: it keeps the loop's epoll
//!    set right (and costs nothing when nothing changed).
//! 2. For each event of the epoll set, [`split_token`] says which connection and which of its sockets are
//!    meant; [`Connection::handle_ready`] does what the library has to do, and says whether to
//!    [`receive`](Connection::receive).
//! 3. Ask [`Connection::poll_event`] until `None`, after `handle_ready`, `send`, `receive` and
//!    `handle_timeout`.
//! 4. Wait no longer than [`Connection::poll_timeout`], which is `None` unless a move is under way; then call
//!    [`Connection::handle_timeout`].
//!
//! # Moving
//! The paper's simple way (§4.2): send no more, receive all replies that are still to come, then
//! [`Connection::begin_move`], and go on at [`Event::Moved`]. Only the application knows which replies are still
//! to come; the library refuses to move while bytes are unsent, or received and unread. With
//! [`Connection::prepare_move`] the new carrier is made ready while the old one stays in use, and
//! [`Connection::complete_move`] then takes no time at all.
//!
//! While helped, the direct connection stays open and idle, so that the way back is instant. A carrier that does
//! not answer any more can only be given up: [`Connection::abandon`].
//!
//! # Sessions
//! A [`Session`] needs none of that: it has a list of link ports and goes on by itself when the one that carries it is
//! lost or silent, requests in flight included ([`session`]).
//!
//! # Relief that switches itself
//! With [`relief`], sessions go to helpers when replies are slow, and come back.
//!
//! # Example
//! Two lines more than a `TcpStream` needs:
//! ```no_run
//! use std::io::{Read, Write};
//! use spillway_client::{LinkTarget, Route, Settings, blocking::Client};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = spillway_keys::read_key_file("/etc/spillway/client.key")?;
//! let helper = LinkTarget { address: "10.0.0.9:11411".parse()?, key, server: None, encryption: Default::default() };
//!
//! let mut cache = Client::connect("10.0.0.5:11211".parse()?, Settings::default())?;
//! let mut reply = [0; 4096];
//! cache.write_all(b"get key\r\n")?;
//! let _length = cache.read(&mut reply)?;
//! cache.move_to(Route::Link(&helper))?; // replies are slow, and none is to come: let a helper carry us
//! cache.write_all(b"get key\r\n")?;
//! let _length = cache.read(&mut reply)?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod ask;
pub mod blocking;
mod connection;
mod direct;
mod error;
mod event;
mod jitter;
mod link;
mod moving;
mod outbox;
pub mod relief;
mod scratch;
pub mod session;
mod settings;
mod socket;
mod watch;

pub use ask::{ASK_TIMEOUT, Ask, Asked};
pub use connection::Connection;
pub use error::MoveError;
pub use event::{Carrier, Event};
pub use relief::{Relief, ReliefSettings};
pub use session::{Session, SessionSettings};
pub use settings::{LinkTarget, Route, Settings};
pub use spillway_auth::Key;
pub use spillway_batch::Encryption;
pub use spillway_policy::Word;
pub use watch::{Ready, Slot, Watch, split_token};
