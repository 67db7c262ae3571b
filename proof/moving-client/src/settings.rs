//! Where a connection may go, and its bounds.

use std::time::Duration;

use spillway_session::LinkTarget;

/// How a connection's bytes shall travel.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// Plain TCP to the server's ordinary port.
    Direct,
    /// A link.
    Link(&'a LinkTarget),
}

/// Bounds of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long TCP may take to connect.
    pub connect_timeout: Duration,
    /// How long a link may take from then on until the server's application has accepted.
    pub accepted_timeout: Duration,
    /// While helped, the direct connection stays open and idle.
    pub keep_direct: bool,
    /// Bytes of replies that a link may carry before they are received here.
    pub window_bytes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect_timeout: Duration::from_secs(5),
            accepted_timeout: Duration::from_secs(5),
            keep_direct: true,
            window_bytes: 256 * 1024,
        }
    }
}
