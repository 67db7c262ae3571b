//! Work that a call defers until it holds no lock.

use libc::c_int;

use crate::carrier_name::{CarrierName, SessionName};
use crate::sys;

/// Deferred work: sets and threads to wake, and carriers to close because their session has moved.
#[derive(Default)]
pub(crate) struct Wakes {
    /// Event counters to write, each of a set or a blocked thread.
    event_counters: Vec<c_int>,
    left_carriers: Vec<(CarrierName, SessionName)>,
}

impl Wakes {
    pub(crate) fn push(&mut self, fd: c_int) {
        self.event_counters.push(fd);
    }

    /// Records a carrier that its session has left.
    pub(crate) fn push_left_carrier(&mut self, carrier: CarrierName, name: SessionName) {
        self.left_carriers.push((carrier, name));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.event_counters.is_empty() && self.left_carriers.is_empty()
    }

    /// Takes a carrier that its session has left.
    pub(crate) fn poll_left_carrier(&mut self) -> Option<(CarrierName, SessionName)> {
        self.left_carriers.pop()
    }

    /// Wakes each set or thread with one write.
    pub(crate) fn write(&mut self) {
        for fd in self.event_counters.drain(..) {
            let _ = sys::write(fd, &1u64.to_ne_bytes());
        }
    }
}
