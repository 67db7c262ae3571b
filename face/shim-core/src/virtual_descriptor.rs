//! Descriptors of virtual connections.

use core::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

use crate::sys::{self, Errno};
use crate::table::{self, Entry};

/// The unconnected sockets that virtual descriptors duplicate: one for each address family.
static BASES: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// A descriptor for a virtual connection: a duplicate of an unconnected socket, so that calls that this library does
/// not handle fail in the kernel with ENOTCONN, and `fstat` and socket options work.
pub(crate) fn new(family: c_int, close_on_exec: bool) -> Result<c_int, Errno> {
    let slot = &BASES[usize::from(family == libc::AF_INET6)];
    let mut base = slot.load(Ordering::Acquire);
    if base < 0 {
        base = sys::stream_socket(family)?;
        match slot.compare_exchange(-1, base, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                table::record(base, Entry::Library);
            }
            Err(first) => {
                sys::close(base);
                base = first;
            }
        }
    }
    sys::duplicate(base, 0, close_on_exec)
}
