//! Settings for the tests of these files.

use core::net::{IpAddr, Ipv4Addr};

use spillway_wire::packet::ethernet::Mac;

use super::address::OwnAddress;
use super::values::{Resolver, Settings};
use crate::isn::Key;

/// Settings with one IPv4 address.
pub(super) fn settings() -> Settings {
    Settings::new(Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1), 24, Key([7; 16]))
}

/// Settings with an address of each family.
pub(super) fn both() -> Settings {
    let mut settings = Settings { resolver: Resolver::Driver, ..settings() };
    settings.addresses.push(OwnAddress::new(ip("fd00::1"), 64));
    settings
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
