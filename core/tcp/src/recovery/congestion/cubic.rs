//! CUBIC (RFC 9438) in integer arithmetic.

use core::time::Duration;

use spillway_transport::Time;

use super::{Controller, Window};
use crate::recovery::rtt::nanos;

/// Factor of the window after a loss: 0.7 (§4.6).
const BETA: (u64, u64) = (7, 10);

/// Factor of W_max if the window had not reached it again: (1 + β) / 2 (§4.7).
const FAST_CONVERGENCE: (u64, u64) = (17, 20);

/// Segments by which the Reno-friendly window grows per round trip up to `cwnd_prior`: 3 (1 - β) / (1 + β) (§4.3).
const ALPHA: (u64, u64) = (9, 17);

/// Maximum of the time to or from the plateau: 2^17 / 1024 s, which is 128 s. The window reaches its maximum long
/// before.
pub(in crate::recovery) const TICKS_MAX: u64 = 1 << 17;

/// The state of CUBIC. All windows are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cubic {
    /// The window before the last reduction, or less after fast convergence; 0 before the first reduction and after a
    /// timeout.
    pub w_max: u64,
    /// The window at the last reduction.
    pub cwnd_prior: u64,
    /// The present stage of congestion avoidance, from whose start `t` counts.
    pub epoch: Option<Epoch>,
}

/// One stage of congestion avoidance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// When the stage began, plus the time for which the window was not the limit.
    pub start: Time,
    /// The time since which the window has not been the limit.
    pub paused: Option<Time>,
    /// The window at the plateau.
    pub origin: u64,
    /// Time from the start to the plateau, in 1/1024 s.
    pub k: u64,
    /// The window that Reno would have.
    pub w_est: u64,
    /// Remainder of the growth of `w_est`, in bytes times 17 times the window.
    pub w_est_credit: u64,
    /// Remainder of the growth of the window, in bytes times the window.
    pub credit: u64,
}

impl Controller for Cubic {
    fn on_ack(&mut self, now: Time, window: &mut Window, acked: u64, rtt: Duration) {
        let epoch = match &mut self.epoch {
            Some(epoch) => epoch,
            empty => empty.insert(Epoch::begin(now, self.w_max, window)),
        };
        if let Some(paused) = epoch.paused.take() {
            epoch.start = epoch.start + now.since(paused);
        }
        let acked = acked.min(window.cwnd);
        epoch.grow_w_est(acked, window, self.cwnd_prior);
        let now_ticks = ticks(now.since(epoch.start));
        if epoch.w_cubic(now_ticks, window.mss) < epoch.w_est {
            window.cwnd = window.cwnd.max(epoch.w_est); // §4.3
            return;
        }
        let target = epoch.w_cubic(now_ticks + ticks(rtt), window.mss);
        let target = target.clamp(window.cwnd, window.cwnd + window.cwnd / 2); // §4.2
        epoch.credit += (target - window.cwnd) * acked;
        let step = epoch.credit / window.cwnd;
        epoch.credit %= window.cwnd;
        window.cwnd += step;
    }

    fn on_unlimited(&mut self, now: Time) {
        if let Some(epoch) = &mut self.epoch
            && epoch.paused.is_none()
        {
            epoch.paused = Some(now);
        }
    }

    /// Reduces the window rather than the bytes in flight, which §4.6 allows if the window grows only while it is used:
    /// the loss of a single message does not mean that the path has less capacity than an earlier bulk transfer has
    /// found.
    fn on_loss(&mut self, window: &mut Window, _: u64) {
        self.cwnd_prior = window.cwnd;
        self.w_max = if window.cwnd < self.w_max {
            window.cwnd * FAST_CONVERGENCE.0 / FAST_CONVERGENCE.1
        } else {
            window.cwnd
        };
        self.epoch = None;
        window.ssthresh = (window.cwnd * BETA.0 / BETA.1).max(window.least());
    }

    /// The next stage begins at the window with which its slow start ends (§4.8).
    fn on_timeout(&mut self, window: &mut Window, flight: u64) {
        self.on_loss(window, flight);
        self.w_max = 0;
    }
}

impl Epoch {
    fn begin(now: Time, w_max: u64, window: &Window) -> Epoch {
        let cwnd = window.cwnd;
        let (origin, k) = if w_max > cwnd {
            // K = cbrt((W_max - cwnd) / C) in segments and seconds; C = 2/5, and 2^30 = 1024^3.
            let cube = (u128::from(w_max - cwnd) << 30) * 5 / (2 * u128::from(window.mss.max(1)));
            (w_max, cube_root(cube))
        } else {
            (cwnd, 0)
        };
        Epoch { start: now, paused: None, origin, k, w_est: cwnd, w_est_credit: 0, credit: 0 }
    }

    /// §4.2, equation 1: C (t - K)^3 + W_max.
    fn w_cubic(&self, t: u64, mss: u64) -> u64 {
        let distance = t.abs_diff(self.k).min(TICKS_MAX);
        // The cube is at most 2^51, shifted 2^41, and the product with a segment below 2^16 bytes 2^58.
        let cube = distance * distance * distance;
        let difference = ((cube >> 10) * (2 * mss.min(1 << 16)) / 5) >> 20;
        if t < self.k {
            self.origin.saturating_sub(difference)
        } else {
            self.origin.saturating_add(difference)
        }
    }

    /// §4.3, equation 4.
    fn grow_w_est(&mut self, acked: u64, window: &Window, cwnd_prior: u64) {
        let (numerator, denominator) = if self.w_est < cwnd_prior { ALPHA } else { (1, 1) };
        // In seventeenths in both cases, so that the remainder keeps its unit.
        self.w_est_credit += acked * window.mss * numerator * (ALPHA.1 / denominator);
        let whole = window.cwnd * ALPHA.1;
        self.w_est += self.w_est_credit / whole;
        self.w_est_credit %= whole;
    }
}

/// A duration in 1/1024 s, bounded.
fn ticks(duration: Duration) -> u64 {
    nanos(duration) * 1024 / 1_000_000_000 // below 2^52: `nanos` is bounded
}

/// The integer part of the cube root, at most [`TICKS_MAX`].
fn cube_root(cube: u128) -> u64 {
    let (mut root, mut bit) = (0_u64, TICKS_MAX);
    while bit > 0 {
        let candidate = u128::from(root | bit);
        if candidate * candidate * candidate <= cube {
            root |= bit;
        }
        bit >>= 1;
    }
    root.min(TICKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_rounded_down() {
        for root in [1_u64, 2, 9, 10, 1000, 4096, 99_999, TICKS_MAX - 1] {
            let cube = u128::from(root).pow(3);
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube + 1), root);
            assert_eq!(cube_root(cube - 1), root - 1);
        }
        assert_eq!(cube_root(u128::MAX), TICKS_MAX);
    }

    #[test]
    fn a_second_has_1024_ticks() {
        assert_eq!(ticks(Duration::from_secs(3)), 3072);
        assert_eq!(ticks(Duration::from_millis(500)), 512);
        assert!(ticks(Duration::MAX) > 1 << 20, "the conversion should not overflow");
    }
}
