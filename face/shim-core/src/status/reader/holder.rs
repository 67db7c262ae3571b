//! The process that has locked a page: whether the page is valid, and the removal of pages without such a process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::page_file::PageFile;
use crate::status::files;

/// The process that has locked a page: its id, or 0 if this PID namespace has no id for it. `None`: unlocked.
pub(super) fn holder(file: &PageFile) -> io::Result<Option<u32>> {
    files::lock_holder(file.as_fd().as_raw_fd()).map_err(io::Error::from_raw_os_error)
}

/// Whether a page of `user` may be the page of the process that has locked it. Root may own the page, because the server
/// created it before it changed its user.
pub(super) fn is_owner(user: u32, holder: u32) -> bool {
    holder == 0 || user == 0 || effective_user(holder) == Some(user)
}

/// Removes a page that no process has locked: locks the file, and removes it if the path still names it. Otherwise
/// another process has removed it before, and may have created a new page with this name.
pub(super) fn remove_dead(file: &PageFile, path: &Path) {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    if files::lock(file.as_fd().as_raw_fd()).is_ok()
        && let (Ok(opened), Ok(at_path)) = (file.metadata(), std::fs::symlink_metadata(path))
        && identity(opened) == identity(at_path)
    {
        let _ = std::fs::remove_file(path);
    }
}

/// Clears a path for a new page. Returns the process that holds a valid page there, if any; otherwise removes the
/// file, also a locked file that does not belong to the user of its process.
pub(in crate::status) fn clear_path(path: &Path) -> Option<u32> {
    if let Ok(Some(file)) = PageFile::open(path) {
        let process = holder(&file).ok().flatten();
        let user = file.metadata().map_or(0, |metadata| metadata.uid());
        match process {
            Some(process) if is_owner(user, process) => return Some(process),
            Some(_) => {}
            None => {
                remove_dead(&file, path);
                return None;
            }
        }
    }
    let _ = std::fs::remove_file(path);
    None
}

/// The effective user of a process. `/proc/PID` itself may belong to root.
fn effective_user(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}
