//! What was sent and is not acknowledged: loss, round-trip times, congestion.
//!
//! One [`Recovery`] a connection. Whoever owns it tells what was sent and what was acknowledged, and asks what to send:
//! 1. while [`Recovery::next_retransmission`] names a range, that is sent again ([`Recovery::on_retransmitted`]);
//! 2. then new bytes, at most [`Recovery::send_room`] ([`Recovery::on_sent`]). A sender with more than that to send
//!    waits for room for a whole segment, unless nothing is in flight;
//! 3. with nothing new to send, what [`Recovery::spare_retransmission`] names;
//! 4. when [`Recovery::wants_probe`], one new segment whatever the room, or [`Recovery::last_segment`] again, and then
//!    [`Recovery::on_probe`].
//!
//! Ask again after each acknowledgement and each of its three timers: it sets and stops them in the connection's table, and is
//! told which of them has expired ([`Recovery::on_overdue`], [`Recovery::on_probe_due`], [`Recovery::on_timeout`]).

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
    /// What the peer expects next: between SND.UNA and SND.NXT, counts as SND.UNA otherwise.
    pub una: Seq,
    /// SACK blocks, the D-SACK not among them. What was never sent is ignored.
    pub sack: &'a [(Seq, Seq)],
    /// What the peer received twice (RFC 2883).
    pub dsack: Option<(Seq, Seq)>,
    /// As RFC 5681 §2 defines it: nothing new acknowledged, no data, the window unchanged, something outstanding.
    pub is_duplicate: bool,
    /// SACK was negotiated.
    pub has_sack: bool,
    /// By the timestamp echoed, where there is one and something new is acknowledged (RFC 7323 §4.1). Used where send
    /// times do not tell, and to recognise what was sent again for nothing.
    pub rtt: Option<Duration>,
    /// The window from `una` on.
    pub peer_window: u64,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Newly acknowledged cumulatively; a SYN or a FIN counts one.
    pub bytes: u64,
    /// Newly known to have arrived, SACKed ones included.
    pub delivered: u64,
    /// A recovery is over.
    pub is_recovered: bool,
    /// A reduction of the window turned out to be wrong and was taken back.
    pub is_undone: bool,
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments sent again, probes included.
    pub retransmissions: u32,
    /// Recoveries without a timeout.
    pub fast_recoveries: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Tail loss probes.
    pub probes: u32,
    /// D-SACKs received.
    pub duplicates: u32,
    /// Reductions of the window taken back.
    pub undone: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Recovery {
    limits: Limits,
    scoreboard: Scoreboard,
    rtt: Rtt,
    congestion: Congestion,
    mss: u32,
    has_sack: bool,
    /// Nothing is missing, marked, sent twice or probed for, so that an acknowledgement can be taken quickly.
    is_quiet: bool,
    /// The SYN is on the way: it is no data.
    is_handshake: bool,
    peer_window: u64,
    phase: Phase,
    /// Where the present recovery ends, or the last one ended.
    recovery_point: Seq,
    reduction: Reduction,
    undo: Option<Box<Undo>>,
    /// Without SACK: what duplicate acknowledgements tell to have left the network, in bytes.
    duplicated: u64,
    /// Without SACK: duplicate acknowledgements in a row.
    duplicates: u32,
    /// How many segments later ones must arrive before a missing one counts as lost.
    threshold: u32,
    reordering: Reordering,
    hystart: HyStart,
    /// The last sent of what has arrived: its send time and its end.
    latest: (Time, Seq),
    /// How long it took, and its acknowledgement.
    latest_rtt: Duration,
    /// The window was the limit when the byte before this one was sent.
    limited_to: Seq,
    /// The most that was in flight in this round, which ends when `used_to` is acknowledged.
    used: u64,
    used_to: Seq,
    sent_at: Time,
    /// When only the peer's window held up what there was to send, for the last time.
    blocked_at: Time,
    progress_at: Time,
    backoffs: u32,
    timeouts: u32,
    /// A probe is to be sent; SND.NXT when this was found.
    probe_wanted: Option<Seq>,
    probe: Option<Probe>,
    counters: Counters,
}

/// The longest IP packet, about. Longer segments count as this.
const MSS_MAX: u32 = 1 << 16;

/// RFC 5681's duplicate acknowledgements before a fast retransmit; more where segments come out of order.
const THRESHOLD_MIN: u32 = 3;

impl Recovery {
    /// Of a connection that begins: SND.UNA = SND.NXT = `first`, the SYN's sequence number.
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

    /// New bytes up to `to` were sent; a SYN and a FIN count one.
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
            self.reduction.out = self.reduction.out.saturating_add(bytes);
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

    /// How many new bytes may be sent now. Nothing while there is something to retransmit: that goes first.
    pub fn send_room(&self) -> u64 {
        if self.scoreboard.has_lost_to_send() {
            return 0;
        }
        // Before three duplicates, what they tell to have left makes room as well: limited transmit (RFC 3042).
        let room = self.cwnd().saturating_sub(self.pipe());
        room.min(self.limits.window_max(self.mss).saturating_sub(self.in_flight()))
    }

    /// The same while it is [quiet](Self::is_quiet): all that is outstanding is on its way.
    #[inline]
    pub(crate) fn quiet_room(&self) -> u64 {
        self.cwnd().min(self.limits.window_max(self.mss)).saturating_sub(self.in_flight())
    }

    /// A lost range to send again now, of at most `mss` bytes, when the congestion window and the peer's allow it.
    pub fn next_retransmission(&self, mss: u32) -> Option<(Seq, Seq)> {
        if !self.scoreboard.has_lost_to_send() {
            return None;
        }
        let (from, to) = self.scoreboard.next_lost(mss.max(1))?;
        (self.window_allows(to - from) && self.peer_allows(from, to)).then_some((from, to))
    }

    /// What to send again when there are no new bytes to send: missing but not yet thought lost, or the last segment,
    /// once a recovery (RFC 6675 §4, NextSeg rules 3 and 4).
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

    /// This range was sent again.
    pub fn on_retransmitted(&mut self, now: Time, from: Seq, to: Seq, timers: &mut Timers) {
        let (from, to) = (from.max(self.una()), to.min(self.nxt()));
        if from >= to {
            return;
        }
        if self.phase == Phase::Recovery {
            self.reduction.out = self.reduction.out.saturating_add(to - from);
            self.reduction.high_rxt = self.reduction.high_rxt.max(to);
            self.reduction.is_rescued |= to == self.nxt();
        }
        self.is_quiet = false;
        self.scoreboard.resend(now, from, to, self.phase != Phase::Open);
        if let Some(undo) = &mut self.undo
            && self.phase != Phase::Open
        {
            undo.retransmitted(now);
        }
        if from == self.una() {
            self.arm_timeout(now, timers); // the time it takes until this one is missed
        }
        self.sent_at = now;
        self.counters.retransmissions = self.counters.retransmissions.saturating_add(1);
    }

    fn window_allows(&self, bytes: u64) -> bool {
        let pipe = self.pipe();
        pipe == 0 || self.cwnd() >= pipe.saturating_add(bytes)
    }

    /// The first segment may be sent whatever the peer's window, as it probes it (RFC 9293 §3.8.6.1).
    fn peer_allows(&self, from: Seq, to: Seq) -> bool {
        from == self.una() || to - self.una() <= self.peer_window
    }

    /// The segment size has changed, or become known. What is on the way in longer segments is to be sent again,
    /// without a smaller window: it was not lost by congestion (RFC 1191 §6.5).
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

    /// There is something to send, nothing is in flight, and only the peer's window is against it. That is no silence of this
    /// end: every slow reader would cost its sender the window (RFC 5681 §4.1 and RFC 7661 §4.1 mean a sender without data).
    pub fn on_blocked(&mut self, now: Time) {
        self.blocked_at = now;
    }

    /// Something is to be sent: after a silence of more than a timeout with nothing in flight, the window is the
    /// initial one again (RFC 5681 §4.1).
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

    /// Nothing is missing, marked, sent twice or probed for.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// The oldest byte that is not acknowledged.
    pub fn una(&self) -> Seq {
        self.scoreboard.una()
    }

    /// The next new byte.
    pub fn nxt(&self) -> Seq {
        self.scoreboard.nxt()
    }

    /// Sent and not acknowledged, in bytes.
    pub fn in_flight(&self) -> u64 {
        self.scoreboard.in_flight()
    }

    /// What is thought to be in the network, in bytes: at most what is in flight (RFC 6675 §4).
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

    /// Which recovery, if any.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// By how many powers of two the timeout is backed off. Stays until a round trip was measured (Karn).
    pub fn backoffs(&self) -> u32 {
        self.backoffs
    }

    /// Timeouts since something was last acknowledged.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// Since when nothing was acknowledged while something was outstanding.
    pub fn first_unacked_since(&self) -> Option<Time> {
        (self.in_flight() > 0).then_some(self.progress_at)
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
