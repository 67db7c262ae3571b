//! Addresses of virtual connections.

use libc::{c_int, sockaddr, socklen_t};

use crate::connections::{self, Connection};
use crate::{address, real};

/// `getpeername`: the client's address.
///
/// # Safety
/// Same as for `getpeername`.
pub unsafe fn peer_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::getpeername(fd, out, length) };
    };
    // SAFETY: same as for `getpeername`.
    unsafe { fill_client(connection, out, length) };
    0
}

/// `getsockname`: the server's address as the client sees it.
///
/// # Safety
/// Same as for `getsockname`.
pub unsafe fn socket_name(fd: c_int, out: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(connection) = connections::of_descriptor(fd) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { real::getsockname(fd, out, length) };
    };
    let local = connection.lock().local;
    if let Some(local) = local {
        // SAFETY: same as for `getsockname`.
        unsafe { address::fill(local, out, length) };
    }
    0
}

/// Stores the client's address for `accept` and `getpeername`.
///
/// # Safety
/// Same as for `accept`.
pub(crate) unsafe fn fill_client(connection: &Connection, out: *mut sockaddr, length: *mut socklen_t) {
    let client = connection.lock().client;
    if let Some(client) = client {
        // SAFETY: the caller vouches for `out` and `length`.
        unsafe { address::fill(client, out, length) };
    }
}
