//! The connections of a server: their rates, and when they may move.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::ServerId;

use super::settings::MoveLimits;

/// Maximum number of connections that a policy knows; further ones do not move.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Time over which the rate of a connection is smoothed. After a step of the load, a longer time shows rates that are
/// still too low, so that the policy moves too many connections (`docs/move-policy.md`).
const RATE_TIME: Duration = Duration::from_millis(10);

/// A connection, by a number of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Requests since the last look.
    requests: u32,
    /// Requests per second, smoothed.
    rate_per_s: f64,
    /// The connection may not move before this time.
    not_before: Time,
    /// The server from which the connection came by a move, and when.
    came_from: Option<(ServerId, Time)>,
    is_leaving: bool,
}

/// A connection that may move now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Movable {
    pub connection: ConnectionId,
    pub rate_per_s: f64,
    /// The server to which it must not move yet.
    pub not_to: Option<ServerId>,
}

/// The table of a server's connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    connections: BTreeMap<ConnectionId, Connection>,
    /// Number of joins that were ignored because the table was full.
    pub ignored: u64,
}

impl Connections {
    /// Returns false if the table is full.
    pub(crate) fn join(
        &mut self,
        now: Time,
        connection: ConnectionId,
        came_from: Option<ServerId>,
        limits: &MoveLimits,
    ) -> bool {
        if self.connections.len() >= CONNECTIONS_MAX && !self.connections.contains_key(&connection) {
            self.ignored += 1;
            return false;
        }
        let not_before = if came_from.is_some() { now + limits.stay_min } else { now };
        let came_from = came_from.map(|server| (server, now));
        let state = Connection { requests: 0, rate_per_s: 0.0, not_before, came_from, is_leaving: false };
        self.connections.insert(connection, state);
        true
    }

    pub(crate) fn leave(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    pub(crate) fn record_requests(&mut self, connection: ConnectionId, requests: u32) {
        if let Some(state) = self.connections.get_mut(&connection) {
            state.requests = state.requests.saturating_add(requests);
        }
    }

    /// Ends a look of this length. Returns the sum of the rates of all connections that stay.
    pub(crate) fn look(&mut self, passed: Duration) -> f64 {
        let seconds = passed.as_secs_f64();
        if seconds <= 0.0 {
            return self.staying().map(|(_, state)| state.rate_per_s).sum();
        }
        let weight = seconds / (seconds + RATE_TIME.as_secs_f64());
        for state in self.connections.values_mut() {
            let per_s = f64::from(core::mem::take(&mut state.requests)) / seconds;
            state.rate_per_s += (per_s - state.rate_per_s) * weight;
        }
        self.staying().map(|(_, state)| state.rate_per_s).sum()
    }

    /// The connections that may move now, in the order of their numbers.
    pub(crate) fn movable(&self, now: Time, limits: &MoveLimits) -> Vec<Movable> {
        let may_move = |(connection, state): (&ConnectionId, &Connection)| {
            (state.not_before <= now && state.rate_per_s > 0.0).then(|| Movable {
                connection: *connection,
                rate_per_s: state.rate_per_s,
                not_to: Self::not_to(now, state, limits),
            })
        };
        self.staying().filter_map(may_move).collect()
    }

    /// Whether the connection may move now, to this server.
    pub(crate) fn may_move(
        &self,
        now: Time,
        connection: ConnectionId,
        target: ServerId,
        limits: &MoveLimits,
    ) -> bool {
        self.connections.get(&connection).is_some_and(|state| {
            let is_free = !state.is_leaving && state.not_before <= now;
            is_free && Self::not_to(now, state, limits) != Some(target)
        })
    }

    /// Marks the connection as leaving. Returns its rate.
    pub(crate) fn set_leaving(&mut self, connection: ConnectionId) -> f64 {
        let Some(state) = self.connections.get_mut(&connection) else { return 0.0 };
        state.is_leaving = true;
        state.rate_per_s
    }

    /// The move has failed: the connection stays for `stay_min` at least. Returns whether it was leaving.
    pub(crate) fn stay(&mut self, now: Time, connection: ConnectionId, limits: &MoveLimits) -> bool {
        let Some(state) = self.connections.get_mut(&connection) else { return false };
        state.not_before = state.not_before.max(now + limits.stay_min);
        core::mem::replace(&mut state.is_leaving, false)
    }

    pub(crate) fn count(&self) -> usize {
        self.connections.len()
    }

    fn not_to(now: Time, state: &Connection, limits: &MoveLimits) -> Option<ServerId> {
        state.came_from.filter(|(_, at)| now.since(*at) < limits.return_min).map(|(server, _)| server)
    }

    fn staying(&self) -> impl Iterator<Item = (&ConnectionId, &Connection)> {
        self.connections.iter().filter(|(_, state)| !state.is_leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    const ONE: ConnectionId = ConnectionId(1);

    #[test]
    fn table_is_bounded_and_a_repeated_join_replaces() {
        let (mut connections, limits) = (Connections::default(), MoveLimits::default());
        for number in 0..CONNECTIONS_MAX as u64 {
            assert!(connections.join(ms(0), ConnectionId(number), None, &limits));
        }
        assert!(!connections.join(ms(0), ConnectionId(u64::MAX), None, &limits));
        assert!(connections.join(ms(0), ONE, None, &limits));
        assert_eq!((connections.count(), connections.ignored), (CONNECTIONS_MAX, 1));
    }

    #[test]
    fn rates_follow_the_requests_and_leaving_connections_do_not_count() {
        let (mut connections, limits) = (Connections::default(), MoveLimits::default());
        connections.join(ms(0), ONE, None, &limits);
        connections.join(ms(0), ConnectionId(2), None, &limits);
        let mut sum = 0.0;
        for _ in 0..100 {
            connections.record_requests(ONE, 30);
            connections.record_requests(ConnectionId(2), 10);
            sum = connections.look(Duration::from_millis(10));
        }
        assert!((sum - 4_000.0).abs() < 1.0, "{sum}");
        assert!((connections.set_leaving(ONE) - 3_000.0).abs() < 1.0);
        assert!((connections.look(Duration::ZERO) - 1_000.0).abs() < 1.0);
        assert!(connections.stay(ms(5), ONE, &limits));
        assert!(
            !connections.may_move(ms(104), ONE, ServerId(2), &limits),
            "a failed move should be followed by a pause"
        );
        assert!(connections.may_move(ms(105), ONE, ServerId(2), &limits));
    }

    #[test]
    fn arrived_connection_stays_100_ms_and_does_not_return_within_a_second() {
        let (mut connections, limits) = (Connections::default(), MoveLimits::default());
        connections.join(ms(0), ONE, Some(ServerId(7)), &limits);
        let may_move = |at, server| connections.may_move(ms(at), ONE, ServerId(server), &limits);
        assert!(!may_move(99, 8) && may_move(100, 8));
        assert!(!may_move(999, 7) && may_move(1_000, 7));
    }
}
