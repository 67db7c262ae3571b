//! The bytes that the application sends in one call, in one part or several.

use core::mem::MaybeUninit;

use libc::iovec;

/// Replies of at most this many bytes are copied into one piece before they are composed: a server may write a small
/// reply in several parts, and composing a part costs more than copying it.
const GATHER_BYTES: usize = 512;

/// Calls `accept` with each part, until a part is not accepted whole; `accept` returns the number of bytes
/// accepted. Returns the sum of these numbers, and the number of bytes offered.
///
/// # Safety
/// `parts` describe readable memory.
#[inline]
pub(crate) unsafe fn put(parts: &[iovec], mut accept: impl FnMut(&[u8]) -> usize) -> (usize, usize) {
    let mut gathered = [MaybeUninit::uninit(); GATHER_BYTES];
    let gathered = match parts {
        [_] => None, // in one piece already
        // SAFETY: the caller vouches for the parts.
        parts => unsafe { gather(parts, &mut gathered) },
    };
    if let Some(reply) = gathered {
        return (accept(reply), reply.len());
    }
    let (mut accepted, mut offered) = (0, 0);
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the caller vouches for the part.
        let bytes = unsafe { core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        let more = accept(bytes);
        (accepted, offered) = (accepted + more, offered + bytes.len());
        if more < bytes.len() {
            break;
        }
    }
    (accepted, offered)
}

/// The parts' bytes in one piece, if they fit.
///
/// # Safety
/// `parts` describe readable memory.
unsafe fn gather<'a>(parts: &[iovec], gathered: &'a mut [MaybeUninit<u8>; GATHER_BYTES]) -> Option<&'a [u8]> {
    let mut length = 0usize;
    for part in parts {
        let room = gathered.get_mut(length..length.checked_add(part.iov_len)?)?;
        if !room.is_empty() {
            // SAFETY: the caller vouches for the part; `room` has the same length.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    part.iov_base.cast::<u8>(),
                    room.as_mut_ptr().cast(),
                    part.iov_len,
                )
            };
        }
        length += part.iov_len;
    }
    // SAFETY: each of these bytes was copied from a part.
    Some(unsafe { core::slice::from_raw_parts(gathered.as_ptr().cast(), length) })
}
