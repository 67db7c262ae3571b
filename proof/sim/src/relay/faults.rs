//! What can happen to hosts and to the ways between them.

use std::time::Duration;

use spillway_transport::{Conn, LostReason, Time};

use crate::agenda::Happening;
use crate::network::Network;
use crate::rng::Rng;
use crate::socket::{HostId, Segment};

/// An end that hears nothing for so long asks by itself whether the other one lives (TCP's keep-alive), bounds.
const KEEP_ALIVE_NS: (u64, u64) = (50_000_000, 20_000_000_000);

impl Network {
    /// One of a host's connections, if it has any.
    pub(crate) fn any_connection(&self, host: HostId, rng: &mut Rng) -> Option<Conn> {
        let connections = self.connections(host);
        (!connections.is_empty()).then(|| rng.pick(&connections))
    }

    /// Loses a connection: both ends learn of it, each at its own time and in its own way.
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
            self.after(delay, Happening::Segment { at, conn, from: None, segment });
        }
    }

    /// Nothing sent on a connection from now on arrives before this has passed.
    pub(crate) fn stall(&mut self, host: HostId, conn: Conn, delay: Duration) {
        let until = self.now + delay;
        if let Some(socket) = self.socket_mut(host, conn) {
            socket.arrival = socket.arrival.max(until);
        }
    }

    /// One way only: what one host sends another from now on is lost, until this has passed. What TCP repeats arrives
    /// after that; resets do not.
    pub(crate) fn silence(&mut self, source: HostId, target: HostId, delay: Duration) {
        let (until, hosts) = (self.now + delay, self.hosts.len());
        let ways = &mut self.hosts[source].silent_until;
        ways.resize(hosts.max(ways.len()), Time::ZERO);
        ways[target] = ways[target].max(until);
    }

    /// Until when nothing that one host sends another arrives.
    pub(crate) fn silent_until(&self, source: HostId, target: HostId) -> Option<Time> {
        let until = *self.hosts[source].silent_until.get(target)?;
        (until > self.now).then_some(until)
    }

    /// An end learns late, by itself, that the other end is no more.
    pub(crate) fn forsake(&mut self, (at, conn): (HostId, Conn)) {
        let (low, high) = KEEP_ALIVE_NS;
        let delay = Duration::from_nanos(self.rng.scale(low, high));
        let segment = Segment::Lost(LostReason::TimedOut);
        self.after(delay, Happening::Segment { at, conn, from: None, segment });
    }

    /// The host's program dies: its connections are reset, its listeners closed.
    pub(crate) fn crash(&mut self, host: HostId) {
        for conn in self.connections(host) {
            self.emit(host, conn, Segment::Lost(LostReason::Reset));
            self.remove(host, conn);
        }
        self.forget_program(host);
    }

    /// The host loses power for so long: it says nothing, and knows nothing afterwards. The other ends of its
    /// connections think that they live.
    pub(crate) fn power_off(&mut self, host: HostId, down: Duration) {
        for conn in self.connections(host) {
            if let Some(peer) = self.remove(host, conn).and_then(|socket| socket.peer) {
                self.forsake(peer);
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
        host.spent.clear();
    }

    /// A host's clock runs at another rate from now on.
    pub(crate) fn drift(&mut self, host: HostId) {
        self.hosts[host].clock.drift(&mut self.rng, self.now);
        // Its timers are due at other times.
        self.turn_soon(host);
    }
}
