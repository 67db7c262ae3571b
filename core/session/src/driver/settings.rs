//! Settings of a client's session.

use core::net::SocketAddr;
use core::time::Duration;

use crate::monitor::CarrierTimeouts;
use crate::routes::Pace;
use crate::stream::StreamLimits;

/// Bounds and timeouts of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// Bounds of both directions.
    pub stream: StreamLimits,
    /// Bounds of the time for which a carrier may be silent before the session leaves it.
    pub carrier_timeouts: CarrierTimeouts,
    /// How long the server may take to answer on a new carrier.
    pub attach_timeout: Duration,
    /// After this time without an answering carrier, the session is given up.
    pub give_up_after: Duration,
    /// If the server's own link port refuses connections for this time while the session has no carrier, the server's
    /// process counts as ended. Applies only if [`server_port`](Self::server_port) is known.
    pub refused_timeout: Duration,
    /// Address of the route that is the server's own link port. The other routes lead to helpers. A session that loses
    /// its helper tries the others first; when all have failed, it returns to this port at a time that `pace` spreads.
    pub server_port: Option<SocketAddr>,
    /// How sessions spread their return to the server's own port.
    pub pace: Pace,
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings {
            stream: StreamLimits::default(),
            carrier_timeouts: CarrierTimeouts::default(),
            attach_timeout: Duration::from_secs(1),
            give_up_after: Duration::from_secs(60),
            refused_timeout: Duration::from_secs(1),
            server_port: None,
            pace: Pace::default(),
        }
    }
}
