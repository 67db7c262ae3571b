//! The paper's simple client (PostMan §4.2): plain TCP to the server's ordinary port, moved to a helper and back at a
//! moment without a reply to come. Experiments measure with it, and tests use it as a client without sessions; programs
//! use the sessions of the client library, `face/client`.
//!
//! A [`Connection`] carries one ordered stream of bytes in each direction. *Direct*, it is plain TCP. *Helped*, its bytes
//! travel over a link to a helper's link port, or straight to the server's link port, in batches with those of other
//! clients. Nothing here blocks; for tests without an event loop there is [`blocking`].
//!
//! # A turn of the loop
//! 1. Whatever was called on the connection, call [`Connection::watch_in`] after it: it keeps the loop's epoll
//!    set right (and costs nothing when nothing changed).
//! 2. For each event of the epoll set, [`split_token`] says which connection and which of its sockets are
//!    meant; [`Connection::handle_ready`] does what is to be done, and says whether to
//!    [`receive`](Connection::receive).
//! 3. Ask [`Connection::poll_event`] until `None`, after `handle_ready`, `send`, `receive` and
//!    `handle_timeout`.
//! 4. Wait no longer than [`Connection::poll_timeout`], which is `None` unless a move is under way; then call
//!    [`Connection::handle_timeout`].
//!
//! # Moving
//! Send no more, receive all replies that are still to come, then [`Connection::begin_move`], and go on at
//! [`Event::Moved`]. Only the application knows which replies are still to come; a move is refused while bytes are unsent,
//! or received and unread. With [`Connection::prepare_move`] the new carrier is made ready while the old one stays in use,
//! and [`Connection::complete_move`] then takes no time at all.
//!
//! While helped, the direct connection stays open and idle, so that the way back is instant. A carrier that does
//! not answer any more can only be given up: [`Connection::abandon`].
#![forbid(unsafe_code)]

pub mod blocking;
mod connection;
mod direct;
mod error;
mod event;
mod link;
mod moving;
mod outbox;
mod scratch;
mod settings;
mod socket;
mod stage;
mod watch;

pub use connection::Connection;
pub use error::MoveError;
pub use event::{Carrier, Event};
pub use settings::{Route, Settings};
pub use spillway_session::LinkTarget;
pub use watch::{Ready, Slot, Watch, split_token};
