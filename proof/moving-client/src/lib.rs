//! The paper's simple client (PostMan §4.2): plain TCP to the server's ordinary port, moved to a helper and back while
//! no reply is pending. Experiments measure with this client, and tests use it as a client without sessions. Programs
//! use the sessions of the client library, `face/client`.
//!
//! A [`Connection`] carries one ordered stream of bytes in each direction. A *direct* connection is plain TCP. The
//! bytes of a *helped* connection travel on a link to a helper's or the server's link port. No call blocks, except
//! those of [`blocking`], which is for tests without an event loop.
//!
//! # A turn of the loop
//! 1. After any call on the connection, call [`Connection::watch_in`], which updates the loop's epoll set. Without a
//!    change it makes no system call.
//! 2. For each event of the epoll set, [`split_token`] returns the connection and its socket, and
//!    [`Connection::handle_ready`] returns whether to [`receive`](Connection::receive).
//! 3. Call [`Connection::poll_event`] until `None`, after `handle_ready`, `send`, `receive` and `handle_timeout`.
//! 4. Wait until [`Connection::poll_timeout`] at the latest (`None` unless a move is in progress), then call
//!    [`Connection::handle_timeout`].
//!
//! # Moving
//! Stop sending, receive all expected replies, call [`Connection::begin_move`], and send again at [`Event::Moved`].
//! The connection does not parse replies, so the application must make sure that none is pending. A move is
//! refused while bytes are unsent or unread.
//! [`Connection::prepare_move`] establishes the new carrier while the old one stays in use, so that
//! [`Connection::complete_move`] switches at once.
//!
//! While a connection is helped, its direct TCP connection stays open and idle, so that the move back is instant.
//! [`Connection::discard_carrier`] closes a carrier that does not answer.
#![forbid(unsafe_code)]

pub mod blocking;
mod connection;
mod direct;
mod error;
mod event;
mod link;
mod moving;
mod network;
mod outbox;
mod scratch;
mod settings;
mod socket;
mod stage;
mod watch;

pub use connection::Connection;
pub use error::MoveError;
pub use event::{Carrier, Event};
pub use network::{Network, Stream};
pub use settings::{Route, Settings};
pub use socket::{Kernel, Socket};
pub use spillway_session::LinkTarget;
pub use watch::{Ready, Slot, Watch, join_token, split_token};
