//! Sessions: an ordered byte stream in each direction that outlives the carriers it travels on (PostMan §4.2, "Ensure
//! packet ordering").
//!
//! A *carrier* is a virtual connection: on a link of the client's own, or through a helper. When one is lost, or only
//! silent for too long, the client continues on another: both ends say how much they have received, and each sends
//! again exactly what the other lacks. For that, each end keeps what the other has not acknowledged.
//!
//! [`ClientSession`] is the end that makes a session and moves it, [`Sessions`] a server's table of the other ends, and
//! [`Port`] that table with what a server owes each session: what the server's drivers use.
//! Both stand on one `Stream`: what goes out, what comes in, and how they close. A [`Driver`] is a client's session together
//! with its carriers: [`Routes`] tell where it goes, and a [`Vigil`] tells when a carrier has been silent for too long.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod carriers;
mod client;
mod driver;
mod expired;
mod identity;
mod incoming;
mod last;
mod memory;
mod opened;
mod outgoing;
mod port;
mod routes;
mod slots;
mod stream;
mod table;
mod vigil;

pub use carriers::{OnOpenerLink, OnServerLink};
pub use client::{CarrierError, ClientEvent, ClientSession};
pub use driver::{
    Action, CarrierLoss, Driver, Eavesdropper, Gone, Jitter, LinkTarget, SessionEnd, SessionEvent,
    SessionSettings,
};
pub use expired::Expired;
pub use opened::{Opened, Order};
pub use port::{Heard, Placement, Port};
pub use routes::{Attempt, Pace, Routes};
pub use slots::SessionHandle;
pub use stream::{Carrier, StreamEvent, StreamLimits};
pub use table::{FirstWords, SessionInfo, Sessions, TableLimits};
pub use vigil::{Doubt, Patience, Vigil};
