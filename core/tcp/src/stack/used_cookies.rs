//! Cookies that were accepted. A cookie stays valid for a while, and a late copy of the segment that returned it would begin
//! its connection again and deliver its bytes twice. So each cookie is accepted once.
//!
//! An entry is made only after a complete handshake, so a flood of forged SYNs takes no room here. If the table is full, no
//! cookie is sent or accepted until the oldest entries expire; none is forgotten before.

use hashbrown::HashSet;

use crate::cookies;
use crate::hasher::{Keyed, keyed};
use crate::isn::{Key, Purpose};

#[derive(Debug)]
pub(super) struct UsedCookies {
    key: Key,
    many_max: usize,
    /// The counter of cookies that are made in this period.
    counter: u64,
    /// Cookies accepted in this period, and in the one before. Older cookies are no longer valid.
    present: Used,
    previous: Used,
}

#[derive(Debug)]
struct Used {
    /// Keyed hashes. Two collide once in 2^64 times, and then a connection is refused.
    names: HashSet<u64, Keyed>,
    /// A cookie that was used on another stack had no room here.
    is_incomplete: bool,
}

impl Used {
    fn new(key: Key) -> Used {
        Used { names: HashSet::with_hasher(keyed(key)), is_incomplete: false }
    }
}

impl UsedCookies {
    pub(super) fn new(many_max: usize, key: Key) -> UsedCookies {
        UsedCookies { key, many_max, counter: 0, present: Used::new(key), previous: Used::new(key) }
    }

    /// Forgets expired entries. Call it before any other method.
    pub(super) fn turn(&mut self, counter: u64) {
        if counter == self.counter {
            return;
        }
        let last = core::mem::replace(&mut self.present, Used::new(self.key));
        self.previous = if counter == self.counter + 1 { last } else { Used::new(self.key) };
        self.counter = counter;
    }

    /// Whether another cookie may be accepted: all used ones are known, and there is room.
    pub(super) fn may_take(&self) -> bool {
        let is_incomplete = self.present.is_incomplete || self.previous.is_incomplete;
        !is_incomplete && self.present.names.len() + self.previous.names.len() < self.many_max
    }

    pub(super) fn contains(&self, flow: cookies::Flow, initial: u32) -> bool {
        let name = self.name(flow, initial);
        self.present.names.contains(&name) || self.previous.names.contains(&name)
    }

    /// Adds a cookie that was used here, or by an imported connection.
    pub(super) fn add(&mut self, flow: cookies::Flow, initial: u32) {
        // An entry stays from the first use on for as long as the cookie is valid.
        if self.contains(flow, initial) {
            return;
        }
        if self.may_take() {
            self.present.names.insert(self.name(flow, initial));
        } else {
            self.present.is_incomplete = true;
        }
    }

    /// Hash of the cookie and of its connection: with another cookie the same peer may connect again.
    fn name(&self, flow: cookies::Flow, initial: u32) -> u64 {
        let numbers = u64::from(flow.peer_initial) << 32 | u64::from(initial);
        self.key.hash(Purpose::CookieUsed, flow.local, flow.peer, numbers)
    }
}
