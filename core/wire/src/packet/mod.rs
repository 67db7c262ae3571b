//! Packets of the standard protocols that the user-level TCP stack speaks: one file a protocol.
//!
//! Each has `parse`, which takes any bytes and checks lengths and checksums, and `emit`, which writes what `parse`
//! reads. Nothing is allocated, and payloads are lent from the packet.

pub mod arp;
pub mod checksum;
mod error;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod tcp;
pub mod udp;

pub use error::{Layer, PacketError};
