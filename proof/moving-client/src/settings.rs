//! Routes and settings of a connection.

use std::time::Duration;

use spillway_session::LinkTarget;

/// The target of a move.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// Plain TCP to the server's ordinary port.
    Direct,
    /// A link to a helper's or the server's link port.
    Link(&'a LinkTarget),
}

/// Settings of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Timeout of a TCP connect.
    pub connect_timeout: Duration,
    /// Timeout from the TCP connect of a link until the server's application has accepted the connection.
    pub accept_timeout: Duration,
    /// Keeps the direct connection open and idle while the connection is helped.
    pub keep_direct: bool,
    /// Window of a link: limit of the reply bytes that the application has not received yet.
    pub window_bytes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect_timeout: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(5),
            keep_direct: true,
            window_bytes: 256 * 1024,
        }
    }
}
