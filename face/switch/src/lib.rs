//! The switch's daemon, beside the XDP program that forwards packets and handles control messages.
//!
//! [`config`] has the settings.
#![forbid(unsafe_code)]

pub mod config;

/// Default path of a switch's admin socket, see [`spillway_daemon::default_socket`].
pub fn default_socket() -> std::path::PathBuf {
    spillway_daemon::default_socket("switch")
}
