//! Work that a call leaves until it holds no lock.

use libc::c_int;

use crate::carrier_name::{CarrierName, Name};
use crate::sys;

/// Work to do once no lock is held: sets to wake, and carriers that no longer carry their session.
#[derive(Default)]
pub(crate) struct Wakes {
    sets: Vec<c_int>,
    left: Vec<(CarrierName, Name)>,
}

impl Wakes {
    pub(crate) fn push(&mut self, fd: c_int) {
        self.sets.push(fd);
    }

    /// Notes that a carrier no longer carries its session.
    pub(crate) fn leave(&mut self, carrier: CarrierName, name: Name) {
        self.left.push((carrier, name));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.left.is_empty()
    }

    /// Takes a carrier that no longer carries its session.
    pub(crate) fn poll_left(&mut self) -> Option<(CarrierName, Name)> {
        self.left.pop()
    }

    /// Wakes each sleeping set or thread with one write.
    pub(crate) fn write(&mut self) {
        for fd in self.sets.drain(..) {
            let _ = sys::write(fd, &1u64.to_ne_bytes());
        }
    }
}
