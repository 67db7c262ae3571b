//! When hosts run turns: after arrivals, and at timeouts on the host's clock.

use std::time::Duration;

use spillway_transport::{Conn, Time};

use crate::agenda::NetworkEvent;
use crate::clock::Clock;
use crate::network::Network;
use crate::socket::HostId;

impl Network {
    pub(crate) fn draw_clock(&mut self, host: HostId) {
        self.hosts[host].clock = Clock::draw(&mut self.rng);
    }

    pub(crate) fn time_at(&self, host: HostId) -> Time {
        self.hosts[host].clock.read(self.now)
    }

    pub(crate) fn turn_soon(&mut self, host: HostId) {
        if !self.hosts[host].turn_due {
            self.hosts[host].turn_due = true;
            let delay = self.rng.range(0, self.conditions.turn_delay_ns);
            self.queue_after(Duration::from_nanos(delay), NetworkEvent::Turn(host));
        }
    }

    /// Queues a turn for a host whose program was suspended and skipped its turns and timers.
    pub(crate) fn wake_up(&mut self, host: HostId) {
        self.hosts[host].turn_due = false;
        self.turn_soon(host);
    }

    /// Whether a queued turn is still due; an earlier turn may have handled the arrivals.
    pub(crate) fn wants_turn(&self, host: HostId) -> bool {
        self.hosts[host].turn_due
    }

    pub(crate) fn begin_turn(&mut self, host: HostId) -> Vec<Conn> {
        self.hosts[host].turn_due = false;
        let mut ready = std::mem::take(&mut self.hosts[host].ready);
        self.rng.shuffle(&mut ready);
        for conn in &ready {
            if let Some(socket) = self.socket_mut(host, *conn) {
                socket.ready = false;
            }
        }
        ready
    }

    /// Sets the host's timer to `at` on the host's clock; `None` stops the timer.
    pub(crate) fn wake_at(&mut self, host: HostId, at: Option<Time>) {
        let now = self.now;
        let state = &mut self.hosts[host];
        state.wake = at.map(|at| state.clock.when(at).max(Time(now.0 + 1000)));
        let Some(at) = state.wake else { return };
        if state.armed.is_none_or(|armed| at < armed) {
            state.armed = Some(at);
            self.queue_at(at, NetworkEvent::Wake(host, at));
        }
    }

    /// Whether the host's timer, queued for `at`, is due. A timer that was set to a later time is queued again.
    pub(crate) fn is_due(&mut self, host: HostId, at: Time) -> bool {
        let state = &mut self.hosts[host];
        if state.armed != Some(at) {
            return false;
        }
        state.armed = None;
        match state.wake {
            Some(wake) if wake > at => {
                state.armed = Some(wake);
                self.queue_at(wake, NetworkEvent::Wake(host, wake));
                false
            }
            due => {
                state.wake = None;
                due.is_some()
            }
        }
    }
}
