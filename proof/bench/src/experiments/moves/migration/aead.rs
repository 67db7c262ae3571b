//! AES-256-GCM of two libraries, for the parts of a state: `ring`, which the servers use, and RustCrypto's.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, KeyInit};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use spillway_wire::handoff::PART_BYTES;

use crate::experiments::moves::thread_cpu;

/// The names of the libraries, in the order of [`measure`].
pub(super) const LIBRARIES: [&str; 2] = ["ring", "RustCrypto aes-gcm"];

const KEY: [u8; 32] = [5; 32];
/// Bytes that are authenticated and not encrypted: as many as a datagram's head has.
const HEAD: [u8; 24] = [3; 24];

/// Mean CPU time to seal and to open a state of `bytes` bytes in parts, in µs, by library.
pub(super) fn measure(bytes: usize, states: usize) -> Result<[f64; LIBRARIES.len()], String> {
    let failed = |_| "AES-256-GCM refused a part".to_owned();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &KEY).map_err(failed)?);
    let with_ring = |nonce: [u8; NONCE_LEN], part: &mut Vec<u8>| {
        let nonce = || Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce(), Aad::from(&HEAD), part)
            .and_then(|()| key.open_in_place(nonce(), Aad::from(&HEAD), part).map(|opened| opened.len()))
            .map_err(failed)
    };
    let other = Aes256Gcm::new(&KEY.into());
    let with_other = |nonce: [u8; NONCE_LEN], part: &mut Vec<u8>| {
        let failed = |_| "RustCrypto's AES-256-GCM refused a part".to_owned();
        other.encrypt_in_place(&nonce.into(), &HEAD, part).map_err(failed)?;
        other.decrypt_in_place(&nonce.into(), &HEAD, part).map_err(failed)?;
        Ok(part.len())
    };
    Ok([time(bytes, states, with_ring)?, time(bytes, states, with_other)?])
}

/// `run` seals and opens a part under a nonce, and returns the length of what it has opened.
fn time(
    bytes: usize,
    states: usize,
    run: impl Fn([u8; NONCE_LEN], &mut Vec<u8>) -> Result<usize, String>,
) -> Result<f64, String> {
    let bytes = bytes.max(1);
    let mut part = Vec::new();
    let mut number = 0_u64;
    let start = thread_cpu::own();
    for _ in 0..states {
        for first in (0..bytes).step_by(PART_BYTES) {
            let length = PART_BYTES.min(bytes - first);
            part.clear();
            part.resize(length, 7);
            number += 1;
            let mut nonce = [0; NONCE_LEN];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            if run(nonce, &mut part)? != length || part[..length].iter().any(|byte| *byte != 7) {
                return Err("a sealed part was opened as another one".into());
            }
        }
    }
    Ok(thread_cpu::own().saturating_sub(start).as_nanos() as f64 / 1000.0 / states as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_open_what_they_have_sealed() {
        for bytes in [0, PART_BYTES, 16 << 10] {
            assert!(measure(bytes, 2).unwrap().iter().all(|time| *time > 0.0));
        }
    }
}
