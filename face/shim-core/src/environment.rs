//! The environment of this process.

use core::ffi::CStr;

/// The value of a variable. In a server, before the application's code runs: it may change the environment whenever it likes.
pub(crate) fn variable(name: &CStr) -> Option<String> {
    // SAFETY: nobody changes the environment meanwhile: neither a server so early, nor Spillway's own commands.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns C strings.
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}
