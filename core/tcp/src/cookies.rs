//! SYN cookies: connections that are remembered by the peer while the table of half-open ones is full (RFC 4987 §3.6).
