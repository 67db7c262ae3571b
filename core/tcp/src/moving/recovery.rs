//! Loss recovery, as it is here and as it travels.

use spillway_wire::state::{self, ConnectionState};

use crate::connection::{extended, stream};
use crate::recovery::{ControllerState, EpochState, Phase, RecoveryState, SegmentState, UndoState};

pub(crate) fn to_wire(from: &RecoveryState) -> state::Recovery {
    state::Recovery {
        mss: from.mss,
        cwnd: from.cwnd,
        ssthresh: from.ssthresh,
        controller: controller_to_wire(&from.controller),
        srtt_ns: from.srtt_ns,
        rttvar_ns: from.rttvar_ns,
        rtt_min_ns: from.rtt_min_ns,
        backoffs: from.backoffs,
        timeouts: from.timeouts,
        phase: match from.phase {
            Phase::Open => state::Phase::Open,
            Phase::Recovery => state::Phase::Recovery,
            Phase::Loss => state::Phase::Loss,
        },
        recovery_point: stream(from.recovery_point),
        reduction: from.reduction,
        high_rxt: stream(from.high_rxt),
        is_rescued: from.is_rescued,
        duplicated: from.duplicated,
        threshold: from.threshold,
        limited_to: stream(from.limited_to),
        sent_age_ns: from.sent_age_ns,
        progress_age_ns: from.progress_age_ns,
        latest_age_ns: from.latest_age_ns,
        rto_in_ns: from.rto_in_ns,
        probe_in_ns: from.probe_in_ns,
        probe: from.probe.map(|(end, is_repeated)| (stream(end), is_repeated)),
        undo: from.undo.map(|undo| state::Undo {
            cwnd: undo.cwnd,
            ssthresh: undo.ssthresh,
            controller: controller_to_wire(&undo.controller),
            from: stream(undo.from),
            to: stream(undo.to),
            open: undo.open,
            first_age_ns: undo.first_age_ns,
        }),
        segments: from.segments.iter().map(segment_to_wire).collect(),
    }
}

fn segment_to_wire(from: &SegmentState) -> state::Segment {
    state::Segment {
        end: stream(from.end),
        age_ns: from.age_ns,
        transmissions: from.transmissions,
        sacked: from.sacked,
        was_sacked: from.was_sacked,
        lost: from.lost,
        retransmitted: from.retransmitted,
    }
}

fn controller_to_wire(from: &ControllerState) -> state::Controller {
    match *from {
        ControllerState::NewReno { acked } => state::Controller::NewReno { acked },
        ControllerState::Cubic { w_max, cwnd_prior, epoch } => state::Controller::Cubic {
            w_max,
            cwnd_prior,
            epoch: epoch.map(|epoch| state::Epoch {
                age_ns: epoch.age_ns,
                paused_ns: epoch.paused_ns,
                origin: epoch.origin,
                k: epoch.k,
                w_est: epoch.w_est,
            }),
        },
    }
}

pub(crate) fn from_wire(from: &state::Recovery, whole: &ConnectionState) -> RecoveryState {
    RecoveryState {
        una: extended(whole.sending.una),
        nxt: extended(whole.sending.nxt),
        mss: from.mss,
        has_sack: whole.agreed.has_sack,
        is_handshake: false,
        peer_window: whole.sending.window,
        cwnd: from.cwnd,
        ssthresh: from.ssthresh,
        controller: controller_from_wire(&from.controller),
        srtt_ns: from.srtt_ns,
        rttvar_ns: from.rttvar_ns,
        rtt_min_ns: from.rtt_min_ns,
        backoffs: from.backoffs,
        timeouts: from.timeouts,
        phase: match from.phase {
            state::Phase::Open => Phase::Open,
            state::Phase::Recovery => Phase::Recovery,
            state::Phase::Loss => Phase::Loss,
        },
        recovery_point: extended(from.recovery_point),
        reduction: from.reduction,
        high_rxt: extended(from.high_rxt),
        is_rescued: from.is_rescued,
        duplicated: from.duplicated,
        threshold: from.threshold,
        limited_to: extended(from.limited_to),
        sent_age_ns: from.sent_age_ns,
        progress_age_ns: from.progress_age_ns,
        latest_age_ns: from.latest_age_ns,
        rto_in_ns: from.rto_in_ns,
        probe_in_ns: from.probe_in_ns,
        probe: from.probe.map(|(end, is_repeated)| (extended(end), is_repeated)),
        undo: from.undo.as_ref().map(|undo| UndoState {
            cwnd: undo.cwnd,
            ssthresh: undo.ssthresh,
            controller: controller_from_wire(&undo.controller),
            from: extended(undo.from),
            to: extended(undo.to),
            open: undo.open,
            first_age_ns: undo.first_age_ns,
        }),
        segments: from.segments.iter().map(segment_from_wire).collect(),
    }
}

fn segment_from_wire(from: &state::Segment) -> SegmentState {
    SegmentState {
        end: extended(from.end),
        age_ns: from.age_ns,
        transmissions: from.transmissions,
        sacked: from.sacked,
        was_sacked: from.was_sacked,
        lost: from.lost,
        retransmitted: from.retransmitted,
    }
}

fn controller_from_wire(from: &state::Controller) -> ControllerState {
    match *from {
        state::Controller::NewReno { acked } => ControllerState::NewReno { acked },
        state::Controller::Cubic { w_max, cwnd_prior, epoch } => ControllerState::Cubic {
            w_max,
            cwnd_prior,
            epoch: epoch.map(|epoch| EpochState {
                age_ns: epoch.age_ns,
                paused_ns: epoch.paused_ns,
                origin: epoch.origin,
                k: epoch.k,
                w_est: epoch.w_est,
            }),
        },
    }
}
