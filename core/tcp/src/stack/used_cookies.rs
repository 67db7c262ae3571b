//! Cookies of which a connection has come. A cookie stays good for a while, and the segment that brought it may be repeated
//! for as long: after its connection is over it would begin that anew, and its bytes would come twice. So each is good once.
//!
//! Who is remembered has ended a handshake: a flood of forged SYNs takes no room here. When there is none, no cookie is
//! given or taken until the oldest are not good any more; none is forgotten before.

use hashbrown::HashSet;

use crate::cookies;
use crate::hasher::{Keyed, keyed};
use crate::isn::{Key, Purpose};

#[derive(Debug)]
pub(super) struct UsedCookies {
    key: Key,
    many_max: usize,
    /// The counter of cookies that are made now.
    counter: u64,
    /// Used while that was the counter, and while the one before was. Older ones are good no more.
    present: Used,
    previous: Used,
}

#[derive(Debug)]
struct Used {
    /// Keyed hashes. Two are the same once in 2^64 times, and then a connection does not come to be.
    names: HashSet<u64, Keyed>,
    /// There was no room for one that was used elsewhere.
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

    /// Forgets those that are good no more; to be called before anything else.
    pub(super) fn turn(&mut self, counter: u64) {
        if counter == self.counter {
            return;
        }
        let last = core::mem::replace(&mut self.present, Used::new(self.key));
        self.previous = if counter == self.counter + 1 { last } else { Used::new(self.key) };
        self.counter = counter;
    }

    /// Whether another may be taken: it is known of all that were used, and there is room.
    pub(super) fn may_take(&self) -> bool {
        let is_incomplete = self.present.is_incomplete || self.previous.is_incomplete;
        !is_incomplete && self.present.names.len() + self.previous.names.len() < self.many_max
    }

    pub(super) fn contains(&self, flow: cookies::Flow, initial: u32) -> bool {
        let name = self.name(flow, initial);
        self.present.names.contains(&name) || self.previous.names.contains(&name)
    }

    /// A connection has come of it, here or elsewhere.
    pub(super) fn add(&mut self, flow: cookies::Flow, initial: u32) {
        // If it is there, it has been since it was first used, and will be for as long as it is good.
        if self.contains(flow, initial) {
            return;
        }
        if self.may_take() {
            self.present.names.insert(self.name(flow, initial));
        } else {
            self.present.is_incomplete = true;
        }
    }

    /// The cookie itself, and whose it is: with another one, the same peer may begin anew.
    fn name(&self, flow: cookies::Flow, initial: u32) -> u64 {
        let numbers = u64::from(flow.peer_initial) << 32 | u64::from(initial);
        self.key.hash(Purpose::CookieUsed, flow.local, flow.peer, numbers)
    }
}
