//! Addresses in control messages: 16 bytes, with IPv4 addresses as `::ffff:a.b.c.d`, and a port.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{FAMILY_IPV4, FAMILY_IPV6, MessageError};
use crate::packet::ethernet::Mac;

/// Identifies a sender of control messages in the switch's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u8);

impl ServerId {
    /// The switch's own daemon. All other ids are servers.
    pub const DAEMON: ServerId = ServerId(0);
}

impl TryFrom<u32> for ServerId {
    type Error = MessageError;

    fn try_from(sender: u32) -> Result<ServerId, MessageError> {
        u8::try_from(sender).map(ServerId).map_err(|_| MessageError::Sender(sender))
    }
}

impl From<ServerId> for u32 {
    fn from(ServerId(id): ServerId) -> u32 {
        id.into()
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An IP address and a port, as in messages.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    address: [u8; 16],
    port: u16,
}

impl Endpoint {
    /// No endpoint: a message's field without an address.
    pub const ZERO: Endpoint = Endpoint { address: [0; 16], port: 0 };

    /// `address` in the form of messages: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub const fn new(address: [u8; 16], port: u16) -> Endpoint {
        Endpoint { address, port }
    }

    /// The address in the form of messages.
    pub const fn address(&self) -> [u8; 16] {
        self.address
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address; an IPv4 address in its own form.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.address).to_canonical()
    }

    /// The address family as in [`field::FAMILY`](super::field::FAMILY): 4 or 6.
    pub fn family(&self) -> u8 {
        if self.ip().is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 }
    }

    /// Whether the address is that of no host: `::`, also with a port.
    pub fn is_unspecified(&self) -> bool {
        self.address == [0; 16]
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(from: SocketAddr) -> Endpoint {
        let address = match from.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Endpoint::new(address.octets(), from.port())
    }
}

impl From<Endpoint> for SocketAddr {
    fn from(from: Endpoint) -> SocketAddr {
        SocketAddr::new(from.ip(), from.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A TCP connection of a client as the switch knows it. Both endpoints have one address family, and neither has the
/// unspecified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    client: Endpoint,
    service: Endpoint,
}

impl Flow {
    /// # Errors
    /// The address families differ, or an address is unspecified.
    pub fn new(client: Endpoint, service: Endpoint) -> Result<Flow, MessageError> {
        if client.is_unspecified() {
            return Err(MessageError::Missing("client"));
        }
        if service.is_unspecified() {
            return Err(MessageError::Missing("service"));
        }
        if client.family() != service.family() {
            return Err(MessageError::Family(client.family()));
        }
        Ok(Flow { client, service })
    }

    /// The client's end.
    pub const fn client(&self) -> Endpoint {
        self.client
    }

    /// The end to which the client has connected.
    pub const fn service(&self) -> Endpoint {
        self.service
    }
}

/// Where a server has connections of a service: what the switch writes into packets for that server. Not all zero,
/// because zeros in a message stand for the absence of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    endpoint: Endpoint,
    mac: Mac,
}

impl Site {
    /// `None` if all is zero. Checks nothing else: the switch compares sites with its configuration.
    pub fn new(endpoint: Endpoint, mac: Mac) -> Option<Site> {
        (endpoint != Endpoint::ZERO || mac != Mac::ZERO).then_some(Site { endpoint, mac })
    }

    /// Address and port.
    pub const fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The server's Ethernet address.
    pub const fn mac(&self) -> Mac {
        self.mac
    }
}
