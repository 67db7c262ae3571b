//! The filter of a captured socket: it drops all segments, so that none is acknowledged after the dump. The kernel runs
//! socket filters before it takes the socket's lock: a segment that has passed on another CPU may still be queued
//! afterwards.

use std::io;
use std::os::fd::OwnedFd;

use crate::error::{CaptureError, system};
use crate::refusal::Refusal;
use crate::system::{attach_dropping_filter, filter_length, set};

/// Refuses sockets with a filter of the application, because [`attach`] would replace it.
pub(crate) fn check(fd: &OwnedFd) -> Result<(), CaptureError> {
    match filter_length(fd) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Refusal::Filter.into()),
        // An eBPF program, which the kernel does not return.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err(Refusal::Filter.into()),
        Err(error) => Err(CaptureError::System("read the socket's filter", error)),
    }
}

pub(crate) fn attach(fd: &OwnedFd) -> Result<(), CaptureError> {
    attach_dropping_filter(fd).map_err(system("attach a filter to the socket"))
}

pub(crate) fn detach(fd: &OwnedFd) -> io::Result<()> {
    match set::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0) {
        // The socket has no filter: an earlier attempt has detached it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}
