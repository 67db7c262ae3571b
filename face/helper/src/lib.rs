//! The helper: network threads with a relay each (`spillway-relay`), on kernel sockets or on the user-level TCP stack.
//!
//! [`Helper::start`] binds the listening ports and opens links to the servers. A service's ports refuse
//! clients while no link to its server is up. [`run`] is the `spillway helper` command: it runs a helper
//! until SIGTERM. [`config`] has the settings; most of them may change while the helper runs.
#![forbid(unsafe_code)]

pub mod config;
pub mod control;

mod change;
mod connections;
mod distribution;
mod engine;
mod health;
mod helper;
mod history;
mod listeners;
mod log;
mod metrics;
mod page;
mod quota;
mod rates;
mod registration;
mod relay_app;
mod run;
mod running;
mod status;
mod threads;

pub use config::{HelperConfig, Service, StartError};
pub use connections::{CONNECTIONS_MAX, Connection, Connections};
pub use control::{SettingsSource, request_status};
pub use distribution::Distribution;
pub use engine::{EngineStatus, XdpError};
pub use health::health;
pub use helper::Helper;
pub use metrics::METRICS;
pub use rates::{Rates, ServiceRates};
pub use registration::RegistrationStatus;
pub use run::run;
pub use status::{Drained, HelperStatus, LinkStatus, ServiceStatus, ThreadLoad, ThreadStatus};

/// Default path of a helper's admin socket, see [`spillway_daemon::default_socket`].
pub fn default_socket() -> std::path::PathBuf {
    spillway_daemon::default_socket("helper")
}
