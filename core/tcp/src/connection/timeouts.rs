//! The timers of a connection: what is done when one expires, and which are set at the end of a turn.

use spillway_transport::Time;

use super::Connection;
use super::context::Context;
use super::receiving::WindowUpdate;
use crate::recovery::Recovery;
use crate::settings::Settings;
use crate::timer::Timer;

/// Consecutive timeouts after which the next hop is resolved again: R1 of RFC 9293 §3.8.3. Fewer than the 3
/// that SHLD-10 recommends, because this costs only a request: frames are still sent to the old address.
const DOUBTED_AFTER: u32 = 2;

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) is due. Valid after [`settle`](Self::settle).
    #[inline]
    pub(crate) fn wakes_at(&self) -> Time {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let recovery_timer = Recovery::first_expired(now, &self.timers);
        for timer in Timer::VALUES {
            if !self.timers.is_expired(timer, now) {
                continue;
            }
            match timer {
                Timer::Acknowledge => self.acking.on_delayed(&mut self.timers),
                Timer::Repeat => self.acking.on_repeat(self.receiving.is_held_back(), &mut self.timers),
                Timer::Reordering | Timer::Probe | Timer::Retransmission if recovery_timer != Some(timer) => {
                }
                Timer::Reordering => _ = self.recovery.on_overdue(now, &mut self.timers),
                Timer::Probe => self.recovery.on_probe_due(now, &mut self.timers),
                Timer::Retransmission => self.on_retransmission_timeout(cx),
                Timer::Persist => self.on_window_closed_long(cx),
                Timer::KeepAlive => self.on_idle(cx),
                Timer::Opening => self.give_up(cx),
            }
        }
        self.give_up_if_silent(cx);
        self.push_events(cx);
    }

    fn on_retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        cx.counters.timeouts += 1;
        self.recovery.on_timeout(cx.now, &mut self.timers);
        // SYN-ACKs go to the sender of the SYN: forged SYNs must not fill the tables of neighbours, here or in a kernel.
        if self.recovery.timeouts() >= DOUBTED_AFTER && !self.is_half_open() {
            self.next_hop.doubt();
        }
    }

    /// Sets the persist, delayed acknowledgement and keep-alive timers. Call it at the end of a turn, after all output.
    #[inline]
    pub(crate) fn settle(&mut self, now: Time, settings: &Settings) {
        if self.recovery.in_flight() == 0 && self.is_blocked_by_window(settings) {
            let is_closed = self.peer_window.size == 0;
            self.persist.start(is_closed, now, self.recovery.rto(), &mut self.timers);
        } else {
            self.persist.stop(&mut self.timers);
        }
        // A small growth of the window is advertised after a delay (RFC 9293 §3.8.6.2.2).
        let owes = self.acking.owes(&self.timers);
        if self.is_opened && !owes && self.receiving.window_update(self.agreed.mss) != WindowUpdate::None {
            self.acking.owe_within(now, settings.delayed_ack, &mut self.timers);
        }
        self.arm_keep_alive(settings);
    }
}
