//! What a call leaves to do until it holds no lock.

use libc::c_int;

use crate::carrier_name::{CarrierName, Name};
use crate::sys;

/// What is to be done once no lock is held: sets to wake, and links that are to leave sessions to others.
#[derive(Default)]
pub(crate) struct Wakes {
    sets: Vec<c_int>,
    left: Vec<(CarrierName, Name)>,
}

impl Wakes {
    pub(crate) fn push(&mut self, fd: c_int) {
        self.sets.push(fd);
    }

    /// What carried a session does so no more.
    pub(crate) fn leave(&mut self, carrier: CarrierName, name: Name) {
        self.left.push((carrier, name));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.left.is_empty()
    }

    /// A link that is to leave a session to another.
    pub(crate) fn poll_left(&mut self) -> Option<(CarrierName, Name)> {
        self.left.pop()
    }

    /// One write for each sleeping set.
    pub(crate) fn write(&mut self) {
        for fd in self.sets.drain(..) {
            let _ = sys::write(fd, &1u64.to_ne_bytes());
        }
    }
}
