//! Return values of functions, and the text of the last error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

/// Results of functions. Errors are negative errno values of Linux, so that `strerror(-status)` is a similar text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum spw_status {
    /// Success.
    SPW_OK = 0,
    /// Try again later: nothing has arrived, or there is no room.
    SPW_AGAIN = -11,
    /// A null pointer, an object of another kind, a text that cannot be read, a number out of range, or an object
    /// that another thread is using. Nothing was done.
    SPW_INVALID = -22,
    /// A system call failed: no descriptors, an address in use, no memory.
    SPW_SYSTEM = -5,
    /// A key file, or a key's text, is invalid, or a key is missing.
    SPW_KEY = -126,
    /// The stream was finished or closed, and accepts no more bytes.
    SPW_CLOSED = -32,
    /// The other end reset the connection: bytes in flight are lost.
    SPW_RESET = -104,
    /// The server refused the session.
    SPW_REFUSED = -111,
    /// The server does not know the session any more: it was restarted, or the session expired. `spw_gone` returns how
    /// many bytes the server is known to have received; the outcome of the rest is unknown.
    SPW_GONE = -103,
    /// No server has answered on any route for too long.
    SPW_TIMED_OUT = -110,
    /// The client's number is unknown, or its connection has ended.
    SPW_UNKNOWN_CLIENT = -107,
    /// A panic inside the library, with a message on standard error; the object can only be freed.
    SPW_INTERNAL = -131,
}

#[derive(Debug)]
pub(crate) struct Fault {
    status: spw_status,
    text: Cow<'static, str>,
}

impl Fault {
    pub(crate) fn new(status: spw_status, text: impl Into<Cow<'static, str>>) -> Fault {
        Fault { status, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Fault {
        Fault::new(spw_status::SPW_INVALID, text)
    }

    pub(crate) fn again(text: &'static str) -> Fault {
        Fault::new(spw_status::SPW_AGAIN, text)
    }

    pub(crate) fn system(what: &str, error: &dyn std::fmt::Display) -> Fault {
        Fault::new(spw_status::SPW_SYSTEM, format!("{what}: {error}"))
    }
}

/// A return type of the functions that C calls, with its value for a failure.
pub(crate) trait ReturnValue {
    fn failed(status: spw_status) -> Self;
}

impl ReturnValue for c_int {
    fn failed(status: spw_status) -> c_int {
        status as c_int
    }
}

impl ReturnValue for isize {
    fn failed(status: spw_status) -> isize {
        status as isize
    }
}

impl<T> ReturnValue for *const T {
    fn failed(_: spw_status) -> *const T {
        std::ptr::null()
    }
}

impl<T> ReturnValue for *mut T {
    fn failed(_: spw_status) -> *mut T {
        std::ptr::null_mut()
    }
}

impl ReturnValue for () {
    fn failed(_: spw_status) {}
}

/// Locks data that several objects share. Fails if a panic has poisoned the lock.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> Result<MutexGuard<'_, T>, Fault> {
    let poisoned = |_| {
        Fault::new(
            spw_status::SPW_INTERNAL,
            "a fault inside the library has interrupted a call: free the object",
        )
    };
    shared.lock().map_err(poisoned)
}

/// Runs the body of a function that C calls. A failure or a panic becomes a status and a text.
pub(crate) fn guarded<A: ReturnValue>(body: impl FnOnce() -> Result<A, Fault>) -> A {
    // Unwind-safe: `object` marks an object that a panic has left inconsistent, and it is not used again.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(fault)) => fault,
        Err(_) => Fault::new(
            spw_status::SPW_INTERNAL,
            "a fault inside the library; its message is on standard error",
        ),
    };
    set_last_error(&fault.text);
    A::failed(fault.status)
}

/// [`guarded`] for functions that return only a status.
pub(crate) fn guarded_status(body: impl FnOnce() -> Result<(), Fault>) -> c_int {
    guarded(|| body().map(|()| spw_status::SPW_OK as c_int))
}

/// Maximum size of an error's text, with its final zero. Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 512;

thread_local! {
    /// The last error's text. Not on the heap, so that nothing must be freed when a thread ends.
    static LAST_ERROR: RefCell<[u8; TEXT_BYTES_MAX]> = const { RefCell::new([0; TEXT_BYTES_MAX]) };
}

fn set_last_error(text: &str) {
    // Fails only while the thread ends, or in a recursive call.
    let _ = LAST_ERROR.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            write_text(text, &mut *last);
        }
    });
}

/// Copies a text and a final zero; a text that is too long is truncated between two characters.
pub(crate) fn write_text(text: &str, buffer: &mut [u8]) {
    let Some(available) = buffer.len().checked_sub(1) else { return };
    let mut length = available.min(text.len());
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
    buffer[length] = 0;
}

/// The text of the last error in this thread: why the call failed, and what to do. Never null; empty without an error.
/// Valid until the next call in this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn spw_last_error() -> *const c_char {
    LAST_ERROR.try_with(|text| text.as_ptr().cast::<c_char>().cast_const()).unwrap_or(c"".as_ptr())
}

/// A short text for a status. Never null, and always valid.
#[unsafe(no_mangle)]
pub extern "C" fn spw_status_text(status: c_int) -> *const c_char {
    use spw_status as S;
    let texts: [(spw_status, &'static CStr); 12] = [
        (S::SPW_OK, c"done"),
        (S::SPW_AGAIN, c"try again later"),
        (S::SPW_INVALID, c"invalid argument"),
        (S::SPW_SYSTEM, c"a system call failed"),
        (S::SPW_KEY, c"the key cannot be used"),
        (S::SPW_CLOSED, c"closed"),
        (S::SPW_RESET, c"reset by the other end"),
        (S::SPW_REFUSED, c"refused by the server"),
        (S::SPW_GONE, c"the server lost the session"),
        (S::SPW_TIMED_OUT, c"no server has answered"),
        (S::SPW_UNKNOWN_CLIENT, c"unknown client"),
        (S::SPW_INTERNAL, c"fault inside the library"),
    ];
    let text = texts.into_iter().find(|(known, _)| *known as c_int == status);
    text.map_or(c"unknown status", |(_, text)| text).as_ptr()
}

/// The library's version, as in "0.1.0". Compare it with `SPW_VERSION`, the header's.
#[unsafe(no_mangle)]
pub extern "C" fn spw_version() -> *const c_char {
    const { concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast() }
}

pub(crate) fn stream_fault(error: &io::Error) -> Fault {
    let status = match error.kind() {
        io::ErrorKind::WouldBlock => {
            return Fault::again(
                "nothing has arrived, or there is no room: call spw_handle or spw_wait, then try again",
            );
        }
        io::ErrorKind::BrokenPipe => spw_status::SPW_CLOSED,
        io::ErrorKind::ConnectionReset => spw_status::SPW_RESET,
        io::ErrorKind::ConnectionRefused => spw_status::SPW_REFUSED,
        io::ErrorKind::ConnectionAborted => spw_status::SPW_GONE,
        io::ErrorKind::TimedOut => spw_status::SPW_TIMED_OUT,
        io::ErrorKind::InvalidInput => spw_status::SPW_INVALID,
        _ => spw_status::SPW_SYSTEM,
    };
    Fault::new(status, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the text ends with a zero, and is valid until a call fails.
        unsafe { CStr::from_ptr(spw_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn failure_returns_a_status_and_sets_the_error_text() {
        assert_eq!(last_error(), "");
        assert_eq!(guarded_status(|| Err(Fault::invalid("no"))), -22);
        assert_eq!(last_error(), "no");
        assert_eq!(guarded_status(|| Ok(())), 0);
        assert_eq!(last_error(), "no", "success should not change the last error's text");
    }

    #[test]
    fn panic_becomes_the_internal_status() {
        let status: isize = guarded(|| panic!("a fault"));
        assert_eq!(status, -131);
    }

    #[test]
    fn long_texts_are_truncated_between_characters() {
        let mut buffer = [1; 6];
        write_text("aäöü", &mut buffer);
        assert_eq!(&buffer, "aäö\0".as_bytes());
        write_text("abcdef", &mut buffer);
        assert_eq!(&buffer, b"abcde\0");
        write_text("", &mut buffer[..1]);
        write_text("x", &mut []);
        assert_eq!(&buffer, b"\0bcde\0");
        set_last_error(&"x".repeat(2 * TEXT_BYTES_MAX));
        assert_eq!(last_error().len(), TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn every_status_has_a_text() {
        for status in [0, -11, -22, -5, -126, -32, -104, -111, -103, -110, -107, -131] {
            // SAFETY: the texts are literals.
            let text = unsafe { CStr::from_ptr(spw_status_text(status)) };
            assert_ne!(text, c"unknown status", "status {status} should have a text");
        }
        // SAFETY: the text is a literal.
        assert_eq!(unsafe { CStr::from_ptr(spw_status_text(7)) }, c"unknown status");
    }
}
