//! The file of a UNIX socket: created with given permissions, and removed by the process that created it.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

/// A listening socket with its file. Dropping this removes the file, unless another file has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    /// The listening socket, in blocking mode at first.
    pub listener: UnixListener,
    path: PathBuf,
    mode: u32,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    /// Creates the socket with the permissions `mode`, such as 0o660. Replaces the socket of a program that has ended,
    /// but no other file and no symbolic link.
    ///
    /// # Errors
    /// `AddrInUse` if a program answers at `path`, or `path` is not a socket.
    pub fn bind(path: &Path, mode: u32) -> io::Result<SocketFile> {
        let listener = match bind_private(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                bind_private(path)?
            }
            result => result?,
        };
        // The mode is set by descriptor: another user may have replaced the file by a symbolic link since `bind`.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.file_type().is_socket() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let proc_path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(proc_path, Permissions::from_mode(mode))?;
        let device_and_inode = (metadata.dev(), metadata.ino());
        Ok(SocketFile { listener, path: path.to_owned(), mode, device_and_inode })
    }

    /// The path with which the socket was created.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is no file at the path any more. Another file that has replaced it counts as present.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Creates a socket with the same path and permissions in place of this one, with the errors of
    /// [`SocketFile::bind`].
    ///
    /// # Errors
    /// The socket cannot be created; this one stays.
    pub fn restore(&mut self) -> io::Result<()> {
        *self = SocketFile::bind(&self.path, self.mode)?;
        Ok(())
    }

    /// Removes the file, unless another file has replaced it.
    pub fn remove(&self) {
        let is_own = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino()) == self.device_and_inode;
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| is_own(&metadata)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Binds a socket to which only its owner can connect, so that other users cannot do so before its permissions are set.
/// The umask belongs to the process: a file that another thread creates meanwhile also gets fewer permissions.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let previous_umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(path);
    rustix::process::umask(previous_umask);
    listener
}

/// Whether `path` is the socket of a program that has ended.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket && matches!(connect(path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Connects to a UNIX socket without waiting for space in its accept queue: a stopped program never makes any.
///
/// # Errors
/// `TimedOut` if the accept queue is full; otherwise the kernel's error.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
        Errno::AGAIN => {
            io::Error::new(io::ErrorKind::TimedOut, "the program there does not accept connections")
        }
        other => other.into(),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_accept_queue_is_an_error_at_once() {
        let path = std::env::temp_dir().join(format!("spillway-full-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = connect(&path).unwrap();
        let request_error =
            crate::send_request(&path, "status", std::time::Duration::from_secs(1)).unwrap_err();
        let bind_error = SocketFile::bind(&path, 0o660).unwrap_err();
        drop(waiting);
        fs::remove_file(&path).unwrap();
        assert_eq!(
            (request_error.kind(), bind_error.kind()),
            (io::ErrorKind::TimedOut, io::ErrorKind::AddrInUse)
        );
    }

    #[test]
    fn only_the_owner_has_access_until_permissions_are_set() {
        let path = std::env::temp_dir().join(format!("spillway-private-{}.sock", std::process::id()));
        let previous_umask = rustix::process::umask(Mode::empty());
        let bound = bind_private(&path);
        let umask_after = rustix::process::umask(previous_umask);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        fs::remove_file(&path).unwrap();
        bound.unwrap();
        assert_eq!((mode & 0o077, umask_after), (0, Mode::empty()), "the umask should be restored");
    }
}
