//! Addresses and keys of the hosts of a world.

use core::net::{IpAddr, SocketAddr};

use spillway_auth::Key;

use crate::socket::HostId;

pub(crate) const SERVER: HostId = 0;

pub(crate) fn address(host: HostId, port: u16) -> SocketAddr {
    SocketAddr::new(ip(host), port)
}

pub(crate) fn ip(host: HostId) -> IpAddr {
    [10, 0, 0, 1 + host as u8].into() // fits: a world has few hosts
}

pub(crate) fn helper_key() -> Key {
    Key::from_secret([1; 32])
}

pub(crate) fn client_key() -> Key {
    Key::from_secret([2; 32])
}
