//! A proxy on the client's host: accepts plain TCP or UNIX connections and carries each one as a session.
//!
//! Each local connection is one [session](spillway_client::Session). When the helper that carries it fails, the session
//! moves to another helper or to the server's own link port with its requests in flight, and the client's connection
//! stays open. The sidecar forwards bytes unchanged; it [parses requests](spillway_requests) only to measure latency.
//!
//! - [`Settings`]: the configuration
//! - [`Sidecar`]: a running sidecar
//! - [`run`]: runs a sidecar until SIGTERM, for the `spillway sidecar` command
//! - [`query`], [`SidecarStatus`]: the status of a running sidecar
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
mod relief;
mod run;
mod send_buffer;
mod settings;
mod shared;
mod sidecar;
mod socket;
mod status;
mod table;
mod thread_state;
mod timers;
mod worker;

pub use control::query;
pub use metrics::METRICS;
pub use run::run;
pub use settings::{Listen, Settings, StartError, loopback};
pub use sidecar::Sidecar;
pub use status::{LatencyStatus, SidecarStatus};
