//! A restored connection, which becomes live when its move is decided.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use spillway_wire::Chunks;
use spillway_wire::state::SocketOptions;

use crate::error::{CaptureError, Failed, system};
use crate::held::Held;
use crate::info::{Info, KernelState};
use crate::inject::Injector;
use crate::options;
use crate::peer_packet::{PeerPacket, PeerSegment};
use crate::plan::{OwnFin, Plan};
use crate::queues::write;
use crate::repair::Repair;

/// Time that the kernel may take to process an injected segment. Usually it does so within the call; under load its
/// `ksoftirqd` does.
const INJECTED_WITHIN: Duration = Duration::from_millis(500);

/// A connection in a new socket in repair mode. It has sent nothing. A drop ends the socket without a segment.
#[derive(Debug)]
#[must_use = "a drop ends the connection without telling the peer"]
pub struct Restored {
    held: Held,
    plan: Box<Plan>,
    options: Box<SocketOptions>,
    has_congestion_control: bool,
}

/// A connection that continues.
#[derive(Debug)]
#[must_use = "a drop closes the connection"]
pub struct Live {
    /// The socket, in blocking mode unless its options say otherwise.
    pub socket: OwnedFd,
    /// Bytes of the state that the kernel has not accepted, because it was short of memory; otherwise empty. The
    /// application must write these bytes before any others.
    pub unwritten: Chunks,
    /// The application must end its writing direction after the bytes in `unwritten`: the state has an unsent FIN.
    pub must_finish: bool,
    /// What could not be restored of the peer's direction: its FIN, or the acknowledgement owed to the peer.
    pub fault: Option<CaptureError>,
}

impl Restored {
    pub(crate) fn new(
        held: Held,
        plan: Plan,
        options: SocketOptions,
        has_congestion_control: bool,
    ) -> Restored {
        Restored { held, plan: Box::new(plan), options: Box::new(options), has_congestion_control }
    }

    /// Whether the host has the congestion control that the options name; otherwise the socket uses the host's default.
    pub fn has_congestion_control(&self) -> bool {
        self.has_congestion_control
    }

    /// Bytes that had arrived out of order. The kernel cannot take them, although the peer may know of them by SACK: it
    /// sends them again after its retransmission timeout (RFC 2018 §8).
    pub fn out_of_order_bytes(&self) -> u64 {
        self.plan.out_of_order_bytes
    }

    /// Continues the connection, after this host is known to own it: leaves repair mode, restores the ends of both
    /// directions, sends an acknowledgement that the peer was owed, and then the unsent bytes.
    ///
    /// # Errors
    /// With the restored connection, which has sent nothing: the process has lost the capability to leave repair mode.
    pub fn go_live(self, injector: &Injector) -> Result<Live, Failed<Restored>> {
        // Without the option a listening socket could not be bound again while the connection lives.
        let reuses_address = self.options.reuses_address.unwrap_or(true);
        if let Err(error) = Repair::of(self.held.fd()).leave(reuses_address) {
            return Err(Failed { kept: self, error });
        }
        let Restored { held, plan, options, .. } = self;
        let fd = held.release();
        let fault = restore_ends(&fd, &plan, injector).err();
        let unwritten = write(&fd, &plan.unsent);
        let mut must_finish = plan.own_fin == OwnFin::Unsent;
        if must_finish && unwritten.is_empty() {
            must_finish = shutdown(&fd, Shutdown::Write).is_err();
        }
        if options.has_ended_reading {
            // Fails only if the peer has reset the connection meanwhile.
            let _ = shutdown(&fd, Shutdown::Read);
        }
        options::finish(&options, &fd, plan.needed());
        Ok(Live { socket: fd, unwritten, must_finish, fault })
    }
}

/// Injects what the peer has sent to end its stream, or to acknowledge the end of ours. A state without such ends may owe an
/// acknowledgement, which the kernel does not know of.
fn restore_ends(fd: &OwnedFd, plan: &Plan, injector: &Injector) -> Result<(), CaptureError> {
    let scaled = plan.window.snd_wnd >> plan.negotiated.peer_scale;
    let segment = PeerSegment {
        peer: plan.peer,
        local: plan.local,
        seq: plan.receive_end(),
        ack: plan.acknowledged(),
        has_fin: plan.has_peer_fin,
        window: u16::try_from(scaled).unwrap_or(u16::MAX),
        stamps: None,
    };
    let inject = |segment: &PeerSegment| injector.inject(&PeerPacket::made(segment, &[])?);
    if plan.own_fin == OwnFin::Acknowledged {
        inject(&PeerSegment { has_fin: false, ..segment })?;
        wait_for(fd, KernelState::FinWait2, PollFlags::empty())?;
    }
    if plan.has_peer_fin {
        inject(&segment)?;
        wait_for(fd, KernelState::CloseWait, PollFlags::RDHUP)
    } else if plan.owes {
        // The kernel answers a segment before its window by an acknowledgement, and ignores the segment.
        inject(&PeerSegment { seq: plan.window.rcv_wup.wrapping_sub(1), ..segment })
    } else {
        Ok(())
    }
}

/// Waits until the socket is in a state, or in one that only follows it, whose `event` the kernel reports.
fn wait_for(fd: &OwnedFd, state: KernelState, event: PollFlags) -> Result<(), CaptureError> {
    let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let pauses = INJECTED_WITHIN.as_millis();
    for _ in 0..pauses {
        let now = Info::read(fd)?.state();
        // The peer may have ended the connection meanwhile.
        if now == state || matches!(now, KernelState::Other(_)) {
            return Ok(());
        }
        let wait = || -> io::Result<usize> { Ok(poll(&mut [PollFd::new(fd, event)], Some(&pause))?) };
        wait().map_err(system("wait for an injected segment"))?;
    }
    Err(CaptureError::NotInjected)
}
