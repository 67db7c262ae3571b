//! Bounds of sessions.

use core::net::SocketAddr;
use core::time::Duration;

use crate::routes::Pace;
use crate::stream::StreamLimits;
use crate::vigil::Patience;

/// Bounds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// Of both directions.
    pub stream: StreamLimits,
    /// How long a carrier may be silent.
    pub patience: Patience,
    /// How long a carrier may take until the server has answered on it.
    pub attach_timeout: Duration,
    /// Without a carrier for so long, the session is given up.
    pub give_up_after: Duration,
    /// When the server's own link port refuses connections and nothing carries the session for so long, its server is
    /// taken for gone. Only where [`server_port`](Self::server_port) is known.
    pub refused_patience: Duration,
    /// Which of the routes is the server's own link port. The others are helpers', and are tried first; when none is
    /// left, sessions return to this one spread over time.
    pub server_port: Option<SocketAddr>,
    /// Over how much time.
    pub pace: Pace,
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings {
            stream: StreamLimits::default(),
            patience: Patience::default(),
            attach_timeout: Duration::from_secs(1),
            give_up_after: Duration::from_secs(60),
            refused_patience: Duration::from_secs(1),
            server_port: None,
            pace: Pace::default(),
        }
    }
}
