//! The server library (PostMan §4.2): helped clients on the event loop of the application.
//!
//! An application keeps its ordinary port and its loop as they are, and adds [`Links`]: a link port, and the links
//! that helpers (and clients that speak links themselves) open to it. Each link carries *virtual connections*;
//! a [`Client`] names one. The verbs are the paper's: [`decompose`](Links::decompose) takes what a link received
//! apart into events, [`compose`](Links::compose) puts replies into the next batch, and
//! [`info`](Links::info) is *get_info*. A client with a session stays the same [`Client`] when its link is lost and it
//! returns on another.
//!
//! # A turn of the loop
//! 1. [`Links::watch_in`] keeps the loop's epoll set right; [`Links::poll_timeout`] bounds the wait.
//! 2. For each event of the epoll set that [`Links::owns`], [`Links::handle_ready`] accepts and sends, and names
//!    the link to read from, if any: [`Links::receive`] into a buffer of the application's, then
//!    [`Links::decompose`] until `None`.
//! 3. [`Links::handle_timeout`].
//! 4. [`Links::poll_event`] until `None`: what happened outside `decompose`.
//! 5. [`Links::flush`]: everything composed in this turn leaves, in one batch for each link.
//!
//! Several threads may share a port, each with `Links` and a loop of its own: see [`Settings::threads`].
//!
//! Sessions that are helped are sent back when the server does not need it any more: see [`Settings::release`];
//! [`Links::poll_release_notice`] tells of it.
//!
//! A server that only passes requests on need not take them apart: [`Links::decompose_run`].
//!
//! `examples/echo.rs` is a whole server, for plain and helped clients; `examples/leader.rs` forwards to
//! `examples/replica.rs`.
#![forbid(unsafe_code)]

mod by_connection;
mod event;
mod link;
mod links;
mod listener;
mod settings;
mod table;
mod threads;
mod watch;

pub use event::{Client, Event, LinkEnd, LinkId};
pub use links::Links;
pub use links::forwarding::RUN_BUFFER_BYTES;
pub use settings::{BindError, Settings};
pub use spillway_auth::{Key, KeyRing};
pub use spillway_batch::unauthenticated::Bounds as UnauthenticatedBounds;
pub use spillway_batch::{
    AddressRange, AddressRules, CloseReason, ConsumedTooMuch, Encryption, Forbidden, Info, Limits,
    LinkCounters, RangeError, RefuseReason, Role, Unacknowledged,
};
pub use spillway_keys::{KeyFileError, read_key_file};
pub use spillway_policy::Word;
pub use spillway_policy::release::{ReleaseCounters, ReleaseNotice, ReleaseSettings};
pub use spillway_session::{StreamLimits, TableLimits};
pub use threads::Threads;
