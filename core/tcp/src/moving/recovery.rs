//! Converts loss recovery state between extended sequence numbers and those that count from the SYN.

use spillway_wire::state::{self, ConnectionState, Segment, Undo};

use crate::recovery::RecoveryState;
use crate::seq::{extended, since_syn};

pub(crate) fn to_wire(from: RecoveryState) -> state::Recovery {
    let segment = |one: Segment| Segment { end: since_syn(one.end), ..one };
    let undo = |undo: Undo| Undo { from: since_syn(undo.from), to: since_syn(undo.to), ..undo };
    state::Recovery {
        mss: from.mss,
        cwnd: from.cwnd,
        ssthresh: from.ssthresh,
        controller: from.controller,
        srtt_ns: from.srtt_ns,
        rttvar_ns: from.rttvar_ns,
        rtt_min_ns: from.rtt_min_ns,
        backoffs: from.backoffs,
        timeouts: from.timeouts,
        phase: from.phase,
        recovery_point: since_syn(from.recovery_point),
        reduction: from.reduction,
        high_rxt: since_syn(from.high_rxt),
        is_rescued: from.is_rescued,
        duplicated: from.duplicated,
        threshold: from.threshold,
        limited_to: since_syn(from.limited_to),
        sent_age_ns: from.sent_age_ns,
        progress_age_ns: from.progress_age_ns,
        latest_age_ns: from.latest_age_ns,
        rto_in_ns: from.rto_in_ns,
        probe_in_ns: from.probe_in_ns,
        probe: from.probe.map(|(end, is_repeated)| (since_syn(end), is_repeated)),
        undo: from.undo.map(undo),
        segments: from.segments.into_iter().map(segment).collect(),
    }
}

pub(crate) fn from_wire(from: &state::Recovery, whole: &ConnectionState) -> RecoveryState {
    let segment = |one: &Segment| Segment { end: extended(one.end), ..*one };
    let undo = |undo: Undo| Undo { from: extended(undo.from), to: extended(undo.to), ..undo };
    RecoveryState {
        una: extended(whole.sending.una),
        nxt: extended(whole.sending.nxt),
        mss: from.mss,
        has_sack: whole.agreed.has_sack,
        is_handshake: false,
        peer_window: whole.sending.window,
        cwnd: from.cwnd,
        ssthresh: from.ssthresh,
        controller: from.controller,
        srtt_ns: from.srtt_ns,
        rttvar_ns: from.rttvar_ns,
        rtt_min_ns: from.rtt_min_ns,
        backoffs: from.backoffs,
        timeouts: from.timeouts,
        phase: from.phase,
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
        undo: from.undo.map(undo),
        segments: from.segments.iter().map(segment).collect(),
    }
}
