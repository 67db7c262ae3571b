//! Why a link is down, and why clients are refused or reset.

use core::fmt;

use spillway_batch::{LinkError, RefuseReason};
pub use spillway_policy::memory::MemoryCut;
use spillway_transport::LostReason;
use spillway_wire::ProxyError;

/// Why a link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDown {
    /// Its connection could not be opened, or was lost.
    Lost(LostReason),
    /// The server closed it.
    ClosedByServer,
    /// The server did not answer within the connect timeout.
    ConnectTimeout,
    /// This host has no room for another connection.
    HostFull,
    /// The two ends do not understand each other.
    Link(LinkError),
}

impl LinkDown {
    /// Its name in logs and metrics.
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
                f.write_str("the server refused the connection: is its link port open?")
            }
            LinkDown::Lost(LostReason::Reset) => f.write_str("the server reset the connection"),
            LinkDown::Lost(LostReason::TimedOut) => f.write_str("the server stopped answering"),
            LinkDown::Lost(LostReason::Failed) => f.write_str("the network reports an error"),
            LinkDown::Lost(LostReason::Closed) | LinkDown::ClosedByServer => {
                f.write_str("the server closed the connection")
            }
            LinkDown::ConnectTimeout => f.write_str("the server did not answer within the connect timeout"),
            LinkDown::HostFull => {
                f.write_str("this host has no room for a connection: raise its descriptor limit")
            }
            LinkDown::Link(error) => error.fmt(f),
        }
    }
}

/// Why a client was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its address is outside the allowed ranges.
    Address,
    /// The relay has as many clients as it may.
    ClientsMax,
    /// The relay's buffers are nearly full.
    Memory,
    /// No link to the server is up.
    LinkDown,
    /// All ids of the links are in use.
    LinkFull,
    /// The relay is going away.
    Draining,
    /// The operator wants no relief.
    Off,
    /// A library client that does not authenticate.
    Handshake(LinkError),
    /// A library client that had not authenticated yet and was dropped for a newer one.
    Crowded,
    /// A library client that speaks for another address.
    NotItsOwnAddress,
    /// A library client that wants another server.
    OtherServer,
    /// A library client's session, which the server's end of the link is too old to carry.
    OldServer,
    /// A load balancer that is trusted to say who its clients are did not.
    ProxyHeader(ProxyFault),
    /// The server refused it.
    Server(RefuseReason),
}

/// What is wrong with how a trusted load balancer began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// Its header is none, or a wrong one.
    Header(ProxyError),
    /// It ended before its header did.
    Ended,
    /// Its header did not come in time.
    TimedOut,
}

impl fmt::Display for ProxyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyFault::Header(error) => write!(f, "it is in proxy_protocol_from, but {error}"),
            ProxyFault::Ended => f.write_str("it ended within its PROXY header"),
            ProxyFault::TimedOut => {
                f.write_str("it is in proxy_protocol_from, but its PROXY header did not come in time")
            }
        }
    }
}

impl Refusal {
    /// Its name in logs and metrics.
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
            Refusal::Crowded => "crowded",
            Refusal::NotItsOwnAddress => "not_its_own_address",
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
            Refusal::Memory => f.write_str("the helper's buffers are nearly full (max_memory)"),
            Refusal::LinkDown => f.write_str("no link to the server is up"),
            Refusal::LinkFull => {
                f.write_str("the link to the server carries as many clients as the server lets it")
            }
            Refusal::Draining => f.write_str("the helper is going away"),
            Refusal::Off => f.write_str("the operator wants no relief (spillway relief)"),
            Refusal::Handshake(error) => error.fmt(f),
            Refusal::Crowded => f.write_str(
                "too many connections had not authenticated yet, and it was dropped for a newer one",
            ),
            Refusal::NotItsOwnAddress => f.write_str("it speaks for an address that is not its own"),
            Refusal::OtherServer => f.write_str("it wants a server that is not served here"),
            Refusal::OldServer => {
                f.write_str("it has a session, and the server's end is too old: update the server")
            }
            Refusal::ProxyHeader(fault) => fault.fmt(f),
            Refusal::Server(reason) => reason.fmt(f),
        }
    }
}

/// Why a client was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The bytes that wait for it are too many: it does not read.
    Buffer,
    /// Memory is short, and this client holds more of it, for longer, than others.
    Memory(MemoryCut),
    /// A library client broke the protocol.
    Protocol(LinkError),
}

impl Cut {
    /// Its name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Cut::Buffer => "buffer",
            Cut::Memory(_) => "memory",
            Cut::Protocol(_) => "protocol",
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Buffer => f.write_str("it does not read what it asked for"),
            Cut::Memory(cut) => cut.fmt(f),
            Cut::Protocol(error) => error.fmt(f),
        }
    }
}
