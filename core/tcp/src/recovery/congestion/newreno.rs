//! Congestion avoidance of RFC 5681: the window grows by a segment per round trip, and is halved after a loss.

use core::time::Duration;

use spillway_transport::Time;

use super::{Controller, Window};

/// The state of NewReno.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewReno {
    /// Bytes acknowledged since the window last grew (RFC 3465 §2.1).
    pub acked: u64,
}

impl Controller for NewReno {
    fn on_ack(&mut self, _: Time, window: &mut Window, acked: u64, _: Duration) {
        self.acked = self.acked.saturating_add(acked);
        if self.acked >= window.cwnd {
            self.acked = (self.acked - window.cwnd).min(window.cwnd);
            window.cwnd += window.mss;
        }
    }

    fn on_unlimited(&mut self, _: Time) {}

    fn on_loss(&mut self, window: &mut Window, flight: u64) {
        self.acked = 0;
        window.ssthresh = (flight / 2).max(window.least());
    }

    fn on_timeout(&mut self, window: &mut Window, flight: u64) {
        self.on_loss(window, flight);
    }
}
