//! The switch's daemon, beside the XDP program that forwards packets and handles control messages.
//!
//! The program works without the daemon. The daemon loads it, writes its configuration, removes the entries of flows
//! that have ended, and answers operators: [`run`] is the `spillway switch` command, [`control`] has the requests at
//! its admin socket, [`config`] the settings.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;

mod basis;
mod change;
mod clear;
mod datagram;
mod entries;
mod flows;
mod known;
mod last_failure;
mod list;
mod local;
mod lock;
mod messages;
mod metrics;
mod port_state;
mod problems;
mod program;
mod run;
mod running;
mod start_error;
mod status;
mod sweep;
mod tables;

pub use clear::Cleared;
pub use control::{SettingsSource, request_status};
pub use flows::{Client, FlowStatus, Selection, SiteStatus};
pub use list::{Cursor, Flows, PAGE_FLOWS_MAX};
pub use metrics::METRICS;
pub use run::{detach, run};
pub use start_error::StartError;
pub use status::{FlowsStatus, PortStatus, ServerStatus, ServiceStatus, SwitchStatus};

/// Default path of a switch's admin socket, see [`spillway_daemon::default_socket`].
pub fn default_socket() -> std::path::PathBuf {
    spillway_daemon::default_socket("switch")
}
