//! The helper: one relay per core on kernel sockets.
//!
//! [`Helper::start`] binds the listening ports, opens links to the servers and keeps them; clients are taken as
//! soon as a link is up and refused by the host while none is. [`run`] is what the `spillway helper` command
//! does: a helper that lives until it is told to go, with signals and a status socket.
#![forbid(unsafe_code)]

mod config;
mod descriptors;
mod helper;
mod log;
mod relaying;
mod signals;
mod status;
mod status_socket;

pub use config::{HelperConfig, Service, StartError};
pub use helper::Helper;
pub use signals::run;
pub use status::{HelperStatus, LinkStatus, ServiceStatus};
pub use status_socket::{DEFAULT_PATH, StatusServer, query};
