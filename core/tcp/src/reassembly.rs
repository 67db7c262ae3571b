//! Bytes that came out of order (RFC 9293 §3.10.7.4).
