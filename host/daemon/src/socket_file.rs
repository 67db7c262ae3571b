//! The file of a UNIX socket: made with care, and removed by whoever made it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// A listening socket with its file. The file is removed when this is dropped, if it is still the one made here.
#[derive(Debug)]
pub struct SocketFile {
    /// Blocking, until somebody says otherwise.
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Makes the socket with these permissions, such as 0o660. One that a killed program left is replaced; whatever
    /// else is there is left alone, a symbolic link above all.
    ///
    /// # Errors
    /// `AddrInUse` where a program answers, or where there is something that is no socket.
    pub fn bind(path: &Path, mode: u32) -> io::Result<SocketFile> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            result => result?,
        };
        // By descriptor: the name could be somebody else's symbolic link by now.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.file_type().is_socket() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(itself, Permissions::from_mode(mode))?;
        Ok(SocketFile { listener, path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino()) == self.identity;
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| ours(&metadata)) {
            // Gone already: nothing to be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether this is the socket of a program that is gone.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && matches!(UnixStream::connect(path), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused)
}
