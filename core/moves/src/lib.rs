//! A server whose TCP connections move to other servers and come from them, without I/O: joins the stack of `spillway-tcp`, or
//! another TCP, with the agent of `spillway-handoff` (Capybara §3.3; docs/moves.md).
//!
//! - `server`: [`Server`] has the verbs of a driver, in turns as those of [`spillway_tcp::drive`]
//! - `application`: what an application adds to an [`Application`](spillway_transport::Application): [`Movable`]
//! - `tcp`: the TCP beneath: [`Tcp`]
//! - `connections`: the TCP, and the flows of its connections: the application's transport
//! - `commands`: commands about requests that are handed off, which wait
//! - `policy`: the moves that a policy decides; `meter`: the measurements of a server's load
//! - `orders`: moves that wait until the application's request has ended
//! - `incidents`: what has gone wrong, for logs and checks
//! - `blackout`: how long connections that move are without a server
//! - `ends`: the addresses and ports of a frame; `reply_source`: replies under the service's address
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod application;
mod blackout;
mod commands;
mod connections;
mod ends;
mod incidents;
mod meter;
mod orders;
mod policy;
mod reply_source;
mod reservations;
mod server;
mod tcp;

pub use application::{Arrival, Movable, OwnLoad, RequestCommand, RequestEvent};
pub use blackout::{BLACKOUT_BOUNDS_US, BlackoutCounts};
pub use connections::Connections;
pub use incidents::{Incident, Loss};
pub use meter::Meter;
pub use orders::{Order, OrderError, OrderResult};
pub use policy::{DecisionCounts, PolicySettings};
pub use server::{Counters, Server};
pub use spillway_handoff::{End, HandedRequest, Purpose, RequestOutcome, Step, TracedMove};
pub use spillway_policy::migration::{
    Decision, MoveLimits, MovePolicy, ProactiveSettings, ReactiveSettings, Reason, Target,
};
pub use spillway_policy::{OutOfBounds, Override};
pub use spillway_wire::state::{Attachment, AttachmentError};
pub use tcp::{ConnectionEnds, Tcp};
