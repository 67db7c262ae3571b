//! What every long-running program of ours needs of its host.
//!
//! - [`Signals`]: SIGTERM and SIGINT, SIGHUP, SIGUSR1 as events
//! - [`Manager`]: what a service manager is told (`sd_notify`), and its watchdog
//! - [`AdminServer`], [`ask`]: requests and answers on a UNIX socket, with two levels of rights
//! - [`ask_for`]: those requests and answers as JSON
//! - [`ControlPorts`]: admin socket and HTTP port, where a daemon's [`Answers`] are served
//! - [`SocketFile`]: a UNIX socket's file, made with care and removed again
//! - [`Log`]: lines for standard error, written by a thread of their own that nothing waits for
//! - [`MainThread`], [`Service`]: what the main thread does until the process is told to go
//! - [`ThreadWatch`]: threads whose unexpected end is the end of the process
#![deny(unsafe_code)]

mod admin;
mod descriptors;
mod documents;
mod log;
mod manager;
mod peer;
mod ports;
mod service;
mod signals;
mod socket_file;
mod threads;
mod usual_sockets;

pub use admin::{ANSWER_BYTES_MAX, AdminServer, Bounds, Rights, ask};
pub use descriptors::raise_open_files;
pub use documents::{AskError, OverrideOutcome, ask_for};
pub use log::{Log, flush_log, log_lines_dropped, say};
pub use manager::Manager;
pub use peer::AdminGroup;
pub use ports::{Answers, ControlPorts, PortError, ServedPorts};
pub use service::{MainThread, Service};
pub use signals::{SignalEvent, Signals};
pub use socket_file::SocketFile;
pub use threads::{ThreadWatch, message};
pub use usual_sockets::{find_usual_socket, free_usual_socket, usual_directories, usual_socket};
