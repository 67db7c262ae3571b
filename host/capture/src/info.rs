//! The part of TCP_INFO that a move needs.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::error::{CaptureError, system};
use crate::system::{TcpInfo, tcp_info};

// States of <net/tcp_states.h>.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

// Bits of tcpi_options, from <linux/tcp.h>.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
const ECN: u8 = 8;
/// Timestamps in microseconds, since Linux 6.7.
const MICROSECOND_STAMPS: u8 = 64;

/// A state of the kernel's TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KernelState {
    #[default]
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Listen,
    /// Any other state, by the RFC's name.
    Other(&'static str),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub progress: Progress,
    pub has_sack: bool,
    pub has_timestamps: bool,
    pub has_microsecond_stamps: bool,
    pub has_ecn: bool,
    /// Shift count of the peer's windows.
    pub peer_scale: u8,
    /// Shift count of this end's windows.
    pub own_scale: u8,
    /// Time since the peer's last segment, in whole milliseconds.
    pub received_age: Duration,
}

/// What changes when a connection sends or receives. Two equal readings mean that neither queue has changed between them,
/// unless the application has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub state: KernelState,
    /// Sequence numbers of the peer that were received, in order, since the socket exists.
    pub received: u64,
    /// Sequence numbers that the peer has acknowledged since the socket exists.
    pub acknowledged: u64,
    /// Bytes that were not sent, and a FIN.
    pub unsent: u32,
}

impl Info {
    pub(crate) fn state(&self) -> KernelState {
        self.progress.state
    }

    pub(crate) fn read(fd: &OwnedFd) -> Result<Info, CaptureError> {
        Ok(Info::from(&tcp_info(fd).map_err(system("read TCP_INFO"))?))
    }
}

impl From<&TcpInfo> for Info {
    fn from(info: &TcpInfo) -> Info {
        let has = |bit| info.tcpi_options & bit != 0;
        // Without the option the kernel reports no scales.
        let scales = if has(WINDOW_SCALE) { info.tcpi_snd_rcv_wscale } else { 0 };
        let age_ms = info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv);
        Info {
            progress: Progress {
                state: KernelState::from_number(info.tcpi_state),
                received: info.tcpi_bytes_received,
                acknowledged: info.tcpi_bytes_acked,
                unsent: info.tcpi_notsent_bytes,
            },
            has_sack: has(SACK),
            has_timestamps: has(TIMESTAMPS),
            has_microsecond_stamps: has(MICROSECOND_STAMPS),
            has_ecn: has(ECN),
            peer_scale: scales & 0xf,
            own_scale: scales >> 4,
            received_age: Duration::from_millis(age_ms.into()),
        }
    }
}

impl KernelState {
    fn from_number(number: u8) -> KernelState {
        match number {
            ESTABLISHED => KernelState::Established,
            FIN_WAIT_1 => KernelState::FinWait1,
            FIN_WAIT_2 => KernelState::FinWait2,
            CLOSE_WAIT => KernelState::CloseWait,
            LISTEN => KernelState::Listen,
            2 => KernelState::Other("SYN-SENT"),
            3 => KernelState::Other("SYN-RECEIVED"),
            6 => KernelState::Other("TIME-WAIT"),
            7 => KernelState::Other("CLOSED"),
            9 => KernelState::Other("LAST-ACK"),
            11 => KernelState::Other("CLOSING"),
            _ => KernelState::Other("an unknown state"),
        }
    }
}
