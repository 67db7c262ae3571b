//! Helped clients of an application on a transport, without I/O (PostMan §4.2).
//!
//! [`Linked`] wraps an application. One of its listeners is a *link port*, to which helpers connect: each link carries the
//! messages of many clients in batches. The wrapped application cannot tell a helped client from a plain one: both are
//! connections of its transport. Their names differ: a helped client's has [`HELPED_BIT`] in its slot, so that an
//! application which uses slots as an index must use a map instead.
//!
//! What a helped connection does not have: acknowledgements by the client's TCP
//! ([`watch_acknowledged`](spillway_transport::Transport::watch_acknowledged)), an acknowledgement gate, and moves to other
//! servers. Sessions of library clients are refused.
//!
//! - `linked`: [`Linked`], the wrapper
//! - `links`: all links, and what happens on them; `link`: one link
//! - `clients`: helped clients: what was granted to them, and their bytes that wait
//! - `out`: the transport that the wrapped application sees
//! - `settings`: what a link port accepts; `notice`: what the operator should know
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod clients;
mod link;
mod linked;
mod links;
mod notice;
mod out;
mod settings;

pub use clients::HELPED_BIT;
pub use linked::Linked;
pub use notice::LinkNotice;
pub use settings::LinkSettings;
