//! What an agent sends, and what the driver of the stack must do.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Flow, MESSAGE_BYTES, ServerId, Status};

/// The payload of a datagram that the agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// A datagram for the switch.
    Switch(Box<[u8; MESSAGE_BYTES]>),
    /// A datagram for another server.
    Server {
        /// The receiver.
        to: ServerId,
        /// The payload.
        payload: Vec<u8>,
    },
}

/// Why a connection was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The switch has taken the flow from a server that was silent for too long.
    Silence,
    /// The switch has lost the flow's entry, and the flow could not be taken back.
    Restart,
    /// A move has failed, and this end may not continue the connection.
    Doubt,
    /// The entry says that another server owns the flow.
    Foreign,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Silence => {
                "the switch has taken them away, because it had no heartbeat of this server for owner_timeout: check the \
                 path to the switch"
            }
            Cause::Restart => "the switch has lost its entries, and they could not be taken back",
            Cause::Doubt => "a move has failed, and the switch does not confirm that this server owns them",
            Cause::Foreign => "the switch's entry names another server",
        })
    }
}

/// A fault of other servers' datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerFault {
    /// Datagrams that name this server as their sender fail authentication.
    NotAuthentic(ServerId),
    /// Datagrams have this version of the protocol, which this server does not know.
    Version(u8),
}

/// Why a connection has stayed at its source, without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The target has refused. `None`: the target's reason, which a datagram of its own carries, has not arrived.
    Target(Option<Reason>),
    /// The switch has refused *prepare* with this status.
    Switch(Status),
    /// The switch and the target have not answered in time.
    Silence,
    /// The connection was not exported: a request had begun, or the connection has ended.
    NotExported,
    /// The switch has lost its entries.
    Restart,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Target(Some(reason)) => reason.fmt(f),
            Obstacle::Target(None) => f.write_str("the target has refused it: its log has the reason"),
            Obstacle::Switch(Status::Full) => f.write_str("the switch's table of flows is full"),
            Obstacle::Switch(Status::NoOwner) => {
                f.write_str("the switch knows no other live server of the service with room")
            }
            Obstacle::Switch(Status::Forbidden) => {
                f.write_str("the switch does not allow these servers to own the connection: see `may_own` and `places` there")
            }
            Obstacle::Switch(Status::Stale | Status::NoEntry) => {
                f.write_str("the switch had another entry of the flow than this server: try again")
            }
            Obstacle::Switch(status) => write!(f, "the switch has refused the move ({status:?})"),
            Obstacle::Silence => f.write_str("the switch and the target have not answered in time"),
            Obstacle::NotExported => f.write_str("a request had begun, or the connection has ended"),
            Obstacle::Restart => f.write_str("the switch has lost its entries"),
        }
    }
}

/// How a move ended for its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveResult {
    /// The target has the connection.
    Moved,
    /// The connection has stayed at the source: it was not exported.
    Kept(Obstacle),
    /// The connection was exported and has come back to the source. The reason is that of the target's refusal, if the
    /// target has refused the state.
    Returned(Option<Reason>),
    /// The connection is lost, or the target has it: no entry confirms that the source owns the flow.
    LetGo,
}

impl fmt::Display for MoveResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MoveResult::Moved => f.write_str("the connection has moved"),
            MoveResult::Kept(obstacle) => write!(f, "the connection has stayed: {obstacle}"),
            MoveResult::Returned(Some(reason)) => write!(f, "the connection has come back: {reason}"),
            MoveResult::Returned(None) => {
                f.write_str("the connection has come back: the target has not confirmed the move in time")
            }
            MoveResult::LetGo => f.write_str(
                "this server has given the connection up: the target has it, or it is lost; the switch did not confirm an owner",
            ),
        }
    }
}

/// What the stack's driver must do. Handle all events before the next frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Export the connection, when all its frames have been sent; then call [`exported`](crate::Agent::exported) or
    /// [`not_exported`](crate::Agent::not_exported).
    Export {
        /// The flow of the connection.
        flow: Flow,
    },
    /// A connection is to come here: then the client's packets may arrive before it. The driver holds the flow's packets from
    /// now on, and calls [`expected`](crate::Agent::expected). Only for drivers that have called
    /// [`announce_arrivals`](crate::Agent::announce_arrivals). [`Import`](Event::Import), [`Deliver`](Event::Deliver) or
    /// [`Refused`](Event::Refused) ends this; until then the event may come again for another move of the flow.
    Expect {
        /// The flow of the connection.
        flow: Flow,
        /// The generation of the move, for `expected`.
        generation: u64,
    },
    /// Check whether the stack can import the state; then call [`checked`](crate::Agent::checked).
    Check {
        /// The flow of the connection.
        flow: Flow,
        /// The generation of the move, for `checked`.
        generation: u64,
        /// The state.
        state: Chunks,
    },
    /// Import the connection, then deliver the frames.
    Import {
        /// The flow of the connection.
        flow: Flow,
        /// The state.
        state: Chunks,
        /// Frames that arrived before the connection.
        frames: Vec<Vec<u8>>,
        /// Whether the connection was exported here before and now comes back.
        is_return: bool,
    },
    /// Deliver frames of a connection that the stack has.
    Deliver {
        /// The flow of the connection.
        flow: Flow,
        /// The frames.
        frames: Vec<Vec<u8>>,
    },
    /// A connection that was exported here has ended, or is lost with the server that had it: the flow's entry names this
    /// server again, or is gone. From now on the stack answers the connection's segments by resets, as those of an unknown
    /// one. Then deliver the frame that has waited for this, if there is one.
    LoanEnded {
        /// The flow of the connection.
        flow: Flow,
        /// The frame of the client that has waited.
        frames: Vec<Vec<u8>>,
    },
    /// Drop the connection, if the stack has it, without sending a segment.
    Drop {
        /// The flow of the connection.
        flow: Flow,
        /// The reason.
        cause: Cause,
    },
    /// The source of a move has given the exported connection up; the target may have it.
    Gone {
        /// The flow of the connection.
        flow: Flow,
        /// The reason.
        cause: Cause,
    },
    /// This server has refused a move to it, or has given the flow back. The connection stays at its source.
    Refused {
        /// The flow of the connection.
        flow: Flow,
        /// The server from which the connection would have come.
        source: ServerId,
        /// The reason.
        reason: Reason,
    },
    /// A request of this server, which was handed off, has ended; or a request has stayed here because its move has failed:
    /// then this server serves it, hands it off again, or answers as it chooses.
    Request {
        /// The flow of the connection.
        flow: Flow,
        /// The request's number at its origin.
        number: u64,
        /// Whether this server is the origin. Otherwise the request has stayed here.
        is_own: bool,
        /// What has become of the request.
        outcome: RequestOutcome,
    },
    /// A move from this server has ended: for logs and counters.
    Ended {
        /// The flow of the connection.
        flow: Flow,
        /// How the move ended.
        result: MoveResult,
    },
}

/// What has become of a request that was handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The move has ended with this result, and the connection is here with the request, which no other server has executed.
    Stays(MoveResult),
    /// This server has served it.
    Served(ServerId),
    /// Its connection has ended at this server. The request may have been executed in part.
    Abandoned(ServerId),
    /// The connection is lost with the server that had it, or nothing was heard for too long: the request may have been
    /// executed.
    Unknown,
}

/// Why a move cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveError {
    /// Another server owns the flow, or the switch has not confirmed that this server owns the flow.
    NotOwned,
    /// The flow is moving.
    Moving,
    /// The connection has ended.
    Ended,
    /// The switch has not confirmed this server's heartbeats for too long.
    Mute,
    /// This server moves as many connections as [`moves_max`](crate::Limits::moves_max) allows.
    TooMany,
    /// The target is not among the peers.
    UnknownServer,
    /// The request was handed off as often as [`hops_max`](crate::Limits::hops_max) allows: serve it, or return it to its origin.
    TooManyHops,
    /// As many requests of this server are away as [`requests_max`](crate::Limits::requests_max) allows.
    TooManyRequests,
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MoveError::NotOwned => "this server does not own the connection",
            MoveError::Moving => "the connection is moving already",
            MoveError::Ended => "the connection has ended",
            MoveError::Mute => {
                "the switch does not confirm this server's heartbeats: check the path to the switch"
            }
            MoveError::TooMany => "as many connections are moving as the limit allows: try again later",
            MoveError::UnknownServer => "the target is not among the configured peers",
            MoveError::TooManyHops => {
                "the request was handed off too often: serve it, or return it to its origin"
            }
            MoveError::TooManyRequests => "as many requests are at other servers as the limit allows",
        })
    }
}

impl core::error::Error for MoveError {}

/// Where a received TCP packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorted {
    /// The caller passes the packet to the stack.
    Stack,
    /// The agent keeps the packet until the connection is here.
    Held,
    /// The agent has forwarded the packet to the server that has the connection.
    Forwarded,
    /// The caller drops the packet.
    Dropped,
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_refusal_of_the_switch_is_a_sentence_with_the_next_step() {
        for status in [Status::Stale, Status::NoEntry, Status::Full, Status::NoOwner, Status::Forbidden] {
            let text = Obstacle::Switch(status).to_string();
            assert!(!text.contains("has refused the move"), "{status:?}: {text}");
        }
    }
}
