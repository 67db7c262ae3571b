//! IPv6 in namespaces of a lab: off, or without background traffic.

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
