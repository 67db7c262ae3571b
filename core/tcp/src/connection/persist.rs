//! Silence: probes of a closed window (RFC 9293 §3.8.6.1), keep-alives (§3.8.4), giving up a peer (§3.8.3).

use core::time::Duration;

use spillway_transport::{LostReason, Time};

use super::{Connection, Context};
use crate::settings::Settings;
use crate::timer::{Timer, Timers};

/// The longest time between two window probes.
const PROBE_EVERY_MAX: Duration = Duration::from_secs(60);
/// How long ready bytes wait for a window that is small but open (RFC 9293 §3.8.6.2.1).
const OVERRIDE_AFTER: Duration = Duration::from_millis(200);

/// State of the window probes and keep-alives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Persist {
    /// There is something to send, nothing is in flight, and the peer's window prevents sending.
    is_blocked: bool,
    /// Expirations of [`Timer::Persist`] since the window last allowed sending.
    backoffs: u32,
    /// A probe must be sent now.
    pub(super) is_due: bool,
    /// Whatever the window allows must be sent now.
    pub(super) is_override: bool,
    /// Unanswered keep-alive probes.
    questions: u32,
    asked_at: Time,
    /// In an imported connection: the time since when ready bytes wait.
    since: Option<Time>,
    /// When the peer's window was last seen closed, or short of bytes in flight.
    pub(super) shut_at: Option<Time>,
}

impl Persist {
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The peer has acknowledged new bytes.
    pub(super) fn heard(&mut self) {
        (self.backoffs, self.questions) = (0, 0);
    }

    /// Counts one keep-alive probe as sent now.
    pub(super) fn asked(&mut self, now: Time) {
        (self.questions, self.asked_at) = (1, now);
    }

    /// For an imported connection that last sent something at `sent_at`: the wait for a larger window continues from there,
    /// so that a move does not prolong it.
    pub(super) fn waits_since(&mut self, sent_at: Time) {
        self.since = Some(sent_at);
    }

    /// The window allows sending, or there is nothing to send.
    #[inline]
    pub(super) fn stop(&mut self, timers: &mut Timers) {
        timers.stop(Timer::Persist);
        (self.backoffs, self.since, self.is_blocked) = (0, None, false);
    }

    /// The window prevents sending. `is_shut`: it is closed; otherwise it is too small to be worth a segment.
    pub(super) fn run(&mut self, is_shut: bool, now: Time, rto: Duration, timers: &mut Timers) {
        self.is_blocked = true;
        if !timers.is_set(Timer::Persist) {
            let wait = rto.saturating_mul(1 << self.backoffs.min(16)).min(PROBE_EVERY_MAX);
            let wait = if is_shut || self.backoffs > 0 { wait } else { wait.min(OVERRIDE_AFTER) };
            let since = self.since.take().filter(|_| !is_shut).unwrap_or(now);
            timers.set(Timer::Persist, (since + wait).max(now));
        }
    }
}

impl Connection {
    /// [`Timer::Persist`] has expired: the peer's window has prevented sending for long.
    pub(super) fn on_window_shut_long(&mut self, cx: &mut Context<'_>) {
        self.timers.stop(Timer::Persist);
        self.persist.backoffs += 1;
        // A closed window is probed for as long as the peer answers (MUST-37).
        if cx.now.since(self.heard_at) >= cx.settings.give_up_after {
            self.give_up(cx);
        } else if self.peer_window.size > 0 {
            self.persist.is_override = true;
        } else {
            self.persist.is_due = true;
        }
        self.arm_keep_alive(cx.settings); // a peer that answers no probe may be gone
    }

    /// Sets the next keep-alive; none while segments are in flight or the window is probed: those probe the peer as well.
    #[inline]
    pub(super) fn arm_keep_alive(&mut self, settings: &Settings) {
        let Some(keep_alive) = settings.keep_alive else { return };
        let is_asked = self.recovery.nxt() > self.recovery.una() || self.timers.is_set(Timer::Persist);
        if !self.is_opened || is_asked {
            return self.timers.stop(Timer::KeepAlive);
        }
        let (heard_at, asked_at) = (self.heard_at, self.persist.asked_at);
        let has_asked = self.persist.questions > 0 && heard_at <= asked_at;
        let at = if has_asked { asked_at + keep_alive.interval } else { heard_at + keep_alive.idle };
        self.timers.set(Timer::KeepAlive, at);
    }

    /// [`Timer::KeepAlive`] has expired. The peer is probed, unless a segment has arrived in this turn.
    pub(super) fn on_idle(&mut self, cx: &mut Context<'_>) {
        if self.heard_at > self.persist.asked_at {
            self.persist.questions = 0;
        }
        self.arm_keep_alive(cx.settings);
        let Some(keep_alive) = cx.settings.keep_alive else { return };
        if !self.timers.is_expired(Timer::KeepAlive, cx.now) {
            return;
        }
        if self.persist.questions >= keep_alive.probes {
            self.give_up(cx);
        } else {
            self.persist.questions += 1;
            (self.persist.asked_at, self.persist.is_due) = (cx.now, true);
        }
    }

    /// RFC 9293 §3.8.3: gives up if bytes stay unacknowledged for too long.
    pub(super) fn give_up_if_silent(&mut self, cx: &mut Context<'_>) {
        let Some(since) = self.recovery.first_unacked_since().filter(|_| self.is_opened) else { return };
        // A peer that reports a closed window is alive (MUST-37), though bytes may be in flight since before that. Its next
        // answer can be expected when they are retransmitted.
        let shut_until = self.persist.shut_at.map_or(Time::ZERO, |at| at + self.recovery.rto());
        if cx.now.since(since.max(shut_until)) >= cx.settings.give_up_after {
            self.give_up(cx);
        }
    }

    pub(super) fn give_up(&mut self, cx: &mut Context<'_>) {
        cx.counters.given_up += 1;
        self.lose(LostReason::TimedOut);
    }
}
