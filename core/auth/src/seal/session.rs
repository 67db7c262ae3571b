//! A session between two runs: its key, and the numbers of its datagrams in both directions.

use core::num::NonZeroU64;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use spillway_wire::handoff::{HEAD_BYTES, Run, TAG_BYTES};
use spillway_wire::switch::ServerId;

use super::SealRejection;
use super::replay::ReplayWindow;
use crate::key::Key;

/// Number of datagrams that an end seals in one session: 26 days at 30,000 a second. They hold at most 2^42.6 blocks of
/// AES, so an attacker tells them from random bytes with a probability of at most 2^-43.
pub const COUNTERS_PER_SESSION: u64 = 1 << 36;

/// One end of a session: its run, and its greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) run: Run,
    pub(super) number: NonZeroU64,
}

impl End {
    /// The low half of the greeting's number, as heads name the session.
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    pub(super) fn session(&self) -> u32 {
        self.number.get() as u32
    }
}

pub(super) struct Session {
    /// The key of both directions: their nonces differ.
    key: LessSafeKey,
    ours: End,
    theirs: End,
    /// The first bytes of the nonces of sent datagrams: 0 from the lower server id to the higher, 1 from the higher to
    /// the lower.
    direction: u32,
    next_counter: u64,
    received: ReplayWindow,
}

impl Session {
    pub(super) fn new(key: &Key, ours: (ServerId, End), theirs: (ServerId, End)) -> Session {
        let is_lower = ours.0 < theirs.0;
        let mut context = [0; 34];
        let ends = if is_lower { [ours, theirs] } else { [theirs, ours] };
        for (bytes, (ServerId(id), end)) in context.chunks_exact_mut(17).zip(ends) {
            bytes[0] = id;
            bytes[1..9].copy_from_slice(&end.run.get().to_be_bytes());
            bytes[9..].copy_from_slice(&end.number.get().to_be_bytes());
        }
        let derived = key.derive(b"spillway move 1 session\0", &context);
        let unbound = UnboundKey::new(&AES_256_GCM, derived.secret()).expect("a key of AES-256 has 32 bytes");
        Session {
            key: LessSafeKey::new(unbound),
            ours: ours.1,
            theirs: theirs.1,
            direction: u32::from(!is_lower),
            next_counter: 0,
            received: ReplayWindow::default(),
        }
    }

    pub(super) fn peer(&self) -> End {
        self.theirs
    }

    pub(super) fn own_number(&self) -> NonZeroU64 {
        self.ours.number
    }

    /// Whether a datagram of this run, for this session of this end, belongs to the session.
    pub(super) fn is_between(&self, sender_run: Run, session: u32) -> bool {
        self.theirs.run == sender_run && self.ours.session() == session
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.next_counter >= COUNTERS_PER_SESSION
    }

    /// The counter of the next datagram. `None`: the session is exhausted.
    pub(super) fn take_counter(&mut self) -> Option<u64> {
        let counter = self.next_counter;
        (!self.is_exhausted()).then(|| {
            self.next_counter += 1;
            counter
        })
    }

    /// Encrypts `content` in place under a counter that [`take_counter`](Self::take_counter) has returned.
    pub(super) fn seal(&self, counter: u64, head: &[u8; HEAD_BYTES], content: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = nonce(self.direction, counter);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(head), content)
            .expect("a message is far below 2^36 - 32 bytes, the limit of AES-GCM");
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Decrypts a datagram in place, and returns its message.
    pub(super) fn open<'a>(
        &mut self,
        counter: u64,
        datagram: &'a mut [u8],
    ) -> Result<&'a mut [u8], SealRejection> {
        if counter >= COUNTERS_PER_SESSION {
            return Err(SealRejection::NotAuthentic); // this server's peers use no such counter
        }
        if !self.received.is_new(counter) {
            return Err(SealRejection::Replayed);
        }
        let (head, sealed) = datagram.split_at_mut(HEAD_BYTES);
        let nonce = nonce(1 - self.direction, counter);
        let opened = self.key.open_in_place(nonce, Aad::from(head), sealed);
        let opened = opened.map_err(|_| SealRejection::NotAuthentic)?;
        self.received.mark(counter);
        Ok(opened)
    }

    #[cfg(test)]
    pub(super) fn set_next_counter(&mut self, counter: u64) {
        self.next_counter = counter;
    }
}

/// Four bytes of direction, eight of counter.
fn nonce(direction: u32, counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..4].copy_from_slice(&direction.to_be_bytes());
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
