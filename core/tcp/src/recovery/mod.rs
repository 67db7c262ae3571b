//! Loss recovery, round-trip times and congestion control for bytes that were sent and are not acknowledged.
//!
//! One [`Recovery`] per connection. Its owner reports sent and acknowledged bytes, and sends in this order:
//! 1. ranges to retransmit, until [`Recovery::next_retransmission`] returns `None` ([`Recovery::on_retransmitted`]);
//! 2. if [`Recovery::wants_probe`], a new segment regardless of the room, or without new bytes
//!    [`Recovery::last_segment`]; then [`Recovery::on_probe`];
//! 3. new bytes, at most [`Recovery::send_room`] ([`Recovery::on_sent`]). With more bytes to send, wait for room
//!    for a whole segment, unless nothing is in flight;
//! 4. without new bytes, the range of [`Recovery::spare_retransmission`].
//!
//! The owner sends after each acknowledgement and each expiry of a timer. `Recovery` sets and stops three timers; when
//! one has expired, the owner calls [`Recovery::on_overdue`], [`Recovery::on_probe_due`] or [`Recovery::on_timeout`].

mod acknowledged;
pub mod congestion;
mod loss;
mod probe;
mod reordering;
mod rtt;
mod scoreboard;
mod settings;
mod state;
mod timeout;
mod undo;

use alloc::boxed::Box;
use core::time::Duration;

use spillway_transport::Time;

use crate::seq::Seq;
use crate::timer::Timers;
use congestion::Congestion;
use congestion::hystart::HyStart;
use loss::Reduction;
use probe::Probe;
use reordering::Reordering;
use rtt::Rtt;
use scoreboard::Scoreboard;
use settings::Limits;
pub use settings::{Algorithm, Settings};
pub use spillway_wire::state::Phase;
pub use state::{ControllerState, EpochState, RecoveryState, SegmentState, UndoState};
use undo::Undo;

/// An acceptable acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// The acknowledgement number. A number that is not from SND.UNA to SND.NXT counts as SND.UNA.
    pub una: Seq,
    /// SACK blocks without the D-SACK. Blocks of bytes never sent are ignored.
    pub sack: &'a [(Seq, Seq)],
    /// The D-SACK block: bytes that the peer received twice (RFC 2883).
    pub dsack: Option<(Seq, Seq)>,
    /// A duplicate as in RFC 5681 §2: no new bytes acknowledged, no data, the window unchanged, bytes in flight.
    pub is_duplicate: bool,
    /// SACK was negotiated.
    pub has_sack: bool,
    /// The round trip according to the echoed timestamp, if the segment has a timestamp and acknowledges new bytes (RFC
    /// 7323 §4.1). Used if send times are ambiguous, and to detect spurious retransmissions.
    pub rtt: Option<Duration>,
    /// The peer's window from `una` on, in bytes.
    pub peer_window: u64,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Bytes newly acknowledged cumulatively; a SYN or a FIN counts one.
    pub bytes: u64,
    /// Bytes newly known to have arrived, SACKed ones included.
    pub delivered: u64,
    /// A recovery has ended.
    pub is_recovered: bool,
    /// A reduction of the window was spurious and was undone.
    pub is_undone: bool,
}

/// Totals of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Retransmitted segments, probes included.
    pub retransmissions: u32,
    /// Recoveries without a timeout.
    pub fast_recoveries: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Tail loss probes.
    pub probes: u32,
    /// D-SACKs received.
    pub duplicates: u32,
    /// Reductions of the window that were undone.
    pub undone: u32,
}

/// Loss recovery and congestion control of one connection.
#[derive(Clone, Debug)]
pub struct Recovery {
    limits: Limits,
    scoreboard: Scoreboard,
    rtt: Rtt,
    congestion: Congestion,
    mss: u32,
    has_sack: bool,
    /// No segment is marked or was sent twice, and no probe is outstanding: acknowledgements can take the fast path.
    is_quiet: bool,
    /// The SYN is not acknowledged. It does not count as data.
    is_handshake: bool,
    peer_window: u64,
    phase: Phase,
    /// SND.UNA at which the present recovery ends, or the last one ended.
    recovery_point: Seq,
    reduction: Reduction,
    undo: Option<Box<Undo>>,
    /// Without SACK: bytes that have left the network according to duplicate acknowledgements.
    duplicated: u64,
    /// Without SACK: duplicate acknowledgements in a row.
    duplicates: u32,
    /// Number of later segments that must arrive before a missing one counts as lost.
    threshold: u32,
    reordering: Reordering,
    hystart: HyStart,
    /// Send time and end of the latest transmission that has arrived (RFC 8985's RACK.xmit_ts and RACK.end_seq).
    latest: (Time, Seq),
    /// The time from the `latest` transmission to its acknowledgement (RFC 8985's RACK.rtt).
    latest_rtt: Duration,
    /// End of the last bytes that were sent while the congestion window was the limit.
    limited_to: Seq,
    /// Maximum of the bytes in flight in this round, which ends when `used_to` is acknowledged.
    used: u64,
    used_to: Seq,
    sent_at: Time,
    /// The last time at which only the peer's window prevented sending.
    blocked_at: Time,
    progress_at: Time,
    backoffs: u32,
    timeouts: u32,
    /// A probe must be sent; the value is SND.NXT when it became due.
    probe_wanted: Option<Seq>,
    probe: Option<Probe>,
    counters: Counters,
}

/// Bound of the segment size: about the size of the longest IP packet.
const MSS_MAX: u32 = 1 << 16;

/// Duplicate acknowledgements before a fast retransmit (RFC 5681 §3.2). With SACK the threshold rises when segments
/// arrive out of order.
const THRESHOLD_MIN: u32 = 3;

impl Recovery {
    /// For a new connection: SND.UNA = SND.NXT = `first`, the sequence number of the SYN.
    pub fn new(now: Time, settings: &Settings, mss: u32, has_sack: bool, first: Seq) -> Recovery {
        let (mss, limits) = (mss.clamp(1, MSS_MAX), Limits::new(settings));
        Recovery {
            limits,
            scoreboard: Scoreboard::new(first),
            rtt: Rtt::new(settings.rto_initial, settings.rto_min, settings.rto_max),
            congestion: Congestion::new(settings.algorithm, limits.initial_window(mss), mss),
            mss,
            has_sack,
            is_quiet: false,
            is_handshake: true,
            peer_window: u64::MAX,
            phase: Phase::Open,
            recovery_point: first,
            reduction: Reduction::default(),
            undo: None,
            duplicated: 0,
            duplicates: 0,
            threshold: THRESHOLD_MIN,
            reordering: Reordering::new(false),
            hystart: HyStart::default(),
            latest: (Time::ZERO, first),
            latest_rtt: Duration::ZERO,
            limited_to: first,
            used: 0,
            used_to: first,
            sent_at: now,
            blocked_at: Time::ZERO,
            progress_at: now,
            backoffs: 0,
            timeouts: 0,
            probe_wanted: None,
            probe: None,
            counters: Counters::default(),
        }
    }

    /// Records that new bytes up to `to` were sent; a SYN and a FIN count one.
    #[inline]
    pub fn on_sent(&mut self, now: Time, to: Seq, timers: &mut Timers) {
        let bytes = to.saturating_sub(self.nxt());
        if bytes == 0 {
            return;
        }
        if self.in_flight() == 0 {
            self.progress_at = now;
            self.arm_timeout(now, timers); // RFC 6298 §5.1
        }
        self.scoreboard.send(now, to);
        self.sent_at = now;
        let pipe = if self.is_quiet { self.in_flight() } else { self.pipe() };
        if self.phase == Phase::Recovery {
            self.reduction.sent = self.reduction.sent.saturating_add(bytes);
        }
        if self.cwnd() < pipe.saturating_add(u64::from(self.mss)) {
            self.limited_to = to;
        }
        let flight = self.in_flight();
        if flight > self.used || self.una() >= self.used_to {
            (self.used, self.used_to) = (flight, to);
        }
        self.arm_probe(now, timers);
    }

    /// Number of new bytes that may be sent now. 0 while lost bytes wait for their retransmission, which goes first.
    pub fn send_room(&self) -> u64 {
        if self.scoreboard.has_lost_to_send() {
            return 0;
        }
        // Even fewer than three duplicates reduce `pipe`, which gives room for limited transmit (RFC 3042).
        let room = self.cwnd().saturating_sub(self.pipe());
        room.min(self.limits.window_max(self.mss).saturating_sub(self.in_flight()))
    }

    /// [`send_room`](Self::send_room) of a [quiet](Self::is_quiet) connection, whose [`pipe`](Self::pipe) has all bytes
    /// in flight.
    #[inline]
    pub(crate) fn quiet_room(&self) -> u64 {
        self.cwnd().min(self.limits.window_max(self.mss)).saturating_sub(self.in_flight())
    }

    /// A lost range of at most `mss` bytes to retransmit now, if the congestion window and the peer's window permit it.
    pub fn next_retransmission(&self, mss: u32) -> Option<(Seq, Seq)> {
        if !self.scoreboard.has_lost_to_send() {
            return None;
        }
        let (from, to) = self.scoreboard.next_lost(mss.max(1))?;
        (self.window_allows(to - from) && self.peer_allows(from, to)).then_some((from, to))
    }

    /// A range to retransmit when there are no new bytes to send: bytes missing but not considered lost yet, or, once
    /// per recovery, the last segment (RFC 6675 §4, NextSeg rules 3 and 4).
    pub fn spare_retransmission(&self, mss: u32) -> Option<(Seq, Seq)> {
        if self.phase != Phase::Recovery || !self.has_sack || self.scoreboard.has_lost_to_send() {
            return None;
        }
        let (mss, highest) = (mss.max(1), self.scoreboard.highest_sacked());
        let missing = self.scoreboard.next_missing(self.reduction.high_rxt, highest, mss);
        let rescue = || {
            let last = self.scoreboard.last(mss).filter(|_| !self.reduction.is_rescued)?;
            self.scoreboard.next_missing(last.0, self.nxt(), mss)
        };
        let (from, to) = missing.or_else(rescue)?;
        (self.window_allows(to - from) && self.peer_allows(from, to)).then_some((from, to))
    }

    /// Records the retransmission of a range.
    pub fn on_retransmitted(&mut self, now: Time, from: Seq, to: Seq, timers: &mut Timers) {
        let (from, to) = (from.max(self.una()), to.min(self.nxt()));
        if from >= to {
            return;
        }
        if self.phase == Phase::Recovery {
            self.reduction.sent = self.reduction.sent.saturating_add(to - from);
            self.reduction.high_rxt = self.reduction.high_rxt.max(to);
            self.reduction.is_rescued |= to == self.nxt();
        }
        self.is_quiet = false;
        self.scoreboard.resend(now, from, to, self.phase != Phase::Open);
        if let Some(undo) = &mut self.undo
            && self.phase != Phase::Open
        {
            undo.on_retransmitted(now);
        }
        if from == self.una() {
            self.arm_timeout(now, timers); // the timeout counts from this transmission
        }
        self.sent_at = now;
        self.counters.retransmissions = self.counters.retransmissions.saturating_add(1);
    }

    fn window_allows(&self, bytes: u64) -> bool {
        let pipe = self.pipe();
        pipe == 0 || self.cwnd() >= pipe.saturating_add(bytes)
    }

    /// Whether the peer's window permits the range. The first segment may always be sent, because it probes the window
    /// (RFC 9293 §3.8.6.1).
    fn peer_allows(&self, from: Seq, to: Seq) -> bool {
        from == self.una() || to - self.una() <= self.peer_window
    }

    /// Sets a segment size that has changed or become known. Longer segments in flight must be retransmitted. The
    /// congestion window stays, because these segments were not lost by congestion (RFC 1191 §6.4).
    pub fn set_mss(&mut self, mss: u32) {
        let mss = mss.clamp(1, MSS_MAX);
        if mss == self.mss {
            return;
        }
        if self.is_handshake && self.timeouts == 0 {
            self.congestion.window.cwnd = self.limits.initial_window(mss);
        } else if mss < self.mss {
            self.is_quiet = false;
            self.scoreboard.mark_longer_lost(mss);
            self.duplicated = self.duplicated.min(self.scoreboard.pipe());
        }
        self.mss = mss;
        let window = &mut self.congestion.window;
        window.mss = u64::from(mss);
        window.cwnd = window.cwnd.clamp(window.mss, self.limits.window_max(mss));
        window.ssthresh = window.ssthresh.max(window.least());
    }

    /// Records that only the peer's window prevents sending, with nothing in flight. This does not count as idle: RFC
    /// 5681 §4.1 and RFC 7661 §4.1 mean a sender without data. Otherwise a slow reader would reduce the congestion
    /// window.
    pub fn on_blocked(&mut self, now: Time) {
        self.blocked_at = now;
    }

    /// Call it before sending. If nothing was sent for longer than a timeout, reduces the window to the initial one
    /// (RFC 5681 §4.1).
    pub fn on_idle(&mut self, now: Time) {
        if self.in_flight() == 0
            && !self.is_handshake
            && now.0.saturating_sub(self.sent_at.max(self.blocked_at).0) > self.rtt.rto_ns(self.backoffs)
        {
            let window = &mut self.congestion.window;
            window.cwnd = window.cwnd.min(self.limits.initial_window(self.mss));
            self.congestion.on_unlimited(self.sent_at);
            self.sent_at = now;
        }
    }

    /// Whether no segment is marked or was sent twice, and no probe is outstanding.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// SND.UNA: the oldest byte that is not acknowledged.
    pub fn una(&self) -> Seq {
        self.scoreboard.una()
    }

    /// SND.NXT: the next new byte.
    pub fn nxt(&self) -> Seq {
        self.scoreboard.nxt()
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.scoreboard.in_flight()
    }

    /// Bytes considered to be in the network: at most those in flight (RFC 6675 §4).
    pub fn pipe(&self) -> u64 {
        self.scoreboard.pipe().saturating_sub(self.duplicated)
    }

    /// The congestion window, in bytes.
    pub fn cwnd(&self) -> u64 {
        self.congestion.window.cwnd
    }

    /// The slow start threshold, in bytes.
    pub fn ssthresh(&self) -> u64 {
        self.congestion.window.ssthresh
    }

    /// The segment size, in bytes.
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// The present retransmission timeout, backed off.
    pub fn rto(&self) -> Duration {
        Duration::from_nanos(self.rtt.rto_ns(self.backoffs))
    }

    /// The smoothed round-trip time, once one was measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// The round-trip time's variation.
    pub fn rttvar(&self) -> Duration {
        self.rtt.variation()
    }

    /// The kind of loss recovery that runs, if any.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of times the timeout was doubled. Kept until a round trip is measured (Karn).
    pub fn backoffs(&self) -> u32 {
        self.backoffs
    }

    /// Timeouts since bytes were last acknowledged.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// When bytes were last acknowledged, or first sent after nothing was in flight; `None` if nothing is in
    /// flight.
    pub fn last_progress_at(&self) -> Option<Time> {
        (self.in_flight() > 0).then_some(self.progress_at)
    }

    /// Totals of this connection.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
