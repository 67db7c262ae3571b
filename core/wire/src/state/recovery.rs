//! The state of loss recovery and congestion control of a connection that migrates.

use alloc::vec::Vec;

use super::error::StateError;
use super::fields::{Reader, Writer};

/// Maximum number of segments in flight in a state.
pub const SEGMENTS_MAX: usize = 65_536;

/// The kind of loss recovery that a sender performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No recovery.
    Open,
    /// Fast recovery after duplicate acknowledgements or SACKs (RFC 5681 §3.2, RFC 6675).
    Recovery,
    /// Recovery after a retransmission timeout (RFC 6298).
    Loss,
}

/// A segment in flight. It begins where the segment before it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the end.
    pub end: u64,
    /// Time since the last transmission, in nanoseconds.
    pub age_ns: u64,
    /// Number of transmissions.
    pub transmissions: u8,
    /// The peer has reported the segment by SACK.
    pub sacked: bool,
    /// The peer reported the segment by SACK before a timeout, and may have discarded it since (RFC 2018 §8).
    pub was_sacked: bool,
    /// The segment is considered lost.
    pub lost: bool,
    /// The segment was retransmitted after it was marked as lost.
    pub retransmitted: bool,
}

/// CUBIC's present stage of congestion avoidance (RFC 9438 §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Time since the stage began, minus the pauses that have ended, in nanoseconds.
    pub age_ns: u64,
    /// Time since the congestion window stopped limiting the sender, in nanoseconds; `None` while it does.
    pub paused_ns: Option<u64>,
    /// The window at the plateau of the curve, in bytes.
    pub origin: u64,
    /// Time from the beginning to the plateau, in 1/1024 s.
    pub k: u64,
    /// The Reno-friendly window W_est, in bytes.
    pub w_est: u64,
}

/// The state of a congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// CUBIC (RFC 9438).
    Cubic {
        /// W_max, in bytes.
        w_max: u64,
        /// The window before the last reduction, in bytes.
        cwnd_prior: u64,
        /// The present stage.
        epoch: Option<Epoch>,
    },
    /// NewReno (RFC 5681).
    NewReno {
        /// Bytes acknowledged since the window last grew.
        acked: u64,
    },
}

/// The state to restore if the reduction turns out to be spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The congestion window before the reduction, in bytes.
    pub cwnd: u64,
    /// The slow start threshold before the reduction, in bytes.
    pub ssthresh: u64,
    /// The algorithm's state before the reduction.
    pub controller: Controller,
    /// Beginning of the range in flight when the recovery began.
    pub from: u64,
    /// End of that range.
    pub to: u64,
    /// Number of retransmissions that the peer has not reported as duplicates.
    pub open: u32,
    /// Time since the first retransmission was sent, in nanoseconds.
    pub first_age_ns: Option<u64>,
}

/// The state of loss recovery and congestion control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The segment size, in bytes.
    pub mss: u32,
    /// The congestion window, in bytes.
    pub cwnd: u64,
    /// The slow start threshold, in bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// The state of the congestion control algorithm.
    pub controller: Controller,
    /// The smoothed round-trip time in nanoseconds; 0 before the first sample.
    pub srtt_ns: u64,
    /// The variation of the round-trip time, in nanoseconds.
    pub rttvar_ns: u64,
    /// The shortest round trip, in nanoseconds.
    pub rtt_min_ns: u64,
    /// Number of times that the retransmission timeout has been doubled.
    pub backoffs: u32,
    /// Number of timeouts since new bytes were last acknowledged.
    pub timeouts: u32,
    /// The kind of loss recovery in progress.
    pub phase: Phase,
    /// Sequence number at which the present recovery ends, or the last one ended.
    pub recovery_point: u64,
    /// Bytes in flight when the recovery began, delivered since, and sent since (RFC 9937).
    pub reduction: [u64; 3],
    /// End of the recovery's highest retransmission (HighRxt of RFC 6675).
    pub high_rxt: u64,
    /// The recovery has retransmitted the last segment (RescueRxt of RFC 6675).
    pub is_rescued: bool,
    /// Without SACK: bytes that have left the network according to duplicate acknowledgements, and the number of these
    /// acknowledgements.
    pub duplicated: (u64, u32),
    /// Number of later segments that must arrive before a missing one counts as lost.
    pub threshold: u32,
    /// End of the last bytes that were sent while the congestion window was the limit.
    pub limited_to: u64,
    /// Time since the last transmission, in nanoseconds.
    pub sent_age_ns: u64,
    /// Time since the last progress of acknowledgements, in nanoseconds.
    pub progress_age_ns: u64,
    /// Time since the latest transmission that is known to have been delivered (RACK.xmit_ts of RFC 8985), in
    /// nanoseconds.
    pub latest_age_ns: u64,
    /// Time until the retransmission timeout, in nanoseconds, if the timer runs.
    pub rto_in_ns: Option<u64>,
    /// Time until a tail loss probe, in nanoseconds, if one is due.
    pub probe_in_ns: Option<u64>,
    /// An outstanding tail loss probe: its end, and whether it retransmitted a segment.
    pub probe: Option<(u64, bool)>,
    /// The state to restore if the recovery is spurious.
    pub undo: Option<Undo>,
    /// The segments in flight, from SND.UNA to SND.NXT.
    pub segments: Vec<Segment>,
}

impl Recovery {
    pub(super) fn write(&self, out: &mut Writer) {
        out.u32(self.mss);
        out.u64(self.cwnd);
        out.u64(self.ssthresh);
        self.controller.write(out);
        for number in [self.srtt_ns, self.rttvar_ns, self.rtt_min_ns] {
            out.u64(number);
        }
        out.u32(self.backoffs);
        out.u32(self.timeouts);
        out.u8(self.phase as u8);
        out.u64(self.recovery_point);
        for number in self.reduction {
            out.u64(number);
        }
        out.u64(self.high_rxt);
        out.flag(self.is_rescued);
        out.u64(self.duplicated.0);
        out.u32(self.duplicated.1);
        out.u32(self.threshold);
        for number in [self.limited_to, self.sent_age_ns, self.progress_age_ns, self.latest_age_ns] {
            out.u64(number);
        }
        out.option(self.rto_in_ns, Writer::u64);
        out.option(self.probe_in_ns, Writer::u64);
        out.option(self.probe, |out, (end, is_repeated)| {
            out.u64(end);
            out.flag(is_repeated);
        });
        out.option(self.undo, |out, undo| undo.write(out));
        out.length(self.segments.len());
        for segment in &self.segments {
            segment.write(out);
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Recovery, StateError> {
        Ok(Recovery {
            mss: from.u32()?,
            cwnd: from.u64()?,
            ssthresh: from.u64()?,
            controller: Controller::read(from)?,
            srtt_ns: from.u64()?,
            rttvar_ns: from.u64()?,
            rtt_min_ns: from.u64()?,
            backoffs: from.u32()?,
            timeouts: from.u32()?,
            phase: match from.u8()? {
                0 => Phase::Open,
                1 => Phase::Recovery,
                2 => Phase::Loss,
                _ => return Err(StateError::Field("recovery phase")),
            },
            recovery_point: from.u64()?,
            reduction: [from.u64()?, from.u64()?, from.u64()?],
            high_rxt: from.u64()?,
            is_rescued: from.flag()?,
            duplicated: (from.u64()?, from.u32()?),
            threshold: from.u32()?,
            limited_to: from.u64()?,
            sent_age_ns: from.u64()?,
            progress_age_ns: from.u64()?,
            latest_age_ns: from.u64()?,
            rto_in_ns: from.option(Reader::u64)?,
            probe_in_ns: from.option(Reader::u64)?,
            probe: from.option(|from| Ok((from.u64()?, from.flag()?)))?,
            undo: from.option(Undo::read)?,
            segments: from.list(SEGMENTS_MAX, "segments", Segment::read)?,
        })
    }
}

impl Segment {
    fn write(&self, out: &mut Writer) {
        out.u64(self.end);
        out.u64(self.age_ns);
        out.u8(self.transmissions);
        let flags = [self.sacked, self.was_sacked, self.lost, self.retransmitted];
        out.u8(flags.into_iter().rev().fold(0, |all, flag| all << 1 | u8::from(flag)));
    }

    fn read(from: &mut Reader<'_>) -> Result<Segment, StateError> {
        let (end, age_ns, transmissions, flags) = (from.u64()?, from.u64()?, from.u8()?, from.u8()?);
        if flags > 15 {
            return Err(StateError::Field("segment"));
        }
        let has = |bit: u8| flags >> bit & 1 == 1;
        let (sacked, was_sacked, lost, retransmitted) = (has(0), has(1), has(2), has(3));
        Ok(Segment { end, age_ns, transmissions, sacked, was_sacked, lost, retransmitted })
    }
}

impl Controller {
    fn write(&self, out: &mut Writer) {
        match self {
            Controller::Cubic { w_max, cwnd_prior, epoch } => {
                out.u8(0);
                out.u64(*w_max);
                out.u64(*cwnd_prior);
                out.option(*epoch, |out, epoch| {
                    out.u64(epoch.age_ns);
                    out.option(epoch.paused_ns, Writer::u64);
                    for number in [epoch.origin, epoch.k, epoch.w_est] {
                        out.u64(number);
                    }
                });
            }
            Controller::NewReno { acked } => {
                out.u8(1);
                out.u64(*acked);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Controller, StateError> {
        let epoch = |from: &mut Reader<'_>| {
            Ok(Epoch {
                age_ns: from.u64()?,
                paused_ns: from.option(Reader::u64)?,
                origin: from.u64()?,
                k: from.u64()?,
                w_est: from.u64()?,
            })
        };
        match from.u8()? {
            0 => Ok(Controller::Cubic {
                w_max: from.u64()?,
                cwnd_prior: from.u64()?,
                epoch: from.option(epoch)?,
            }),
            1 => Ok(Controller::NewReno { acked: from.u64()? }),
            _ => Err(StateError::Field("congestion control")),
        }
    }
}

impl Undo {
    fn write(&self, out: &mut Writer) {
        out.u64(self.cwnd);
        out.u64(self.ssthresh);
        self.controller.write(out);
        out.u64(self.from);
        out.u64(self.to);
        out.u32(self.open);
        out.option(self.first_age_ns, Writer::u64);
    }

    fn read(from: &mut Reader<'_>) -> Result<Undo, StateError> {
        Ok(Undo {
            cwnd: from.u64()?,
            ssthresh: from.u64()?,
            controller: Controller::read(from)?,
            from: from.u64()?,
            to: from.u64()?,
            open: from.u32()?,
            first_age_ns: from.option(Reader::u64)?,
        })
    }
}
