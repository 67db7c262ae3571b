//! The times of the steps of moves, as the admin socket reports them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use spillway_moves::{End, Step, TracedMove};

/// The steps of the moves that have ended since the last request: the answer to
/// [`Request::MoveSteps`](crate::Request::MoveSteps).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsOfMoves {
    /// Moves, in the order of their ends.
    pub moves: Vec<MoveStepTimes>,
}

/// The steps of one move at one of its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveStepTimes {
    /// The client of the connection.
    pub client: SocketAddr,
    /// The generation of the move, the same at both ends.
    pub generation: u64,
    /// Whether this server was the source.
    pub is_source: bool,
    /// Times on the machine's monotonic clock, in ns, by the step's name: see [`step_name`].
    pub ns: BTreeMap<String, u64>,
}

impl MoveStepTimes {
    /// The steps that a server has recorded.
    pub fn of(traced: &TracedMove) -> MoveStepTimes {
        let time = |step: Step| Some((step_name(step).to_owned(), traced.at(step)?));
        MoveStepTimes {
            client: traced.flow.client().into(),
            generation: traced.generation,
            is_source: traced.end == End::Source,
            ns: Step::ALL.into_iter().filter_map(time).collect(),
        }
    }
}

/// A step's name: that of Capybara's event, if it has one.
pub fn step_name(step: Step) -> &'static str {
    match step {
        Step::Begin => "INIT_MIG",
        Step::SendPrepare => "SEND_PREPARE_MIG",
        Step::ReceivePrepare => "RECV_PREPARE_MIG",
        Step::SendPrepared => "SEND_PREPARE_MIG_ACK",
        Step::ReceivePrepared => "RECV_PREPARE_MIG_ACK",
        Step::Export => "EXPORT",
        Step::SendState => "SEND_STATE",
        Step::ReceiveState => "RECV_STATE",
        Step::Checked => "CHECKED",
        Step::Owned => "OWNED",
        Step::Import => "CONN_ACCEPTED",
        Step::ReceiveAccepted => "RECV_ACCEPTED",
    }
}

/// Nanoseconds on the monotonic clock, which all processes of the machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
