//! Cookies that were accepted. A cookie stays valid for about two minutes; a late copy of the segment that returned it
//! would open its connection again and deliver its bytes twice. So each cookie is accepted once.
//!
//! An entry is made only after a complete handshake, so a flood of forged SYNs takes no room here. If the table is
//! full, no cookie is sent or accepted until the oldest entries expire; entries are never removed earlier.

use hashbrown::HashSet;

use crate::cookies;
use crate::hasher::{Keyed, keyed};
use crate::isn::{Key, Purpose};

#[derive(Debug)]
pub(super) struct UsedCookies {
    key: Key,
    cookies_max: usize,
    /// [`cookies::Cookies::counter`] in the present period.
    counter: u64,
    /// Cookies accepted in the present period, and in the one before. Older cookies are no longer valid.
    present: Used,
    previous: Used,
}

#[derive(Debug)]
struct Used {
    /// Keyed hashes of cookies. A collision, once in 2^64 cases, refuses a connection.
    hashes: HashSet<u64, Keyed>,
    /// There was no room for a cookie of an imported connection, so used cookies may be missing.
    is_incomplete: bool,
}

impl Used {
    fn new(key: Key) -> Used {
        Used { hashes: HashSet::with_hasher(keyed(key)), is_incomplete: false }
    }
}

impl UsedCookies {
    pub(super) fn new(cookies_max: usize, key: Key) -> UsedCookies {
        UsedCookies { key, cookies_max, counter: 0, present: Used::new(key), previous: Used::new(key) }
    }

    /// Sets the present period, and removes expired entries. Call it before any other method.
    pub(super) fn advance_to(&mut self, counter: u64) {
        if counter == self.counter {
            return;
        }
        let last = core::mem::replace(&mut self.present, Used::new(self.key));
        self.previous = if counter == self.counter + 1 { last } else { Used::new(self.key) };
        self.counter = counter;
    }

    /// Whether another cookie may be accepted: no used cookie is missing, and there is room.
    pub(super) fn has_room(&self) -> bool {
        let is_incomplete = self.present.is_incomplete || self.previous.is_incomplete;
        !is_incomplete && self.present.hashes.len() + self.previous.hashes.len() < self.cookies_max
    }

    pub(super) fn contains(&self, binding: cookies::Binding, initial: u32) -> bool {
        let hash = self.hash(binding, initial);
        self.present.hashes.contains(&hash) || self.previous.hashes.contains(&hash)
    }

    /// Adds a cookie of an accepted or imported connection.
    pub(super) fn add(&mut self, binding: cookies::Binding, initial: u32) {
        // A second use does not renew an entry.
        if self.contains(binding, initial) {
            return;
        }
        if self.has_room() {
            self.present.hashes.insert(self.hash(binding, initial));
        } else {
            self.present.is_incomplete = true;
        }
    }

    /// Hash of the cookie and its connection: with another cookie the same peer may connect again.
    fn hash(&self, binding: cookies::Binding, initial: u32) -> u64 {
        let numbers = u64::from(binding.peer_initial) << 32 | u64::from(initial);
        self.key.hash(Purpose::CookieUsed, binding.local, binding.peer, numbers)
    }
}
