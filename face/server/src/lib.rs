//! The server library (PostMan §4.2): serves helped clients on the application's event loop.
//!
//! An application keeps its ordinary port and its loop, and adds [`Links`]: a link port, and the links that helpers and
//! library clients open to it. Each link carries *virtual connections*; a [`ClientId`] names one. The verbs are the
//! paper's: [`decompose`](Links::decompose) splits a link's input into events, [`compose`](Links::compose) puts replies
//! into the next batch, and [`info`](Links::info) is *get_info*. A client with a session stays the same [`ClientId`] when
//! its link is lost and the session resumes on another link.
//!
//! # A turn of the loop
//! 1. [`Links::watch_in`] updates the loop's epoll set; [`Links::poll_timeout`] bounds the wait.
//! 2. For each event of the epoll set for which [`Links::owns`] is true, call [`Links::handle_ready`]. It
//!    accepts new links, sends pending batches, and returns the link to read from, if any: call
//!    [`Links::receive`] with a buffer of the application's, then [`Links::decompose`] until `None`.
//! 3. [`Links::handle_timeout`].
//! 4. [`Links::poll_event`] until `None`: events that happened outside `decompose`.
//! 5. [`Links::flush`]: sends everything composed in this turn, in one batch for each link.
//!
//! Several threads may share a port, each with `Links` and a loop of its own: see [`Settings::threads`].
//!
//! A server with low load releases its helped sessions: see [`Settings::release`] and [`Links::poll_release_notice`].
//!
//! A server that only forwards requests need not split them: [`Links::decompose_run`].
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

pub use event::{ClientId, Event, LinkId, LinkLoss};
pub use links::Links;
pub use links::forwarding::RUN_BUFFER_BYTES;
pub use settings::{BindError, Settings};
pub use spillway_auth::{Key, KeyRing};
pub use spillway_batch::unauthenticated::Bounds as UnauthenticatedBounds;
pub use spillway_batch::{
    AddressRange, AddressRules, CloseReason, ConsumedTooMuch, Encryption, ForbiddenAddress, Info, Limits,
    LinkCounters, RangeError, RefuseReason, Role, Unacknowledged,
};
pub use spillway_keys::{KeyFileError, read_key_file};
pub use spillway_policy::Override;
pub use spillway_policy::release::{OutOfBounds, ReleaseCounters, ReleaseNotice, ReleaseSettings};
pub use spillway_session::{StreamLimits, TableLimits};
pub use threads::Threads;
