//! The helper: one relay per core on kernel sockets.
//!
//! [`Helper::start`] binds the listening ports, opens links to the servers and keeps them; clients are taken as
//! soon as a link is up and refused by the host while none is. [`run`] is what the `spillway helper` command
//! does: a helper that lives until SIGTERM, with signals, a service manager, an admin socket and metrics.
//! [`config`] is what it is told, by a file or by flags; other settings are put in force while it runs.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;

mod change;
mod connections;
mod contexts;
mod distribution;
mod health;
mod helper;
mod history;
mod listeners;
mod log;
mod metrics;
mod page;
mod quota;
mod rates;
mod registering;
mod relaying;
mod run;
mod running;
mod status;

pub use config::{HelperConfig, Service, StartError};
pub use connections::{CONNECTIONS_MAX, Connection, Connections};
pub use control::{Source, query};
pub use distribution::Distribution;
pub use health::health;
pub use helper::Helper;
pub use metrics::METRICS;
pub use rates::{Rates, ServiceRates};
pub use registering::RegistrationStatus;
pub use run::run;
pub use status::{ContextLoad, ContextStatus, Drained, HelperStatus, LinkStatus, ServiceStatus};

/// The admin socket of a helper to which none was named, as [`spillway_daemon::usual_socket`] chooses it.
pub fn usual_socket() -> std::path::PathBuf {
    spillway_daemon::usual_socket("helper")
}
