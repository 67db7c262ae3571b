//! The environment of this process.

use core::ffi::CStr;

/// The value of a variable. In a server, call this before the application runs, which may change the environment.
pub(crate) fn variable(name: &CStr) -> Option<String> {
    // SAFETY: an application, which may change the environment, does not run yet; Spillway's commands do not change it.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns C strings.
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}
