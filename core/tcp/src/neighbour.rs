//! Which Ethernet address an IPv4 address has (RFC 826).
