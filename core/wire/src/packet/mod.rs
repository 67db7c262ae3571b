//! Packets of the standard protocols that the user-level TCP stack uses, one file for each protocol.
//!
//! `parse` accepts any bytes and checks lengths and checksums; `emit` writes a packet that `parse` accepts. Neither
//! allocates: payloads borrow from the packet.

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
