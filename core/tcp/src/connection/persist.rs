//! Probes of a closed window (RFC 9293 §3.8.6.1), keep-alives (§3.8.4), and the end of a connection whose peer does not
//! answer (§3.8.3).

use core::time::Duration;

use spillway_transport::{LostReason, Time};

use super::{Connection, Context};
use crate::settings::Settings;
use crate::timer::{Timer, Timers};

const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Time for which queued bytes wait for a window that is small but open (RFC 9293 §3.8.6.2.1).
const OVERRIDE_AFTER: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Persist {
    /// Time since which bytes are queued, none are in flight, and the peer's window prevents sending.
    blocked_at: Option<Time>,
    /// Expirations of [`Timer::Persist`] since the window last allowed sending.
    backoffs: u32,
    /// A probe must be sent now.
    pub(super) is_due: bool,
    /// The bytes that the window allows must be sent now, however few they are.
    pub(super) is_override: bool,
    /// Unanswered keep-alive probes.
    probes: u32,
    probed_at: Time,
    /// In an imported connection: the time since which queued bytes have been waiting.
    waiting_since: Option<Time>,
    /// Time at which the peer's window was last seen closed, or smaller than the bytes in flight.
    pub(super) closed_at: Option<Time>,
}

impl Persist {
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_at.is_some()
    }

    /// The peer has acknowledged new bytes.
    pub(super) fn on_progress(&mut self) {
        (self.backoffs, self.probes) = (0, 0);
    }

    /// Counts one keep-alive probe as sent now.
    pub(super) fn count_probe(&mut self, now: Time) {
        (self.probes, self.probed_at) = (1, now);
    }

    /// For an imported connection that last sent something at `sent_at`: the wait for a larger window counts from that
    /// time, so that a move does not prolong the wait.
    pub(super) fn set_waiting_since(&mut self, sent_at: Time) {
        self.waiting_since = Some(sent_at);
    }

    /// Stops the probes: the window allows sending, or no bytes are queued.
    #[inline]
    pub(super) fn stop(&mut self, timers: &mut Timers) {
        timers.stop(Timer::Persist);
        (self.backoffs, self.waiting_since, self.blocked_at) = (0, None, None);
    }

    /// Starts the timer, because the window prevents sending. `is_closed`: the window is 0; otherwise it is too small
    /// for a segment.
    pub(super) fn start(&mut self, is_closed: bool, now: Time, rto: Duration, timers: &mut Timers) {
        self.blocked_at.get_or_insert(now);
        let wait = rto.saturating_mul(1 << self.backoffs.min(16)).min(PROBE_INTERVAL_MAX);
        match timers.get(Timer::Persist) {
            // The window has opened a little since the timer was set: the wait for the next probe is shortened.
            Some(at) if !is_closed => timers.set(Timer::Persist, at.min(now + OVERRIDE_AFTER)),
            Some(_) => {}
            None => {
                let wait = if is_closed { wait } else { wait.min(OVERRIDE_AFTER) };
                let since = self.waiting_since.take().filter(|_| !is_closed).unwrap_or(now);
                timers.set(Timer::Persist, (since + wait).max(now));
            }
        }
    }
}

impl Connection {
    /// [`Timer::Persist`] has expired: a window probe or the SWS override is due.
    pub(super) fn on_window_closed_long(&mut self, cx: &mut Context<'_>) {
        self.timers.stop(Timer::Persist);
        self.persist.backoffs += 1;
        // A closed window is probed for as long as the peer answers (MUST-37).
        let probed_since = self.persist.blocked_at.unwrap_or(Time::ZERO).max(self.last_received_at);
        if cx.now.since(probed_since) >= self.user_timeout(cx.settings) {
            self.give_up(cx);
        } else if self.peer_window.size > 0 {
            self.persist.is_override = true;
        } else {
            self.persist.is_due = true;
        }
        self.arm_keep_alive(cx.settings);
    }

    fn user_timeout(&self, settings: &Settings) -> Duration {
        match self.listener {
            None => settings.opened_user_timeout.unwrap_or(settings.user_timeout),
            Some(_) => settings.user_timeout,
        }
    }

    /// Sets the time of the next keep-alive; none while segments in flight or window probes already probe the
    /// peer.
    #[inline]
    pub(super) fn arm_keep_alive(&mut self, settings: &Settings) {
        let Some(keep_alive) = settings.keep_alive else { return };
        let is_probed = self.recovery.nxt() > self.recovery.una() || self.timers.is_set(Timer::Persist);
        if !self.is_opened || is_probed {
            return self.timers.stop(Timer::KeepAlive);
        }
        let (last_received_at, probed_at) = (self.last_received_at, self.persist.probed_at);
        let is_unanswered = self.persist.probes > 0 && last_received_at <= probed_at;
        let at =
            if is_unanswered { probed_at + keep_alive.interval } else { last_received_at + keep_alive.idle };
        self.timers.set(Timer::KeepAlive, at);
    }

    /// [`Timer::KeepAlive`] has expired. The peer is probed, unless a segment has arrived in this turn.
    pub(super) fn on_idle(&mut self, cx: &mut Context<'_>) {
        if self.last_received_at > self.persist.probed_at {
            self.persist.probes = 0;
        }
        self.arm_keep_alive(cx.settings);
        let Some(keep_alive) = cx.settings.keep_alive else { return };
        if !self.timers.is_expired(Timer::KeepAlive, cx.now) {
            return;
        }
        if self.persist.probes >= keep_alive.probes {
            self.give_up(cx);
        } else {
            self.persist.probes += 1;
            (self.persist.probed_at, self.persist.is_due) = (cx.now, true);
        }
    }

    /// RFC 9293 §3.8.3: gives up if bytes stay unacknowledged for too long.
    pub(super) fn give_up_if_silent(&mut self, cx: &mut Context<'_>) {
        let Some(since) = self.recovery.last_progress_at().filter(|_| self.is_opened) else { return };
        // A peer that reports a closed window is alive (MUST-37), even if older bytes are in flight. Its next answer is
        // expected after these bytes are retransmitted.
        let alive_until = self.persist.closed_at.map_or(Time::ZERO, |at| at + self.recovery.rto());
        if cx.now.since(since.max(alive_until)) >= self.user_timeout(cx.settings) {
            self.give_up(cx);
        }
    }

    pub(super) fn give_up(&mut self, cx: &mut Context<'_>) {
        cx.counters.given_up += 1;
        self.lose(LostReason::TimedOut);
    }
}
