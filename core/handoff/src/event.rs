//! What an agent sends, and what the driver of the stack must do.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Flow, MESSAGE_BYTES, ServerId};

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

/// How a move ended for its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveResult {
    /// The target has the connection.
    Moved,
    /// The connection has stayed at the source: it was not exported.
    Kept,
    /// The connection was exported and has come back to the source. The reason is that of the target's refusal, if the
    /// target has refused the state.
    Returned(Option<Reason>),
    /// The connection is lost, or the target has it: no entry confirms that the source owns the flow.
    LetGo,
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
    /// This end of a move has given the connection up; the other end may have it.
    Gone {
        /// The flow of the connection.
        flow: Flow,
        /// The reason.
        cause: Cause,
    },
    /// A move from this server has ended: for logs and counters.
    Ended {
        /// The flow of the connection.
        flow: Flow,
        /// How the move ended.
        result: MoveResult,
    },
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
