//! What must hold of a connection when a capture begins and until it is read: a segment may still change it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_wire::state::QUEUE_BYTES_MAX;

use crate::error::{CaptureError, system};
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

/// Refuses a socket with an urgent byte that the application has not read: reads of the queue end before it.
pub(crate) fn check_urgent(fd: &OwnedFd) -> Result<(), CaptureError> {
    if has_urgent_data(fd).map_err(system("poll the socket"))? { Err(Refusal::Urgent.into()) } else { Ok(()) }
}

fn has_urgent_data(fd: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(fd, PollFlags::PRI)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::PRI))
}
