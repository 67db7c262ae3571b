//! Hash maps whose order and collisions nobody outside can choose.

use core::hash::BuildHasher;

use siphasher::sip::SipHasher13;

use crate::isn::Key;

/// Keyed hashes for maps that peers have a say in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed(Key);

impl Keyed {
    pub(crate) fn new(key: Key) -> Keyed {
        Keyed(key)
    }
}

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0.0)
    }
}
