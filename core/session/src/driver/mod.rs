//! A client's session and the carriers that it moves between, without sockets. The client library, the sidecar and the
//! simulator run it.
//!
//! - [`machine`]: the [`Driver`] itself, which connects the parts
//! - [`schedule`]: which link port is tried next and when; [`absence`]: whether the server's process has ended
//! - [`carrier`]: the link that carries the session now
//! - [`event`], [`settings`], [`target`], [`jitter`]: inputs and outputs

mod absence;
mod carrier;
mod event;
mod jitter;
mod machine;
mod schedule;
mod settings;
mod target;

pub use carrier::Observer;
pub use event::{CarrierLoss, Gone, SessionEnd, SessionEvent};
pub use jitter::Jitter;
pub use machine::{Action, Driver};
pub use settings::SessionSettings;
pub use target::LinkTarget;
