//! The primitives of the Noise library: X25519 of curve25519-dalek, AES-256-GCM of ring, SHA-256 of sha2.
//!
//! The library's own resolver does not fit for two reasons: it takes ephemeral secrets from the operating system
//! instead of the caller, and it does not wipe keys.

use alloc::boxed::Box;
use core::hint::black_box;

use curve25519_dalek::MontgomeryPoint;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::{Zeroize, Zeroizing};

const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const CIPHER_NONCE_BYTES: usize = 12;

pub(crate) struct Primitives {
    pub(crate) ephemeral: Zeroizing<[u8; KEY_BYTES]>,
}

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(OneSecret { bytes: Some(self.ephemeral.clone()) }))
    }

    fn resolve_dh(&self, requested: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(requested, DHChoice::Curve25519).then(|| Box::new(X25519::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, requested: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(requested, HashChoice::SHA256).then(|| Box::new(Hasher::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, requested: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(requested, CipherChoice::AESGCM).then(|| Box::new(AesGcm::default()) as Box<dyn Cipher>)
    }
}

/// Returns the ephemeral secret once, and an error after that, because an ephemeral secret must not be used twice.
struct OneSecret {
    bytes: Option<Zeroizing<[u8; KEY_BYTES]>>,
}

impl Random for OneSecret {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.bytes.take() {
            Some(bytes) if out.len() == KEY_BYTES => {
                out.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(Error::Rng),
        }
    }
}

#[derive(Default)]
struct X25519 {
    secret: Zeroizing<[u8; KEY_BYTES]>,
    public: [u8; KEY_BYTES],
}

impl X25519 {
    fn derive_public(&mut self) {
        self.public = MontgomeryPoint::mul_base_clamped(*self.secret).to_bytes();
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, secret: &[u8]) {
        self.secret.copy_from_slice(&secret[..KEY_BYTES]);
        self.derive_public();
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        random.try_fill_bytes(&mut *self.secret)?;
        self.derive_public();
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.secret
    }

    /// Rejects public keys of small order: their shared secret is zero for every private key (RFC 7748 §6.1).
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public: [u8; KEY_BYTES] =
            public.get(..KEY_BYTES).and_then(|key| key.try_into().ok()).ok_or(Error::Dh)?;
        let shared = Zeroizing::new(MontgomeryPoint(public).mul_clamped(*self.secret).to_bytes());
        if shared.iter().fold(0, |bits, byte| bits | byte) == 0 {
            return Err(Error::Dh);
        }
        out[..KEY_BYTES].copy_from_slice(&*shared);
        Ok(())
    }
}

#[derive(Default)]
struct Hasher(Sha256);

impl Hash for Hasher {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// AES-256-GCM with the nonce of Noise §12.4: four bytes of 0, then the counter in network order.
struct AesGcm {
    key: LessSafeKey,
}

fn expanded_key(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 has keys of 32 bytes");
    LessSafeKey::new(key)
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; CIPHER_NONCE_BYTES];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    // The Noise library uses each counter value once per key.
    Nonce::assume_unique_for_key(bytes)
}

impl Default for AesGcm {
    fn default() -> AesGcm {
        AesGcm { key: expanded_key(&[0; KEY_BYTES]) }
    }
}

impl Drop for AesGcm {
    /// Overwrites the key with a constant one, because ring does not wipe keys.
    fn drop(&mut self) {
        self.key = expanded_key(&[0; KEY_BYTES]);
        black_box(&mut self.key);
    }
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        self.key = expanded_key(key);
    }

    fn encrypt(&self, counter: u64, associated: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        let (ciphertext, rest) = out.split_at_mut(plain.len());
        ciphertext.copy_from_slice(plain);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(counter), Aad::from(associated), ciphertext)
            .expect("a Noise message has at most 65,535 bytes, the limit of AES-GCM is 2^36 - 32");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        plain.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        counter: u64,
        associated: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let plain = sealed.len().checked_sub(TAG_BYTES).ok_or(Error::Decrypt)?;
        let (ciphertext, tag) = sealed.split_at(plain);
        let tag = tag.try_into().map_err(|_| Error::Decrypt)?;
        let out = out.get_mut(..plain).ok_or(Error::Decrypt)?;
        out.copy_from_slice(ciphertext);
        let opened =
            self.key.open_in_place_separate_tag(nonce(counter), Aad::from(associated), tag, out, 0..);
        if opened.is_err() {
            // `out` may hold bytes that are not authenticated.
            out.zeroize();
            return Err(Error::Decrypt);
        }
        Ok(plain)
    }

    /// Same as the library's `rekey` (Noise §4.2), but wipes its copy of the new key.
    fn rekey(&mut self) {
        let mut sealed = Zeroizing::new([0; KEY_BYTES + TAG_BYTES]);
        self.encrypt(u64::MAX, &[], &[0; KEY_BYTES], &mut *sealed);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(&sealed[..KEY_BYTES]);
        self.set(&key);
    }
}
