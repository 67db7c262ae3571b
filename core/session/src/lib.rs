//! Sessions: an ordered byte stream in each direction that outlives the carriers it travels on (PostMan §4.2, "Ensure
//! packet ordering").
//!
//! A *carrier* is a virtual connection: on a link of the client's own, or through a helper. When a carrier is lost or
//! silent for too long, the client continues on another one: each end reports how many bytes it has received, and
//! retransmits exactly the bytes that the other end lacks. So each end keeps its bytes until they are acknowledged.
//!
//! [`ClientSession`] is the client's end, which creates and moves a session; [`Sessions`] is a server's table
//! of the other ends; [`Port`] adds to that table what each session has to send, and is what server drivers
//! use. Both ends are built on `Stream`, which holds both directions and closes them. A [`Driver`] is a
//! client's session with its carriers: [`Routes`] choose the link port to try, and a [`CarrierMonitor`]
//! decides when a carrier has been silent for too long.
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
mod memory;
mod monitor;
mod opened;
mod outgoing;
mod port;
mod remembered_end;
mod routes;
mod slots;
mod stream;
mod table;

pub use carriers::{OpenerLinkCarrier, ServerLinkCarrier};
pub use client::{CarrierError, ClientEvent, ClientSession};
pub use driver::{
    Action, CarrierLoss, Driver, Gone, Jitter, LinkTarget, Observer, SessionEnd, SessionEvent,
    SessionSettings,
};
pub use expired::Expired;
pub use monitor::{CarrierMonitor, CarrierTimeouts, SilenceAction};
pub use opened::{CarrierAction, Opened};
pub use port::{ControlEffects, Placement, Port};
pub use routes::{Attempt, Pace, Routes};
pub use slots::SessionHandle;
pub use stream::{Carrier, StreamEvent, StreamLimits};
pub use table::{OpeningMessage, SessionInfo, Sessions, TableLimits};
