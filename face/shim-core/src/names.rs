//! Addresses of virtual connections.

use libc::{c_int, sockaddr, socklen_t};

use crate::connections::{self, Connection};
use crate::{address, real};

/// `getpeername`: the client.
///
/// # Safety
/// As of `getpeername`.
pub unsafe fn peer_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::getpeername(fd, out, length) };
    };
    // SAFETY: as of `getpeername`.
    unsafe { fill_client(connection, out, length) };
    0
}

/// `getsockname`: the server's address as the client knows it.
///
/// # Safety
/// As of `getsockname`.
pub unsafe fn socket_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: the call as it came.
        return unsafe { real::getsockname(fd, out, length) };
    };
    let local = connection.lock().local;
    if let Some(local) = local {
        // SAFETY: as of `getsockname`.
        unsafe { address::fill(local, out, length) };
    }
    0
}

/// Where an accepted connection's client address goes.
///
/// # Safety
/// As of `accept`.
pub(crate) unsafe fn fill_client(connection: &Connection, out: *mut sockaddr, length: *mut socklen_t) {
    let client = connection.lock().client;
    if let Some(client) = client {
        // SAFETY: the caller vouches for both.
        unsafe { address::fill(client, out, length) };
    }
}
