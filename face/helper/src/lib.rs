//! The helper: one relay per core on kernel sockets.
//!
//! [`Helper::start`] binds the listening ports, opens links to the servers and keeps them; clients are taken as
//! soon as a link is up and refused by the host while none is. [`run`] is what the `spillway helper` command
//! does: a helper that lives until it is told to go, with signals, a status socket and metrics.
#![forbid(unsafe_code)]

mod config;
mod descriptors;
mod distribution;
mod health;
mod helper;
mod log;
mod metrics;
mod page;
mod rates;
mod relaying;
mod signals;
mod status;
mod status_socket;
mod web;

pub use config::{HelperConfig, Service, StartError};
pub use distribution::Distribution;
pub use health::health;
pub use helper::Helper;
pub use metrics::METRICS;
pub use rates::{Rates, ServiceRates};
pub use signals::run;
pub use status::{ContextStatus, HelperStatus, LinkStatus, ServiceStatus};
pub use status_socket::{DEFAULT_PATH, StatusServer, query};
