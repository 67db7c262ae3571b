//! Repair mode: what `TCP_REPAIR` permits on a socket.

use std::io;
use std::os::fd::OwnedFd;

use crate::error::CaptureError;
use crate::system::{RepairOption, RepairWindow, get, set, set_slice};

const ON: libc::c_int = 1;
/// Leaves repair mode without a window probe, which 0 would send.
const OFF_WITHOUT_PROBE: libc::c_int = -1;

// Kinds of TCP options (RFC 9293 §3.1, RFC 7323, RFC 2018).
const KIND_MSS: u32 = 2;
const KIND_WINDOW_SCALE: u32 = 3;
const KIND_SACK_PERMITTED: u32 = 4;
const KIND_TIMESTAMPS: u32 = 8;

// Values of TCP_REPAIR_QUEUE.
const NO_QUEUE: libc::c_int = 0;
const RECEIVE_QUEUE: libc::c_int = 1;
const SEND_QUEUE: libc::c_int = 2;

/// The options of the SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub mss: u16,
    pub peer_scale: u8,
    pub own_scale: u8,
    pub has_sack: bool,
    pub has_timestamps: bool,
}

/// A socket in repair mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repair<'a> {
    fd: &'a OwnedFd,
}

impl<'a> Repair<'a> {
    pub(crate) fn enter(fd: &'a OwnedFd) -> Result<Repair<'a>, CaptureError> {
        set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, ON)
            .map_err(|error| refused(error, "enter repair mode"))?;
        Ok(Repair { fd })
    }

    /// A socket that is in repair mode already.
    pub(crate) fn of(fd: &'a OwnedFd) -> Repair<'a> {
        Repair { fd }
    }

    /// Leaves repair mode without a segment. The kernel has cleared SO_REUSEADDR: `reuses_address` sets it again.
    pub(crate) fn leave(self, reuses_address: bool) -> Result<(), CaptureError> {
        set(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, OFF_WITHOUT_PROBE)
            .map_err(|error| refused(error, "leave repair mode"))?;
        // Cannot fail: the option takes any number. Without it a listening socket could not be bound to the port again
        // while the connection lives.
        let _ = rustix::net::sockopt::set_socket_reuseaddr(self.fd, reuses_address);
        Ok(())
    }

    /// Runs `receive` while the receive queue is selected, and `send` while the send queue is. With the send queue selected,
    /// an acknowledgement from the peer would make the kernel count unsent bytes as sent, so a queue never stays selected.
    pub(crate) fn with_queues<R, S>(
        self,
        receive: impl FnOnce() -> io::Result<R>,
        send: impl FnOnce() -> io::Result<S>,
    ) -> io::Result<(R, S)> {
        let both = || -> io::Result<(R, S)> {
            self.select(RECEIVE_QUEUE)?;
            let received = receive()?;
            self.select(SEND_QUEUE)?;
            Ok((received, send()?))
        };
        let result = both();
        self.select(NO_QUEUE)?;
        result
    }

    fn select(self, queue: libc::c_int) -> io::Result<()> {
        set(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)
    }

    /// The sequence number behind the selected queue's last byte, and behind a FIN.
    pub(crate) fn selected_end(self) -> io::Result<u32> {
        get(self.fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
    }

    /// Sets the sequence number at which the selected queue of a closed socket begins.
    pub(crate) fn set_selected_start(self, seq: u32) -> io::Result<()> {
        set(self.fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, seq)
    }

    pub(crate) fn window(self) -> io::Result<RepairWindow> {
        get(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW)
    }

    pub(crate) fn set_window(self, window: RepairWindow) -> io::Result<()> {
        set(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, window)
    }

    /// The largest segment that the peer accepts. Outside of repair mode TCP_MAXSEG is the size of segments to send.
    pub(crate) fn mss(self) -> io::Result<u32> {
        get(self.fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)
    }

    /// Sets the negotiated options of a connected socket that has sent nothing. The scales are set even without window
    /// scaling: otherwise the kernel would keep those that it chose itself for this host.
    pub(crate) fn set_negotiated(self, negotiated: &Negotiated) -> io::Result<()> {
        let scales = u32::from(negotiated.peer_scale) | u32::from(negotiated.own_scale) << 16;
        let mut options = vec![
            RepairOption { code: KIND_MSS, value: negotiated.mss.into() },
            RepairOption { code: KIND_WINDOW_SCALE, value: scales },
        ];
        if negotiated.has_sack {
            options.push(RepairOption { code: KIND_SACK_PERMITTED, value: 0 });
        }
        if negotiated.has_timestamps {
            options.push(RepairOption { code: KIND_TIMESTAMPS, value: 0 });
        }
        set_slice(self.fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &options)
    }

    /// This end's timestamp clock. Since Linux 6.7 the lowest bit says whether the unit is microseconds.
    pub(crate) fn clock(self) -> io::Result<u32> {
        get(self.fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP)
    }

    pub(crate) fn set_clock(self, clock: u32) -> io::Result<()> {
        set(self.fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, clock)
    }
}

/// The error of a kernel that refuses repair mode.
fn refused(error: io::Error, what: &'static str) -> CaptureError {
    match error.raw_os_error() {
        Some(libc::EPERM) => CaptureError::Permission,
        Some(libc::ENOPROTOOPT) => CaptureError::NoRepairMode,
        _ => CaptureError::System(what, error),
    }
}
