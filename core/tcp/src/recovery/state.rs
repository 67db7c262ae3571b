//! The state of recovery in plain numbers, for a connection that moves. Times are relative, because clocks differ.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;

use super::congestion::cubic::{Cubic, Epoch};
use super::congestion::newreno::NewReno;
use super::congestion::{Congestion, Selected, Window};
use super::loss::Reduction;
use super::probe::Probe;
use super::reordering::Reordering;
use super::scoreboard::{SEGMENTS_MAX, Scoreboard, Segment};
use super::undo::Undo;
use super::{Counters, Phase, Recovery, Settings, THRESHOLD_MIN};
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

/// Sequence numbers in these types are extended ones; in [`spillway_wire::state`] they count from the SYN.
pub use spillway_wire::state::{
    Controller as ControllerState, Epoch as EpochState, Segment as SegmentState, Undo as UndoState,
};

/// Bound of windows that an algorithm remembers, so that calculations with them cannot overflow.
const BYTES_MAX: u64 = 1 << 40;

/// The state of a [`Recovery`]. It is checked when it is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryState {
    /// SND.UNA.
    pub una: Seq,
    /// SND.NXT.
    pub nxt: Seq,
    /// The segment size.
    pub mss: u32,
    /// SACK was negotiated.
    pub has_sack: bool,
    /// The SYN is not acknowledged.
    pub is_handshake: bool,
    /// The peer's window.
    pub peer_window: u64,
    /// The congestion window, in bytes.
    pub cwnd: u64,
    /// The slow start threshold, in bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// The state of the congestion control algorithm.
    pub controller: ControllerState,
    /// The smoothed round-trip time in nanoseconds; zero before the first sample.
    pub srtt_ns: u64,
    /// The variation of the round-trip time in nanoseconds.
    pub rttvar_ns: u64,
    /// The shortest round trip in nanoseconds.
    pub rtt_min_ns: u64,
    /// Number of times the timeout was doubled.
    pub backoffs: u32,
    /// Timeouts since bytes were last acknowledged.
    pub timeouts: u32,
    /// The state of recovery.
    pub phase: Phase,
    /// SND.UNA at which the recovery ends, or the last one ended.
    pub recovery_point: Seq,
    /// Bytes in flight when the recovery began, bytes delivered since then, and bytes sent since then (RFC 9937).
    pub reduction: [u64; 3],
    /// End of the highest retransmission of the recovery.
    pub high_rxt: Seq,
    /// The recovery has retransmitted the last segment.
    pub is_rescued: bool,
    /// Without SACK: bytes that have left the network according to duplicate acknowledgements, and the number of these.
    pub duplicated: (u64, u32),
    /// Number of later segments that must arrive before a missing one counts as lost.
    pub threshold: u32,
    /// End of the last bytes that were sent while the congestion window was the limit.
    pub limited_to: Seq,
    /// Time since bytes were last sent, in nanoseconds.
    pub sent_age_ns: u64,
    /// Time since bytes were last acknowledged, in nanoseconds.
    pub progress_age_ns: u64,
    /// Time since the transmission of the segment that was sent last among those that have arrived, in nanoseconds.
    pub latest_age_ns: u64,
    /// Time until the retransmission timeout, in nanoseconds, if it runs.
    pub rto_in_ns: Option<u64>,
    /// Time until a tail loss probe, in nanoseconds, if one is due.
    pub probe_in_ns: Option<u64>,
    /// An outstanding probe: its end, and whether it repeated a segment.
    pub probe: Option<(Seq, bool)>,
    /// The state to restore if the recovery is spurious.
    pub undo: Option<UndoState>,
    /// The segments in flight.
    pub segments: Vec<SegmentState>,
}

impl Recovery {
    /// Exports the state for another host. A probe that must be sent is exported as due at once.
    pub fn export(&self, now: Time, timers: &Timers) -> RecoveryState {
        let age = |then: Time| now.0.saturating_sub(then.0);
        let until = |timer| timers.get(timer).map(|then| then.0.saturating_sub(now.0));
        let segment = |segment: &Segment| SegmentState {
            end: segment.end,
            age_ns: age(segment.sent_at),
            transmissions: segment.transmissions,
            sacked: segment.sacked,
            was_sacked: segment.was_sacked,
            lost: segment.lost,
            retransmitted: segment.retransmitted,
        };
        let undo = |undo: &Undo| UndoState {
            cwnd: undo.congestion.window.cwnd,
            ssthresh: undo.congestion.window.ssthresh,
            controller: export_controller(now, &undo.congestion.selected),
            from: undo.from,
            to: undo.to,
            open: undo.open,
            first_age_ns: undo.first_at.map(age),
        };
        RecoveryState {
            una: self.una(),
            nxt: self.nxt(),
            mss: self.mss,
            has_sack: self.has_sack,
            is_handshake: self.is_handshake,
            peer_window: self.peer_window,
            cwnd: self.cwnd(),
            ssthresh: self.ssthresh(),
            controller: export_controller(now, &self.congestion.selected),
            srtt_ns: self.rtt.smoothed().map_or(0, super::rtt::nanos),
            rttvar_ns: super::rtt::nanos(self.rtt.variation()),
            rtt_min_ns: self.rtt.smallest().map_or(0, super::rtt::nanos),
            backoffs: self.backoffs,
            timeouts: self.timeouts,
            phase: self.phase,
            recovery_point: self.recovery_point,
            reduction: [self.reduction.flight, self.reduction.delivered, self.reduction.sent],
            high_rxt: self.reduction.high_rxt,
            is_rescued: self.reduction.is_rescued,
            duplicated: (self.duplicated, self.duplicates),
            threshold: self.threshold,
            limited_to: self.limited_to,
            sent_age_ns: age(self.sent_at),
            progress_age_ns: age(self.progress_at),
            latest_age_ns: age(self.latest.0),
            rto_in_ns: until(Timer::Retransmission),
            probe_in_ns: if self.wants_probe() { Some(0) } else { until(Timer::Probe) },
            probe: self.probe.map(|probe| (probe.end, probe.is_repeated)),
            undo: self.undo.as_deref().map(undo),
            segments: self.scoreboard.segments.iter().map(segment).collect(),
        }
    }

    /// Imports the state of another host; `None` if it is contradictory or exceeds a bound. This host's settings limit
    /// windows; congestion control begins anew if they select another algorithm. Sets the state's timers in `timers`.
    pub fn import(
        now: Time,
        settings: &Settings,
        state: &RecoveryState,
        timers: &mut Timers,
    ) -> Option<Recovery> {
        let then = |age_ns: u64| Time(now.0.saturating_sub(age_ns));
        let later = |in_ns: u64| now + Duration::from_nanos(in_ns.min(1 << 42));
        let is_possible = state.una <= state.nxt
            && state.nxt < 1 << 62
            && (1..=super::MSS_MAX).contains(&state.mss)
            && state.segments.len() <= SEGMENTS_MAX
            && state.segments.last().map_or(state.una, |last| last.end) == state.nxt
            && state.recovery_point <= state.nxt
            && (state.has_sack || !state.segments.iter().any(|segment| segment.sacked));
        if !is_possible {
            return None;
        }
        let segments: VecDeque<Segment> =
            state.segments.iter().map(|segment| import_segment(now, segment)).collect();
        let mut scoreboard = Scoreboard::from_segments(state.una, segments)?;
        if state.phase == Phase::Loss {
            scoreboard.set_timeout_point(state.recovery_point);
        }

        let mut recovery = Recovery::new(now, settings, state.mss, state.has_sack, state.una);
        let window_max = recovery.limits.window_max(state.mss);
        let congestion = |cwnd: u64, ssthresh: u64, controller: &ControllerState| {
            let mut congestion = Congestion::new(settings.algorithm, 0, state.mss);
            let mss = u64::from(state.mss);
            congestion.window = Window { cwnd: cwnd.min(window_max), ssthresh, mss };
            import_controller(now, &mut congestion.selected, controller);
            congestion
        };
        let mss = u64::from(state.mss);
        recovery.congestion = congestion(state.cwnd.max(mss), state.ssthresh.max(2 * mss), &state.controller);
        recovery.rtt.restore(state.srtt_ns, state.rttvar_ns, state.rtt_min_ns);
        recovery.undo = state.undo.as_ref().map(|undo| {
            Box::new(Undo {
                congestion: congestion(undo.cwnd, undo.ssthresh, &undo.controller),
                from: undo.from,
                to: undo.to,
                open: undo.open,
                first_at: undo.first_age_ns.map(then),
            })
        });
        let [flight, delivered, sent] = state.reduction.map(|bytes| bytes.min(1 << 62));
        recovery.reduction =
            Reduction { flight, delivered, sent, high_rxt: state.high_rxt, is_rescued: state.is_rescued };
        recovery.is_handshake = state.is_handshake;
        recovery.peer_window = state.peer_window;
        (recovery.backoffs, recovery.timeouts) = (state.backoffs.min(32), state.timeouts);
        (recovery.phase, recovery.recovery_point) = (state.phase, state.recovery_point);
        recovery.duplicated = state.duplicated.0.min(scoreboard.pipe());
        recovery.duplicates = state.duplicated.1;
        recovery.threshold = state.threshold.clamp(THRESHOLD_MIN, super::loss::THRESHOLD_MAX);
        // Not exported: D-SACKs counted for the reordering window, and rounds of HyStart++, which begin anew.
        recovery.reordering = Reordering::new(recovery.threshold > THRESHOLD_MIN);
        recovery.limited_to = state.limited_to.min(state.nxt);
        (recovery.used, recovery.used_to) = (state.nxt - state.una, state.nxt);
        recovery.sent_at = then(state.sent_age_ns);
        recovery.progress_at = then(state.progress_age_ns);
        recovery.latest = (then(state.latest_age_ns), scoreboard.highest_sacked());
        recovery.latest_rtt = recovery.rtt.smoothed().unwrap_or_default();
        if scoreboard.in_flight() > 0 {
            let rto_max = now + settings.rto_max;
            timers.set(Timer::Retransmission, state.rto_in_ns.map_or(rto_max, |ns| later(ns).min(rto_max)));
            if let Some(in_ns) = state.probe_in_ns {
                timers.set(Timer::Probe, later(in_ns));
            }
            recovery.probe = state.probe.map(|(end, is_repeated)| Probe { end, is_repeated });
        }
        recovery.scoreboard = scoreboard;
        recovery.arm_reordering(now, timers);
        recovery.counters = Counters::default();
        Some(recovery)
    }
}

/// A segment sent before this host's clock began counts as sent twice: otherwise its round trip would be too short.
fn import_segment(now: Time, state: &SegmentState) -> Segment {
    let is_before_clock = state.age_ns > now.0;
    Segment {
        end: state.end,
        sent_at: Time(now.0.saturating_sub(state.age_ns)),
        transmissions: if is_before_clock { state.transmissions.max(2) } else { state.transmissions },
        sacked: state.sacked,
        was_sacked: state.was_sacked,
        lost: state.lost,
        retransmitted: state.retransmitted,
    }
}

fn export_controller(now: Time, selected: &Selected) -> ControllerState {
    let age = |then: Time| now.0.saturating_sub(then.0);
    match selected {
        Selected::NewReno(newreno) => ControllerState::NewReno { acked: newreno.acked },
        Selected::Cubic(cubic) => ControllerState::Cubic {
            w_max: cubic.w_max,
            cwnd_prior: cubic.cwnd_prior,
            epoch: cubic.epoch.map(|epoch| EpochState {
                age_ns: age(epoch.start),
                paused_ns: epoch.paused.map(age),
                origin: epoch.origin,
                k: epoch.k,
                w_est: epoch.w_est,
            }),
        },
    }
}

fn import_controller(now: Time, selected: &mut Selected, state: &ControllerState) {
    let then = |age_ns: u64| Time(now.0.saturating_sub(age_ns));
    match (selected, *state) {
        (Selected::NewReno(newreno), ControllerState::NewReno { acked }) => {
            *newreno = NewReno { acked: acked.min(BYTES_MAX) };
        }
        (Selected::Cubic(cubic), ControllerState::Cubic { w_max, cwnd_prior, epoch }) => {
            let epoch = epoch.map(|epoch| Epoch {
                start: then(epoch.age_ns),
                paused: epoch.paused_ns.map(then),
                origin: epoch.origin.min(BYTES_MAX),
                k: epoch.k.min(super::congestion::cubic::TICKS_MAX),
                w_est: epoch.w_est.min(BYTES_MAX),
                w_est_credit: 0,
                credit: 0,
            });
            *cubic = Cubic { w_max: w_max.min(BYTES_MAX), cwnd_prior: cwnd_prior.min(BYTES_MAX), epoch };
        }
        _ => {}
    }
}
