//! Arguments from C: texts, bytes, addresses.

use std::ffi::{CStr, c_char, c_void};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use spillway_client::Key;

use crate::status::{Fault, spw_status, write_text};

/// Size in bytes of a buffer for any address, `HOST:PORT` with its final zero.
pub const SPW_ADDRESS_BYTES: usize = 64;

/// Reads a text.
///
/// # Safety
/// The pointer is null, or points to bytes that end with a zero and do not change during the call.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::invalid(format!("{name} is null")));
    }
    // SAFETY: not null, and the caller guarantees the rest.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|_| Fault::invalid(format!("{name} is not UTF-8")))
}

/// Bytes to read; none if `length` is 0.
///
/// # Safety
/// The pointer is null, or points to `length` bytes that do not change during the call.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Fault> {
    match check_range(data, length)? {
        // SAFETY: not null, at most `isize::MAX` bytes, and the caller guarantees the rest.
        true => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
        false => Ok(&[]),
    }
}

/// Bytes to write. Memory that C has not initialised holds arbitrary bytes.
///
/// # Safety
/// The pointer is null, or points to `length` bytes that are used by nothing else during the call.
pub(crate) unsafe fn bytes_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], Fault> {
    if !check_range(data, length)? {
        return Ok(&mut []);
    }
    // SAFETY: not null, at most `isize::MAX` bytes, and the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) })
}

/// Checks the pointer and the length, and returns whether the length is above 0.
fn check_range(data: *const c_void, length: usize) -> Result<bool, Fault> {
    if length == 0 {
        return Ok(false);
    }
    if data.is_null() {
        return Err(Fault::invalid("data is null, and its length is not 0"));
    }
    if isize::try_from(length).is_err() {
        return Err(Fault::invalid(format!("the length {length} is too large: is it a negative number?")));
    }
    Ok(true)
}

/// Writes an address as a text with its final zero; does nothing if `size` is 0.
///
/// # Safety
/// As for [`bytes_mut`].
pub(crate) unsafe fn write_address(
    address: SocketAddr,
    buffer: *mut c_char,
    size: usize,
) -> Result<(), Fault> {
    // SAFETY: the caller guarantees what the callee requires.
    let buffer = unsafe { bytes_mut(buffer.cast(), size) }?;
    let text = address.to_string();
    if !buffer.is_empty() && buffer.len() <= text.len() {
        return Err(Fault::invalid("the buffer is too short for an address: SPW_ADDRESS_BYTES is enough"));
    }
    write_text(&text, buffer);
    Ok(())
}

/// Parses `HOST:PORT`. A host's name is looked up, which may block; its first address is used.
pub(crate) fn address(text: &str) -> Result<SocketAddr, Fault> {
    let invalid = |why: &dyn std::fmt::Display| {
        Fault::invalid(format!("{text:?} is not an address: {why}; write HOST:PORT, as in 10.0.0.5:11411"))
    };
    let mut addresses = text.to_socket_addrs().map_err(|error| invalid(&error))?;
    addresses.next().ok_or_else(|| invalid(&"the name has no address"))
}

pub(crate) fn key_file(path: &str) -> Result<Key, Fault> {
    spillway_server::read_key_file(Path::new(path))
        .map_err(|error| Fault::new(spw_status::SPW_KEY, error.to_string()))
}

/// The error does not contain the text, which may be a secret with a mistyped digit.
pub(crate) fn key_text(text: &str) -> Result<Key, Fault> {
    Key::parse(text).map_err(|error| {
        Fault::new(spw_status::SPW_KEY, format!("{error}; make one with: spillway key new FILE"))
    })
}

pub(crate) fn milliseconds(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    #[test]
    fn invalid_texts_and_bytes_are_refused() {
        // SAFETY: null, or literals.
        unsafe {
            assert!(text(null(), "name").is_err());
            assert!(text(c"\xff".as_ptr(), "name").is_err());
            assert_eq!(text(c"word".as_ptr(), "name").unwrap(), "word");
            assert_eq!(bytes(null(), 0).unwrap(), b"");
            assert!(bytes(null(), 1).is_err());
            assert!(bytes(c"x".as_ptr().cast(), usize::MAX).is_err());
            assert_eq!(bytes(c"xy".as_ptr().cast(), 2).unwrap(), b"xy");
        }
    }

    #[test]
    fn addresses_are_read_and_written() {
        assert_eq!(address("10.0.0.5:11411").unwrap(), SocketAddr::from(([10, 0, 0, 5], 11411)));
        assert_eq!(address("[::1]:1").unwrap().to_string(), "[::1]:1");
        for wrong in ["", "10.0.0.5", "10.0.0.5:99999", "no such host:1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        let mut short = [1 as c_char; 13];
        // SAFETY: the lengths are those of the buffers.
        unsafe {
            assert!(write_address(([10, 0, 0, 5], 114).into(), short.as_mut_ptr(), short.len()).is_ok());
            assert!(write_address(([10, 0, 0, 5], 1141).into(), short.as_mut_ptr(), short.len()).is_err());
            assert!(write_address(([10, 0, 0, 5], 1).into(), std::ptr::null_mut(), 0).is_ok());
        }
    }

    #[test]
    fn error_does_not_contain_a_mistyped_key() {
        let fault = key_text("spillway-key-1 secret").unwrap_err();
        assert!(!format!("{fault:?}").contains("secret"));
    }
}
