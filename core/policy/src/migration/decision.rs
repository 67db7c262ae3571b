//! Decisions to move a connection, with their reasons for the log.

use core::fmt;

use spillway_wire::switch::ServerId;

use super::connections::ConnectionId;

/// Move this connection. Report the outcome by [`leave`](super::Migration::leave) or
/// [`not_moved`](super::Migration::not_moved).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The connection.
    pub connection: ConnectionId,
    /// Where to.
    pub target: Target,
    /// Why.
    pub reason: Reason,
}

/// The target of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The least loaded server, which the switch fills in. The server named here is the least loaded one in the table of
    /// peers; the move counts in its room.
    LeastLoaded(ServerId),
    /// This server.
    Server(ServerId),
}

impl Target {
    /// The server in whose room the move counts.
    pub fn expected(self) -> ServerId {
        match self {
            Target::LeastLoaded(server) | Target::Server(server) => server,
        }
    }
}

/// Why a connection moves. Loads are in millionths of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The load has reached the limit at which moves begin, and has not fallen below the one at which they end.
    Load {
        /// The server's load.
        load: u32,
        /// The limit that the load has reached: the one for the beginning or for the end.
        limit: u32,
    },
    /// The demand exceeds the mean of all servers.
    AboveMean {
        /// The server's expected demand before this move.
        demand: u32,
        /// The mean of the loads of all servers.
        mean: u32,
        /// Number of other servers in the mean.
        others: u32,
        /// The connection's part of the demand.
        connection: u32,
    },
    /// The override is *on*, and the target has less load.
    Override {
        /// The server's load, or its demand if the policy is proactive.
        load: u32,
    },
}

struct Percent(u32);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} %", self.0 / 10_000, self.0 / 1_000 % 10)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::LeastLoaded(server) => {
                write!(f, "the least loaded server, at last heartbeats server {}", server.0)
            }
            Target::Server(server) => write!(f, "server {}", server.0),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Reason::Load { load, limit } => write!(f, "load {}, limit {}", Percent(load), Percent(limit)),
            Reason::AboveMean { demand, mean, others, connection } => {
                write!(
                    f,
                    "demand {}, of which {} by this connection; ",
                    Percent(demand),
                    Percent(connection)
                )?;
                write!(f, "mean with {others} other servers {}", Percent(mean))
            }
            Reason::Override { load } => write!(f, "override on; load {}", Percent(load)),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} moves to {}: {}", self.connection.0, self.target, self.reason)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString;

    use super::*;

    #[test]
    fn log_lines_state_connection_target_and_figures() {
        let line = |target, reason| Decision { connection: ConnectionId(17), target, reason }.to_string();
        assert_eq!(
            line(Target::LeastLoaded(ServerId(3)), Reason::Load { load: 912_345, limit: 850_000 }),
            "connection 17 moves to the least loaded server, at last heartbeats server 3: load 91.2 %, limit 85.0 %"
        );
        let reason = Reason::AboveMean { demand: 1_204_000, mean: 700_000, others: 2, connection: 61_000 };
        assert_eq!(
            line(Target::Server(ServerId(2)), reason),
            "connection 17 moves to server 2: demand 120.4 %, of which 6.1 % by this connection; mean with 2 other \
             servers 70.0 %"
        );
        let reason = Reason::Override { load: 5_000 };
        assert_eq!(
            line(Target::Server(ServerId(2)), reason),
            "connection 17 moves to server 2: override on; load 0.5 %"
        );
    }
}
