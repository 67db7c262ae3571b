//! The values of the maps in `c/hold.bpf.c`.

use spillway_parts::SlotKey;

/// Bytes of the key of a flow.
pub(super) const FLOW_BYTES: usize = 40;
/// Bytes of `struct buffer`.
const BUFFER_BYTES: usize = 88;
/// Bytes of `struct taken`.
const TAKEN_BYTES: usize = 24;
/// Bytes that a packet takes in the ring besides its own: the ring's header, `struct head`, and padding to a multiple of 8.
pub(super) const OVERHEAD_BYTES: u64 = 8 + 8 + 7;

/// A part of `struct buffer`: what the program has put into the ring for a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) dropped_frames: u64,
}

/// `struct taken`: what was taken of a flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) is_draining: bool,
}

/// `struct held`.
pub(super) fn held(key: SlotKey) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&key.slot().to_ne_bytes());
    value[4..].copy_from_slice(&key.generation().to_ne_bytes());
    value
}

/// A record of the ring: the flow's key and the packet.
pub(super) fn record(bytes: &[u8]) -> Option<(SlotKey, Vec<u8>)> {
    let (slot, rest) = bytes.split_first_chunk()?;
    let (generation, packet) = rest.split_first_chunk()?;
    let key = SlotKey::new(u32::from_ne_bytes(*slot), u32::from_ne_bytes(*generation));
    Some((key, packet.to_vec()))
}

/// `struct buffer` of a flow without packets.
pub(super) fn empty_buffer(
    flow: &[u8; FLOW_BYTES],
    generation: u32,
    frames_max: u32,
    bytes_max: u32,
) -> [u8; BUFFER_BYTES] {
    let mut value = [0; BUFFER_BYTES];
    value[4..8].copy_from_slice(&generation.to_ne_bytes());
    value[8..48].copy_from_slice(flow);
    value[72..80].copy_from_slice(&u64::from(bytes_max).to_ne_bytes());
    value[80..84].copy_from_slice(&frames_max.to_ne_bytes());
    value
}

impl Filled {
    pub(super) fn parse(value: &[u8]) -> Option<Filled> {
        let number = |at: usize| value.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        Some(Filled { frames: number(48)?, bytes: number(56)?, dropped_frames: number(64)? })
    }
}

impl Taken {
    pub(super) fn value(self) -> [u8; TAKEN_BYTES] {
        let mut value = [0; TAKEN_BYTES];
        value[..8].copy_from_slice(&self.frames.to_ne_bytes());
        value[8..16].copy_from_slice(&self.bytes.to_ne_bytes());
        value[16..24].copy_from_slice(&u64::from(self.is_draining).to_ne_bytes());
        value
    }
}
