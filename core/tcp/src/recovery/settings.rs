//! Settings of loss recovery, the same for all connections of a host.

use core::time::Duration;

/// The congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438), as most hosts of the Internet use.
    Cubic,
    /// NewReno (RFC 5681).
    NewReno,
}

/// Settings of recovery and congestion control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The minimum by which the retransmission timeout exceeds the smoothed round-trip time.
    pub rto_min: Duration,
    /// The longest retransmission timeout, backed off or not. RFC 6298 §2.5 permits no less than 60 s.
    pub rto_max: Duration,
    /// The retransmission timeout before the first measured round trip (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// The congestion control algorithm.
    pub algorithm: Algorithm,
    /// The initial window, in segments (RFC 6928 §2).
    pub initial_window_segments: u32,
    /// Whether to send a tail loss probe before the retransmission timeout (RFC 8985 §7). Needs SACK.
    pub tail_loss_probe: bool,
    /// Whether the first slow start slows down when round trips become longer, instead of continuing to the first loss
    /// (HyStart++, RFC 9406).
    pub hystart: bool,
    /// The maximum of the congestion window and of the bytes in flight.
    pub window_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            rto_initial: Duration::from_secs(1),
            algorithm: Algorithm::Cubic,
            initial_window_segments: 10,
            tail_loss_probe: true,
            hystart: true,
            window_bytes_max: 4 << 20,
        }
    }
}

/// Bound of windows with any settings: the largest that window scaling can express (RFC 7323 §2.3).
const WINDOW_BYTES_LIMIT: u64 = 1 << 30;

/// The settings that each connection keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    window_bytes_max: u64,
    initial_window_segments: u32,
    pub tail_loss_probe: bool,
    pub hystart: bool,
}

impl Limits {
    pub(super) fn new(settings: &Settings) -> Limits {
        Limits {
            window_bytes_max: settings.window_bytes_max.min(WINDOW_BYTES_LIMIT),
            initial_window_segments: settings.initial_window_segments.clamp(1, 1000),
            tail_loss_probe: settings.tail_loss_probe,
            hystart: settings.hystart,
        }
    }

    /// The bound of all windows in bytes, at least two segments of this size.
    pub(super) fn window_max(&self, mss: u32) -> u64 {
        self.window_bytes_max.max(2 * u64::from(mss))
    }

    /// RFC 6928 §2: the configured number of segments, but at most 1,460 bytes for each of them, or two segments.
    pub(super) fn initial_window(&self, mss: u32) -> u64 {
        let (mss, segments) = (u64::from(mss), u64::from(self.initial_window_segments));
        (segments * mss).min((2 * mss).max(segments * 1460)).min(self.window_bytes_max.max(2 * mss))
    }
}
