//! Silence: a window that stays shut (RFC 9293 §3.8.6.1), a peer that may be gone (§3.8.3, §3.8.4).

use core::time::Duration;

use spillway_transport::{LostReason, Time};

use super::{Connection, Context};
use crate::settings::Settings;
use crate::timer::{Timer, Timers};

/// The longest time between two probes of a window.
const PROBE_EVERY_MAX: Duration = Duration::from_secs(60);
/// What is ready waits at most so long for a window that is merely small (RFC 9293 §3.8.6.2.1).
const OVERRIDE_AFTER: Duration = Duration::from_millis(200);

/// When the peer is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Persist {
    /// There is something to send, nothing is on its way, and the peer's window is against it.
    is_blocked: bool,
    /// Probes since the window closed.
    backoffs: u32,
    /// A probe is to go now.
    pub(super) is_due: bool,
    /// Whatever the window takes is to go now.
    pub(super) is_override: bool,
    /// Unanswered questions of a silent connection.
    questions: u32,
    asked_at: Time,
    /// Of a connection that comes from elsewhere: what is ready waits since then.
    since: Option<Time>,
    /// When the peer last said that it takes nothing.
    pub(super) shut_at: Option<Time>,
}

impl Persist {
    /// Whether there is something to send that only the peer's window holds up.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The peer has taken something.
    pub(super) fn heard(&mut self) {
        (self.backoffs, self.questions) = (0, 0);
    }

    /// A silent peer was asked once, now.
    pub(super) fn asked(&mut self, now: Time) {
        (self.questions, self.asked_at) = (1, now);
    }

    /// A connection comes from elsewhere, where something was sent at this time for the last time: a small window holds it
    /// no longer because it moves.
    pub(super) fn waits_since(&mut self, sent_at: Time) {
        self.since = Some(sent_at);
    }

    /// The window lets something go, or there is nothing.
    #[inline]
    pub(super) fn stop(&mut self, timers: &mut Timers) {
        timers.stop(Timer::Persist);
        (self.backoffs, self.since, self.is_blocked) = (0, None, false);
    }

    /// The window is against it. `is_shut`: nothing goes; otherwise too little to be worth a segment.
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
    /// [`Timer::Persist`] has expired: the peer's window is against what there is to send, for long.
    pub(super) fn on_window_shut_long(&mut self, cx: &mut Context<'_>) {
        self.timers.stop(Timer::Persist);
        self.persist.backoffs += 1;
        // A shut window is asked about for as long as the peer answers (MUST-37).
        if cx.now.since(self.heard_at) >= cx.settings.give_up_after {
            self.give_up(cx);
        } else if self.peer_window.size > 0 {
            self.persist.is_override = true;
        } else {
            self.persist.is_due = true;
        }
        self.arm_keep_alive(cx.settings); // one that answers none of these probes may be gone
    }

    /// When a silent peer is asked next. Not while something is outstanding, or its window is asked about: that asks as well.
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

    /// [`Timer::KeepAlive`] has expired. The peer is asked, unless something came in this turn.
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

    /// RFC 9293 §3.8.3: what is not acknowledged for long breaks the connection.
    pub(super) fn give_up_if_silent(&mut self, cx: &mut Context<'_>) {
        let Some(since) = self.recovery.first_unacked_since().filter(|_| self.is_opened) else { return };
        // While it answers that its window is shut, it lives (MUST-37): bytes may be on their way since before that. The next
        // answer can be expected when they are sent again.
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
