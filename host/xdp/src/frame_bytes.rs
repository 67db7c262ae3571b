//! Sizes of frames and of the packets in them.

/// Bytes of a frame in the shared memory: half a page.
pub const FRAME_BYTES: usize = 2048;
/// Bytes that the kernel keeps free before each received packet (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: usize = 256;
/// Bytes of the longest received frame. The kernel drops longer ones.
pub const RECEIVED_BYTES_MAX: usize = FRAME_BYTES - HEADROOM_BYTES;
/// Bytes of the longest IP packet that fits a received frame after an Ethernet header with a VLAN tag.
pub const PACKET_BYTES_MAX: u32 = RECEIVED_BYTES_MAX as u32 - 18;
