//! The stack against scripted peers, in tests that read like packet traces; one module for each mechanism.

/// `traces_over_ipv6.rs` runs the same traces over IPv6.
const IS_IPV6: bool = false;

mod trace;

mod acceptance;
mod acks;
mod arp;
mod closing;
mod cookies;
mod dropped;
mod flood;
mod gate;
mod give_up;
mod handshake;
mod icmp;
mod ipv6;
mod keep_alive;
mod long_streams;
mod memory;
mod migration;
mod options;
mod paws;
mod persist;
mod random_frames;
mod reassembly;
mod resets;
mod sack;
mod silly;
mod simultaneous;
mod specification;
mod time_wait;
mod windows;
