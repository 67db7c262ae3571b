//! A local proxy beside an unmodified client: plain TCP, or a UNIX socket, comes in; sessions go out.
//!
//! Each local connection is one [session](spillway_client::Session): when the helper that carries it dies, it goes on
//! through another one, or on the server's own link port, with its requests in flight; the client notices nothing. Bytes
//! are never looked at to change them; [what they mean](spillway_requests) is followed to measure latency.
//!
//! - [`Settings`]: what it is told
//! - [`Sidecar`]: a running one
//! - [`run`]: what the `spillway sidecar` command does: one that lives until SIGTERM
//! - [`query`], [`SidecarStatus`]: what one is doing
#![forbid(unsafe_code)]

mod carriers;
mod control;
mod counters;
mod latency;
mod losses;
mod mailbox;
mod memory;
mod metrics;
mod pair;
mod part;
mod relief;
mod run;
mod settings;
mod shared;
mod sidecar;
mod socket;
mod status;
mod table;
mod timers;
mod waiting;
mod worker;

pub use control::query;
pub use metrics::METRICS;
pub use run::run;
pub use settings::{Listen, Settings, StartError, loopback};
pub use sidecar::Sidecar;
pub use status::{LatencyStatus, SidecarStatus};
