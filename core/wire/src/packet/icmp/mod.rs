//! ICMP as far as a TCP stack needs it: for IPv4 in [`v4`], for IPv6 with neighbour discovery in [`v6`].

pub mod v4;
pub mod v6;

use super::checksum::Sum;
use super::{Layer, PacketError};

/// Bytes of type, code and checksum.
const TYPE_TO_CHECKSUM_BYTES: usize = 4;

/// Bytes of the shortest message: every type has four bytes after the checksum.
pub const MESSAGE_BYTES_MIN: usize = 8;

/// Checks length and checksum. Returns the first [`MESSAGE_BYTES_MIN`] bytes and the rest.
fn split_verified(bytes: &[u8], pseudo: Sum) -> Result<(&[u8; MESSAGE_BYTES_MIN], &[u8]), PacketError> {
    let parts = split(bytes)?;
    if pseudo.add_bytes(bytes).finish() != 0 {
        return Err(PacketError::Checksum(Layer::Icmp));
    }
    Ok(parts)
}

/// Checks only the length. Returns the first [`MESSAGE_BYTES_MIN`] bytes and the rest.
fn split(bytes: &[u8]) -> Result<(&[u8; MESSAGE_BYTES_MIN], &[u8]), PacketError> {
    bytes.split_first_chunk::<MESSAGE_BYTES_MIN>().ok_or(PacketError::Truncated(Layer::Icmp))
}

/// Fills in type, code and checksum, the first four bytes of `out`. The bytes behind them must already be the body.
fn emit_head(out: &mut [u8], kind: u8, code: u8, pseudo: Sum) {
    out[..TYPE_TO_CHECKSUM_BYTES].copy_from_slice(&[kind, code, 0, 0]);
    let check = pseudo.add_bytes(out).finish();
    out[2..TYPE_TO_CHECKSUM_BYTES].copy_from_slice(&check.to_be_bytes());
}

/// Encodes two numbers as the four bytes after the checksum.
fn two_numbers(high: u16, low: u16) -> [u8; 4] {
    (u32::from(high) << 16 | u32::from(low)).to_be_bytes()
}
