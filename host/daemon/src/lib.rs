//! Signals, service manager, admin socket, HTTP port and log of a long-running Spillway program.
//!
//! - [`Signals`]: SIGTERM, SIGINT, SIGHUP and SIGUSR1 as events
//! - [`Manager`]: notifications to a service manager (`sd_notify`), and its watchdog
//! - [`AdminServer`], [`send_request`]: requests and answers on a UNIX socket, with two levels of rights
//! - [`send_json_request`]: those requests and answers as JSON
//! - [`ControlPorts`]: admin socket and HTTP port that serve a daemon's [`Answers`]
//! - [`SocketFile`]: the file of a UNIX socket, removed on drop
//! - [`Log`]: lines for standard error, written by a separate thread so that callers never block
//! - [`MainThread`], [`Service`]: the main thread's loop, from ready to exit
//! - [`ThreadWatch`]: threads whose unexpected end also ends the process
//! - [`drop_capabilities`], [`drop_net_raw`], [`keep_capabilities`], [`start_with_fewer`]: fewer privileges for threads
#![deny(unsafe_code)]

mod admin;
mod default_sockets;
pub mod deprecated;
mod descriptors;
mod documents;
mod log;
mod manager;
mod peer;
mod ports;
mod privileges;
mod service;
mod signals;
mod socket_file;
mod threads;

pub use admin::{ANSWER_BYTES_MAX, AdminServer, Bounds, Requester, Rights, send_request};
pub use default_sockets::{default_directories, default_socket, find_default_socket, free_default_socket};
pub use descriptors::raise_open_files;
pub use documents::{
    OverrideOutcome, REQUEST_TIMEOUT, RequestError, STATUS_TIMEOUT, send_json_request, unknown_service,
};
pub use log::{Log, flush_log, log_line, log_lines_dropped};
pub use manager::Manager;
pub use peer::AdminGroup;
pub use ports::{Answers, ControlPorts, PortError, ServedPorts};
pub use privileges::{drop_capabilities, drop_net_raw, keep_capabilities, start_with_fewer};
pub use service::{MainThread, Service};
pub use signals::{SignalEvent, Signals};
pub use socket_file::SocketFile;
pub use threads::{ThreadWatch, panic_message};
