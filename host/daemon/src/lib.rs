//! What every long-running program of ours needs of its host.
//!
//! - [`Signals`]: SIGTERM and SIGINT, SIGHUP, SIGUSR1 as events
//! - [`Manager`]: what a service manager is told (`sd_notify`), and its watchdog
//! - [`AdminServer`], [`ask`]: requests and answers on a UNIX socket for owner and group
//! - [`SocketFile`]: a UNIX socket's file, made with care and removed again
#![forbid(unsafe_code)]

mod admin;
mod manager;
mod signals;
mod socket_file;

pub use admin::{ANSWER_BYTES_MAX, AdminServer, Bounds, ask};
pub use manager::Manager;
pub use signals::{SignalEvent, Signals};
pub use socket_file::SocketFile;
