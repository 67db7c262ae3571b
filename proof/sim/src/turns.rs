//! When hosts have turns: after arrivals and at timeouts, by each host's clock.

use std::time::Duration;

use spillway_transport::{Conn, Time};

use crate::agenda::NetworkEvent;
use crate::clock::Clock;
use crate::network::Network;
use crate::socket::HostId;

impl Network {
    pub(crate) fn draw_clock(&mut self, host: HostId) {
        self.hosts[host].clock = Clock::drawn(&mut self.rng);
    }

    pub(crate) fn time_at(&self, host: HostId) -> Time {
        self.hosts[host].clock.read(self.now)
    }

    pub(crate) fn turn_soon(&mut self, host: HostId) {
        if !self.hosts[host].turn_due {
            self.hosts[host].turn_due = true;
            let delay = self.rng.range(0, self.weather.turn_delay_ns);
            self.after(Duration::from_nanos(delay), NetworkEvent::Turn(host));
        }
    }

    /// Queues a turn for a host that skipped its turns and timers while it was stopped.
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

    /// Sets the host's timer to `at`, by the host's clock; `None` stops the timer.
    pub(crate) fn wake_at(&mut self, host: HostId, at: Option<Time>) {
        let now = self.now;
        let node = &mut self.hosts[host];
        node.wake = at.map(|at| node.clock.when(at).max(Time(now.0 + 1000)));
        let Some(at) = node.wake else { return };
        if node.armed.is_none_or(|armed| at < armed) {
            node.armed = Some(at);
            self.at(at, NetworkEvent::Wake(host, at));
        }
    }

    /// Whether the host's timer, queued for `at`, is due; a timer that was set to a later time since is queued again.
    pub(crate) fn is_due(&mut self, host: HostId, at: Time) -> bool {
        let node = &mut self.hosts[host];
        if node.armed != Some(at) {
            return false;
        }
        node.armed = None;
        match node.wake {
            Some(wake) if wake > at => {
                node.armed = Some(wake);
                self.at(wake, NetworkEvent::Wake(host, wake));
                false
            }
            due => {
                node.wake = None;
                due.is_some()
            }
        }
    }
}
