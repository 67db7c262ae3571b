//! Where pages are, and which process owns one: what servers and readers of pages must agree on.

use core::ffi::CStr;
use std::ffi::CString;

use super::files;
use crate::sys;

/// Where pages are looked for and made, unless [`DIRECTORY`] names a place. Services may write to the first whatever
/// their units say; systemd may remove the second with a helper that runs on the same machine.
pub(crate) const DIRECTORIES: [&str; 2] = ["/dev/shm", "/run/spillway"];
/// The variable that names the directory for pages.
pub(crate) const DIRECTORY: &CStr = c"SPILLWAY_STATUS_DIR";
/// File names of pages begin with this; the launch follows.
pub(crate) const PREFIX: &str = "spillway-server-";

/// When the process of this `stat` file started, in clock ticks since the machine did.
pub(crate) fn start_ticks(path: &str) -> Option<u64> {
    let path = CString::new(path).ok()?;
    let fd = files::open(&path, libc::O_RDONLY, 0).ok()?;
    let mut bytes = [0; 1024];
    let read = files::read(fd, &mut bytes);
    sys::close(fd);
    ticks_in(core::str::from_utf8(&bytes[..read.ok()?]).ok()?)
}

/// The program's name, in parentheses, may hold anything; the first field after it is the state, the 20th the time.
/// `None` for a process that has ended and was not waited for yet.
fn ticks_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(ticks_in(&format!("42 (a) b) {rest}")), Some(4711));
        assert_eq!(ticks_in(&format!("42 (a) b) {}", rest.replacen('S', "Z", 1))), None);
        assert_eq!(ticks_in("42 (short) S 1"), None);
        assert!(start_ticks("/proc/self/stat").is_some());
    }
}
