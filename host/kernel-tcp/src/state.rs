//! What the sockets add to a captured connection's state, and take from that of one that comes.

use spillway_net::Detached;
use spillway_wire::Bytes;
use spillway_wire::state::{ConnectionState, Finish, Stage};

/// More than an application could use of a grant: the sum with any sequence number does not overflow.
const GRANTED_MAX: u64 = 1 << 60;

/// Adds to a captured state what is known outside of the socket: the listener, grants, and bytes that the socket has not taken.
/// `None`: both ends have finished, and the last bytes of this end are not written yet.
pub(crate) fn completed(state: &ConnectionState, detached: &Detached) -> Option<ConnectionState> {
    let mut state = ConnectionState { listener: Some(0), ..state.clone() };
    state.receiving.granted = state.receiving.next + detached.granted.min(GRANTED_MAX);
    state.receiving.reported_finished = detached.is_finished;
    state.sending.wants_room = detached.wants_room;
    state.sending.is_watched = detached.is_watched;
    if !detached.queue.is_empty() {
        state.sending.queue.push(Bytes::from(detached.queue.clone()));
    }
    if detached.has_ended {
        state.stage = match state.stage {
            Stage::Established => Stage::FinWait1,
            stage @ (Stage::FinWait1 | Stage::FinWait2) => stage,
            Stage::CloseWait | Stage::Closing | Stage::LastAck => return None,
        };
        if state.sending.finish == Finish::No {
            state.sending.finish = Finish::Unacknowledged;
        }
    }
    Some(state)
}

/// What the sockets keep of a connection that comes. Its queue is what its own socket does not take.
pub(crate) fn detached(state: &ConnectionState) -> Detached {
    let receiving = &state.receiving;
    Detached {
        granted: receiving.granted.saturating_sub(receiving.next),
        is_finished: receiving.reported_finished,
        queue: Vec::new(),
        has_ended: state.sending.finish != Finish::No,
        wants_room: state.sending.wants_room,
        is_watched: state.sending.is_watched,
    }
}
