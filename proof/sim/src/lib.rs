//! Deterministic simulator of clients, helpers and servers.
