//! The bytes that the application sends in one call, in one part or several.

use core::mem::MaybeUninit;

use libc::iovec;

/// Replies of at most this many bytes are gathered before they are composed: a server may write a small one in
/// several parts, and each part costs more to compose than to copy.
const GATHER_BYTES: usize = 512;

/// Gives the parts to `take`, which takes a prefix and returns its length, until a part is not taken whole. Returns
/// the number of bytes taken, and of bytes tried.
///
/// # Safety
/// `parts` describe readable memory.
#[inline]
pub(crate) unsafe fn put(parts: &[iovec], mut take: impl FnMut(&[u8]) -> usize) -> (usize, usize) {
    let mut gathered = [MaybeUninit::uninit(); GATHER_BYTES];
    let gathered = match parts {
        [_] => None, // in one piece already
        // SAFETY: the caller vouches for the parts.
        parts => unsafe { gather(parts, &mut gathered) },
    };
    if let Some(reply) = gathered {
        return (take(reply), reply.len());
    }
    let (mut taken, mut wanted) = (0, 0);
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the caller vouches for the part.
        let bytes = unsafe { core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        let more = take(bytes);
        (taken, wanted) = (taken + more, wanted + bytes.len());
        if more < bytes.len() {
            break;
        }
    }
    (taken, wanted)
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
            // SAFETY: the caller vouches for the part; the room has just its length.
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
