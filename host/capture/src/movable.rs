//! What must hold of a connection when a capture begins and until it is read: a segment may still change it.

use spillway_wire::state::QUEUE_BYTES_MAX;

use crate::error::CaptureError;
use crate::info::KernelState;
use crate::refusal::Refusal;

/// Refuses states that do not move.
pub(crate) fn check_state(state: KernelState) -> Result<(), CaptureError> {
    match state {
        KernelState::Listen => Err(Refusal::Listening.into()),
        KernelState::Other(name) => Err(Refusal::State(name).into()),
        KernelState::Established | KernelState::CloseWait | KernelState::FinWait1 | KernelState::FinWait2 => {
            Ok(())
        }
    }
}

/// Refuses queues that a state cannot have.
pub(crate) fn check_length(longest: u32) -> Result<(), CaptureError> {
    if longest as usize > QUEUE_BYTES_MAX { Err(Refusal::Queue(longest).into()) } else { Ok(()) }
}
