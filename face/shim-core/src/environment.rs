//! The environment of this process.

use core::ffi::CStr;

/// The value of a variable. A server must call this before the application's code, which may change the environment, runs.
pub(crate) fn variable(name: &CStr) -> Option<String> {
    // SAFETY: the environment does not change: a server's code does not run yet, and Spillway's commands do not change it.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns C strings.
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}
