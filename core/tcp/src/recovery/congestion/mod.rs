//! Congestion control: slow start here (RFC 5681 §3.1), congestion avoidance behind a trait.

pub mod cubic;
pub mod hystart;
pub mod newreno;

use core::time::Duration;

use spillway_transport::Time;

use super::settings::Algorithm;
use cubic::Cubic;
use newreno::NewReno;

/// The slow start threshold before the first loss.
pub const THRESHOLD_INITIAL: u64 = u64::MAX;

/// The variables of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The congestion window, in bytes.
    pub cwnd: u64,
    /// The slow start threshold, in bytes.
    pub ssthresh: u64,
    /// The segment size, in bytes.
    pub mss: u64,
}

impl Window {
    /// The smallest threshold after a loss, in bytes (RFC 5681 §3.1, equation 4).
    pub fn least(&self) -> u64 {
        2 * self.mss
    }
}

/// An algorithm for congestion avoidance.
pub trait Controller {
    /// `acked` bytes were acknowledged while the window was the limit, outside of slow start and recovery. `rtt` is the
    /// smoothed round-trip time.
    fn on_ack(&mut self, now: Time, window: &mut Window, acked: u64, rtt: Duration);

    /// Bytes were acknowledged while the window was not the limit: this time does not count for its growth.
    fn on_unlimited(&mut self, now: Time);

    /// A loss was found; `flight` bytes were in flight before the acknowledgement that revealed it. Sets the threshold.
    /// The recovery sets the window.
    fn on_loss(&mut self, window: &mut Window, flight: u64);

    /// A timeout with `flight` bytes in flight. Sets the threshold; the window becomes one segment.
    fn on_timeout(&mut self, window: &mut Window, flight: u64);
}

/// The algorithm of a connection, stored inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    Cubic(Cubic),
    NewReno(NewReno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Congestion {
    pub window: Window,
    pub selected: Selected,
}

impl Congestion {
    pub(super) fn new(algorithm: Algorithm, cwnd: u64, mss: u32) -> Congestion {
        let selected = match algorithm {
            Algorithm::Cubic => Selected::Cubic(Cubic::default()),
            Algorithm::NewReno => Selected::NewReno(NewReno::default()),
        };
        Congestion { window: Window { cwnd, ssthresh: THRESHOLD_INITIAL, mss: u64::from(mss) }, selected }
    }

    pub(super) fn controller(&mut self) -> &mut dyn Controller {
        match &mut self.selected {
            Selected::Cubic(cubic) => cubic,
            Selected::NewReno(newreno) => newreno,
        }
    }

    /// Grows the window, after `acked` bytes were acknowledged.
    ///
    /// Slow start counts all acknowledged bytes, as in Linux, rather than a few segments per acknowledgement (RFC
    /// 3465): peers may acknowledge 64 KiB at once. After a timeout `slow_start_max` is one segment.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        acked: u64,
        slow_start_max: u64,
        rtt: Duration,
        window_max: u64,
    ) {
        let window = &mut self.window;
        let mut remaining = acked;
        if window.cwnd < window.ssthresh {
            let step = acked.min(slow_start_max).min(window.ssthresh - window.cwnd);
            window.cwnd += step;
            remaining = if window.cwnd < window.ssthresh { 0 } else { acked - step };
        }
        if remaining > 0 {
            let mut window = self.window;
            self.controller().on_ack(now, &mut window, remaining, rtt);
            self.window = window;
        }
        self.window.cwnd = self.window.cwnd.min(window_max);
    }

    pub(super) fn on_unlimited(&mut self, now: Time) {
        match &mut self.selected {
            Selected::Cubic(cubic) => cubic.on_unlimited(now),
            Selected::NewReno(newreno) => newreno.on_unlimited(now),
        }
    }

    pub(super) fn on_loss(&mut self, flight: u64) {
        let mut window = self.window;
        self.controller().on_loss(&mut window, flight);
        self.window = window;
    }

    pub(super) fn on_timeout(&mut self, flight: u64) {
        let mut window = self.window;
        self.controller().on_timeout(&mut window, flight);
        window.cwnd = window.mss;
        self.window = window;
    }
}
