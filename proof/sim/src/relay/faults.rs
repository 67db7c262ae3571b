//! Faults of hosts and of the paths between them.

use std::time::Duration;

use spillway_transport::{Conn, LostReason, Time};

use crate::agenda::NetworkEvent;
use crate::network::Network;
use crate::rng::Rng;
use crate::socket::{HostId, Segment};

/// Bounds of the time after which TCP's keep-alive detects a dead peer.
const KEEP_ALIVE_NS: (u64, u64) = (50_000_000, 20_000_000_000);

impl Network {
    /// One of a host's connections, at random; `None` without connections.
    pub(crate) fn any_connection(&self, host: HostId, rng: &mut Rng) -> Option<Conn> {
        let connections = self.connections(host);
        (!connections.is_empty()).then(|| rng.pick(&connections))
    }

    /// Cuts a connection: each end fails at a random time, for a random reason.
    pub(crate) fn cut(&mut self, host: HostId, conn: Conn) {
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let Some(peer) = socket.peer else { return };
        for (at, conn) in [(host, conn), peer] {
            if let Some(socket) = self.socket_mut(at, conn) {
                socket.cut = true;
            }
            let reason = self.rng.pick(&[LostReason::Reset, LostReason::TimedOut, LostReason::Failed]);
            let delay = Duration::from_nanos(self.rng.range(0, 20_000_000));
            let segment = Segment::Lost(reason);
            self.queue_after(delay, NetworkEvent::Segment { at, conn, from: None, segment });
        }
    }

    /// Delays the segments that `host` sends on a connection until `delay` has passed.
    pub(crate) fn stall(&mut self, host: HostId, conn: Conn, delay: Duration) {
        let until = self.now + delay;
        if let Some(socket) = self.socket_mut(host, conn) {
            socket.arrival = socket.arrival.max(until);
        }
    }

    /// Loses the segments from `source` to `target` until `delay` has passed. Their retransmissions arrive
    /// later; lost resets have none.
    pub(crate) fn silence(&mut self, source: HostId, target: HostId, delay: Duration) {
        let (until, hosts) = (self.now + delay, self.hosts.len());
        let silences = &mut self.hosts[source].silent_until;
        silences.resize(hosts.max(silences.len()), Time::ZERO);
        silences[target] = silences[target].max(until);
    }

    /// Time until which segments from `source` to `target` are lost; `None` if they arrive.
    pub(crate) fn silent_until(&self, source: HostId, target: HostId) -> Option<Time> {
        let until = *self.hosts[source].silent_until.get(target)?;
        (until > self.now).then_some(until)
    }

    /// Ends a connection whose peer has vanished, at the keep-alive timeout.
    pub(crate) fn time_out_peer(&mut self, (at, conn): (HostId, Conn)) {
        let (low, high) = KEEP_ALIVE_NS;
        let delay = Duration::from_nanos(self.rng.log_uniform(low, high));
        let segment = Segment::Lost(LostReason::TimedOut);
        self.queue_after(delay, NetworkEvent::Segment { at, conn, from: None, segment });
    }

    /// Ends a host's program, which resets its connections and closes its listeners.
    pub(crate) fn crash(&mut self, host: HostId) {
        for conn in self.connections(host) {
            self.emit(host, conn, Segment::Lost(LostReason::Reset));
            self.remove(host, conn);
        }
        self.forget_program(host);
    }

    /// Turns a host's power off for `down`. The host loses all state, and its peers get no resets.
    pub(crate) fn power_off(&mut self, host: HostId, down: Duration) {
        for conn in self.connections(host) {
            if let Some(peer) = self.remove(host, conn).and_then(|socket| socket.peer) {
                self.time_out_peer(peer);
            }
        }
        self.hosts[host].off_until = self.now + down;
        self.forget_program(host);
    }

    fn forget_program(&mut self, host: HostId) {
        let host = &mut self.hosts[host];
        host.listeners.iter_mut().for_each(|(_, open)| *open = false);
        (host.wake, host.turn_due) = (None, false);
        host.ready.clear();
        host.dirty.clear();
        host.reusable_chunks.clear();
    }

    pub(crate) fn drift(&mut self, host: HostId) {
        self.hosts[host].clock.drift(&mut self.rng, self.now);
        // The new rate changes when the host's timers are due.
        self.turn_soon(host);
    }
}
