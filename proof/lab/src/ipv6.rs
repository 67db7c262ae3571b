//! IPv6 in namespaces of a lab: off, or without background traffic.

use std::net::Ipv6Addr;

/// No IPv6.
pub(crate) const OFF: [(&str, &str); 2] =
    [("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")];

/// IPv6 with configured addresses only. Without link-local addresses, detection of duplicates and solicitations of
/// routers, an idle network carries almost no packets.
pub(crate) const QUIET: [(&str, &str); 6] = [
    ("net/ipv6/conf/all/disable_ipv6", "0"),
    ("net/ipv6/conf/default/disable_ipv6", "0"),
    ("net/ipv6/conf/default/addr_gen_mode", "1"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
];

/// The address in the lab's network that ends with this number.
pub(crate) fn address(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number.into())
}
