//! The filter of a captured socket: it accepts no segment, so that none is acknowledged after the dump. One filter copies the
//! segments for the connection's next owner; it is a BPF program, and where the process may not load programs another one only
//! drops them. The kernel runs socket filters before it takes the socket's lock: a segment that has passed on another CPU may
//! still be queued afterwards.

use std::io;
use std::os::fd::OwnedFd;

use crate::copies::{Copies, Inbox};
use crate::error::{CaptureError, system};
use crate::programs::CopyingFilter;
use crate::refusal::Refusal;
use crate::system::{attach_dropping_filter, attach_program, filter_length, set};

/// Refuses sockets with a filter of the application, because [`Filter::attach`] would replace it.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), CaptureError> {
    match filter_length(fd) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Refusal::Filter.into()),
        // An eBPF program, which the kernel does not return.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err(Refusal::Filter.into()),
        Err(error) => Err(CaptureError::System("read the socket's filter", error)),
    }
}

/// What happens to the segments that reach captured sockets.
#[derive(Clone, Debug)]
pub(crate) enum Filter {
    /// They are dropped: the peer sends them again after its retransmission timeout.
    Dropping,
    /// They are copied.
    Copying(Copies),
}

impl Filter {
    /// Attaches the filter to a socket without one. Returns the copies of what reaches the socket from now on.
    pub(crate) fn attach(&self, fd: &OwnedFd, cookie: u64) -> Result<Option<Inbox>, CaptureError> {
        let failed = || system("attach a filter to the socket");
        match self {
            Filter::Dropping => attach_dropping_filter(fd).map_err(failed()).map(|()| None),
            Filter::Copying(copies) => {
                let attach =
                    |filter: &dyn CopyingFilter| attach_program(fd, filter.program()).map_err(failed());
                copies.begin(cookie, attach).map(Some)
            }
        }
    }
}

pub(crate) fn detach(fd: &OwnedFd) -> io::Result<()> {
    match set::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        // The socket has no filter: an earlier attempt has detached it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}
