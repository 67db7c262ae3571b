//! Frames with random bytes.

use spillway_parts::Random;

use super::pair::{CLIENT, CLIENT_IPV6, Family, OURS, SERVER, SERVER_IPV6};

/// A packet to the stack's port, with random bytes after the ports. So its checksums are wrong.
pub fn random_frame(family: Family, random: &mut Random, mac: [u8; 6]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(200);
    frame.extend(mac);
    frame.extend([2, 9, 9, 9, 9, 9]);
    if family == Family::V4 {
        frame.extend([0x08, 0x00, 0x45, 0, 0, 60, 0, 1, 0x40, 0, 64, 6, 0, 0]);
        frame.extend(CLIENT.octets());
        frame.extend(SERVER.octets());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 6, 64]);
        frame.extend(CLIENT_IPV6.octets());
        frame.extend(SERVER_IPV6.octets());
    }
    frame.extend((random.word() as u16).to_be_bytes());
    frame.extend(OURS.to_be_bytes());
    frame.extend((0..36 + random.below(100)).map(|_| random.word() as u8));
    frame
}

/// As [`random_frame`], but with up to two random bytes in the headers or elsewhere, and perhaps cut.
pub fn noise_frame(family: Family, random: &mut Random, mac: [u8; 6]) -> Vec<u8> {
    let mut frame = random_frame(family, random, mac);
    for _ in 0..random.below(3) {
        let at = 12 + random.below(frame.len() as u64 - 12) as usize;
        frame[at] = random.word() as u8;
    }
    frame.truncate(14.max(random.below(2 * frame.len() as u64) as usize));
    frame
}
