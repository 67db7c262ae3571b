//! What servers and readers of pages must agree on: the pages' directories and names, process start times, and
//! namespaces.

use core::ffi::CStr;
use std::ffi::CString;
use std::os::unix::fs::MetadataExt;

use super::files;
use crate::sys;

/// The directories of pages, unless [`DIRECTORY`] names another. Services may write to the first with any settings of
/// their units; systemd may remove the second when a helper on the same machine ends.
pub(crate) const DIRECTORIES: [&str; 2] = ["/dev/shm", "/run/spillway"];
/// The environment variable that names the directory of pages.
pub(crate) const DIRECTORY: &CStr = c"SPILLWAY_STATUS_DIR";
/// File names of pages are this prefix and the id of the launch.
pub(crate) const PREFIX: &str = "spillway-server-";

/// The kernel's files for the namespaces of the calling process.
pub(crate) const PID_NAMESPACE: &str = "/proc/self/ns/pid";
pub(crate) const NET_NAMESPACE: &str = "/proc/self/ns/net";

/// The inode of a namespace; 0 if it cannot be read.
pub(crate) fn namespace(path: &str) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.ino())
}

/// When the process of this `/proc/PID/stat` file started, in clock ticks since the machine booted.
pub(crate) fn start_ticks(path: &str) -> Option<u64> {
    let path = CString::new(path).ok()?;
    let fd = files::open(&path, libc::O_RDONLY, 0).ok()?;
    let mut bytes = [0; 1024];
    let read = files::read(fd, &mut bytes);
    sys::close(fd);
    ticks_in(core::str::from_utf8(&bytes[..read.ok()?]).ok()?)
}

/// The start time is the 20th field after the program's name in parentheses. `None` for a zombie.
fn ticks_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_a_name_with_parentheses() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(ticks_in(&format!("42 (a) b) {rest}")), Some(4711));
        assert_eq!(ticks_in(&format!("42 (a) b) {}", rest.replacen('S', "Z", 1))), None);
        assert_eq!(ticks_in("42 (short) S 1"), None);
        assert!(start_ticks("/proc/self/stat").is_some());
    }
}
