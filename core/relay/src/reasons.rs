//! Reasons for lost links, and for rejected and reset clients.

use core::fmt;

use spillway_batch::{LinkError, RefuseReason};
pub use spillway_policy::memory::MemoryReset;
use spillway_transport::LostReason;
use spillway_wire::ProxyError;

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDown {
    /// The connection could not be opened, or was lost.
    Lost(LostReason),
    /// The server closed the connection.
    ClosedByServer,
    /// The server did not accept the connection within [`ServiceConfig::connect_timeout`](crate::ServiceConfig).
    ConnectTimeout,
    /// The transport has no room, no descriptor or no local port for another connection.
    HostFull,
    /// Authentication failed, or one end broke the link protocol.
    Link(LinkError),
}

impl LinkDown {
    /// The reason's name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            LinkDown::Lost(_) => "lost",
            LinkDown::ClosedByServer => "closed_by_server",
            LinkDown::ConnectTimeout => "connect_timeout",
            LinkDown::HostFull => "host_full",
            LinkDown::Link(_) => "protocol",
        }
    }
}

impl fmt::Display for LinkDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkDown::Lost(LostReason::Refused) => {
                f.write_str("the server refused the connection: check that its link port is open")
            }
            LinkDown::Lost(LostReason::Reset) => f.write_str("the server reset the connection"),
            LinkDown::Lost(LostReason::TimedOut) => {
                f.write_str("the server no longer answers: check that its host is up and reachable")
            }
            LinkDown::Lost(LostReason::Failed) => {
                f.write_str("the network reported an error: check the server's address and the route to it")
            }
            LinkDown::Lost(LostReason::Closed) | LinkDown::ClosedByServer => {
                f.write_str("the server closed the connection")
            }
            LinkDown::ConnectTimeout => f.write_str(
                "the server did not answer within the connect timeout: check that its host is up and reachable",
            ),
            LinkDown::HostFull => f.write_str(
                "no room for another connection: raise max_connections; on kernel sockets also the descriptor limit, \
                 on AF_XDP also the range of ports",
            ),
            LinkDown::Link(error) => error.fmt(f),
        }
    }
}

/// Why a client was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client's address is outside the allowed ranges.
    Address,
    /// The relay has reached [`Config::clients_max`](crate::Config).
    ClientsMax,
    /// The relay has reached [`Config::memory_bytes_max`](crate::Config).
    Memory,
    /// No link to the server is up.
    LinkDown,
    /// All ids of the least used link are in use.
    LinkFull,
    /// The relay or the service drains.
    Draining,
    /// The service's override is `off`.
    Off,
    /// The authentication of a library client failed.
    Handshake(LinkError),
    /// A library client was evicted for a newer client before it had authenticated.
    Evicted,
    /// A library client requested a connection for an address that is not its own.
    ForeignAddress,
    /// A library client requested a server that this service does not relieve.
    OtherServer,
    /// A library client has a session, and the server's version cannot carry sessions on a helper's link.
    OldServer,
    /// A trusted load balancer did not send a valid PROXY header.
    ProxyHeader(ProxyFault),
    /// The server refused the virtual connection.
    Server(RefuseReason),
}

/// Why the beginning of a trusted load balancer's connection was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// The bytes are not a valid PROXY header.
    Header(ProxyError),
    /// The connection ended within the header.
    Ended,
    /// The header was not complete within [`Timeouts::proxy_header`](crate::Timeouts).
    TimedOut,
}

impl fmt::Display for ProxyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyFault::Header(error) => write!(f, "it is in proxy_protocol_from, but {error}"),
            ProxyFault::Ended => f.write_str("its connection ended within the PROXY header"),
            ProxyFault::TimedOut => {
                f.write_str("it is in proxy_protocol_from, but sent no PROXY header in time")
            }
        }
    }
}

impl Refusal {
    /// The reason's name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Refusal::Address => "address",
            Refusal::ClientsMax => "clients_max",
            Refusal::Memory => "memory",
            Refusal::LinkDown => "link_down",
            Refusal::LinkFull => "link_full",
            Refusal::Draining => "draining",
            Refusal::Off => "off",
            Refusal::Handshake(_) => "handshake",
            Refusal::Evicted => "crowded",
            Refusal::ForeignAddress => "not_its_own_address",
            Refusal::OtherServer => "other_server",
            Refusal::OldServer => "old_server",
            Refusal::ProxyHeader(_) => "proxy_header",
            Refusal::Server(_) => "server",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Address => f.write_str("its address is outside the ranges of clients"),
            Refusal::ClientsMax => f.write_str("the helper has as many clients as it may (max_connections)"),
            Refusal::Memory => f.write_str("the helper has no memory for another client (max_memory)"),
            Refusal::LinkDown => f.write_str("no link to the server is up"),
            Refusal::LinkFull => {
                f.write_str("the link to the server carries as many clients as the server allows")
            }
            Refusal::Draining => f.write_str("the helper is draining"),
            Refusal::Off => f.write_str("relief of this service is off (spillway relief)"),
            Refusal::Handshake(error) => error.fmt(f),
            Refusal::Evicted => {
                f.write_str("it had not authenticated, and was closed for a newer client at the limit")
            }
            Refusal::ForeignAddress => {
                f.write_str("it requested a connection for an address that is not its own")
            }
            Refusal::OtherServer => f.write_str("it requested a server that this service does not relieve"),
            Refusal::OldServer => {
                f.write_str("it has a session, which the server's version cannot carry: update the server")
            }
            Refusal::ProxyHeader(fault) => fault.fmt(f),
            Refusal::Server(reason) => reason.fmt(f),
        }
    }
}

/// Why the relay reset a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// More than [`Config::connection_buffer_bytes`](crate::Config) of unread replies wait for the client.
    Buffer,
    /// Memory is scarce, and this client holds more unread bytes, or older ones, than others.
    Memory(MemoryReset),
    /// A library client broke the link protocol.
    Protocol(LinkError),
}

impl ResetReason {
    /// The reason's name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            ResetReason::Buffer => "buffer",
            ResetReason::Memory(_) => "memory",
            ResetReason::Protocol(_) => "protocol",
        }
    }
}

impl fmt::Display for ResetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResetReason::Buffer => f.write_str("it does not read its replies"),
            ResetReason::Memory(reset) => reset.fmt(f),
            ResetReason::Protocol(error) => error.fmt(f),
        }
    }
}
