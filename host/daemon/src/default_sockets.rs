//! Default paths of admin sockets: in `/run/spillway` for services, otherwise in the user's runtime directory.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock};

use crate::socket_file::connect;

/// The directory of system services; their systemd units create it.
const SERVICES: &str = "/run/spillway";

/// The directories in which commands look for admin sockets, in this order.
pub fn default_directories() -> Vec<PathBuf> {
    let user = user_directory().filter(|directory| directory != Path::new(SERVICES));
    [PathBuf::from(SERVICES)].into_iter().chain(user).collect()
}

/// The admin socket that a daemon named `name`, such as `helper`, creates when it runs as this process's user.
pub fn default_socket(name: &str) -> PathBuf {
    choose(default_directories(), |directory| access(directory, Access::WRITE_OK).is_ok())
        .join(file_name(name))
}

/// The admin socket by which a command reaches the daemon `name`: the first that exists, otherwise that of services.
pub fn find_default_socket(name: &str) -> PathBuf {
    let is_socket = |path: &Path| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let sockets: Vec<PathBuf> =
        default_directories().iter().map(|directory| directory.join(file_name(name))).collect();
    sockets.iter().find(|path| is_socket(path)).unwrap_or(&sockets[0]).clone()
}

/// Time limit for waiting until another daemon has created the socket that it has chosen.
const CHOICE_MAX: Duration = Duration::from_secs(2);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The lock on the directory of the socket that this process has chosen and not created yet.
static CHOICE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The default admin socket for a daemon without a configured one. `None`: the daemon runs without an admin socket,
/// because another daemon uses this one, or the directory is missing (the user's own is created), cannot be written or
/// stays locked. The directory is locked until [`ControlPorts::bind`](crate::ControlPorts::bind), so that two daemons
/// that start together do not choose the same socket.
pub fn free_default_socket(name: &str) -> Option<PathBuf> {
    let path = default_socket(name);
    let directory = path.parent()?;
    create_default_directory(directory);
    if access(directory, Access::WRITE_OK).is_err() {
        return None;
    }
    let lock = lock_directory(directory)?;
    // A daemon whose accept queue is full uses the socket, too.
    let is_taken = match connect(&path) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::TimedOut,
    };
    if is_taken {
        return None;
    }
    *CHOICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
    Some(path)
}

/// Lets other daemons choose: the socket of [`free_default_socket`] exists now, or binding it failed.
pub(crate) fn end_choice() {
    CHOICE.lock().unwrap_or_else(PoisonError::into_inner).take();
}

fn lock_directory(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let began = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() >= CHOICE_MAX {
            return None;
        }
        std::thread::sleep(LOCK_RETRY_INTERVAL);
    }
    Some(file)
}

/// Creates the directory, with access for this user only, if it is the user's own directory of admin sockets.
pub(crate) fn create_default_directory(directory: &Path) {
    if user_directory().as_deref() == Some(directory) {
        // An error is reported when the socket is created.
        let _ = DirBuilder::new().mode(0o700).create(directory);
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.sock")
}

fn user_directory() -> Option<PathBuf> {
    runtime_directory(std::env::var_os("XDG_RUNTIME_DIR"))
}

/// `spillway` in the directory that `XDG_RUNTIME_DIR` names, which must be absolute and the user's own (XDG Base
/// Directory Specification). In a directory where other users can write, such as `/tmp` or that of the caller of
/// `sudo -E`, these users could replace the daemon's socket by their own.
fn runtime_directory(variable: Option<OsString>) -> Option<PathBuf> {
    variable
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && is_own(path))
        .map(|path| path.join("spillway"))
}

/// Whether only the user of this process may write in a directory.
fn is_own(directory: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    directory.metadata().is_ok_and(|file| file.is_dir() && file.uid() == user && file.mode() & 0o022 == 0)
}

/// The services' directory for a process that may write there, otherwise the user's own if it has one.
fn choose(mut directories: Vec<PathBuf>, may_write: impl Fn(&Path) -> bool) -> PathBuf {
    let chosen = if directories.len() > 1 && !may_write(&directories[0]) { 1 } else { 0 };
    directories.swap_remove(chosen)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn services_come_before_the_users_own_directory() {
        let both_directories = || vec![PathBuf::from(SERVICES), PathBuf::from("/run/user/7/spillway")];
        assert_eq!(choose(both_directories(), |_| true), Path::new(SERVICES));
        assert_eq!(choose(both_directories(), |_| false), Path::new("/run/user/7/spillway"));
        assert_eq!(choose(vec![SERVICES.into()], |_| false), Path::new(SERVICES));
    }

    #[test]
    fn runtime_directory_must_be_absolute_and_writable_only_by_its_user() {
        let own = std::env::temp_dir().join(format!("spillway-runtime-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&own).unwrap();
        let found = |mode: u32| {
            std::fs::set_permissions(&own, Permissions::from_mode(mode)).unwrap();
            runtime_directory(Some(own.clone().into()))
        };
        assert_eq!(found(0o700), Some(own.join("spillway")));
        assert_eq!(
            (found(0o777), found(0o1777), found(0o770)),
            (None, None, None),
            "a directory in which other users may write should be refused"
        );
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(65_534), None).unwrap();
            assert_eq!(found(0o700), None, "a directory of another user should be refused");
        }
        std::fs::remove_dir(&own).unwrap();
        assert_eq!(runtime_directory(Some(own.into())), None, "a missing directory should be refused");
        assert_eq!(runtime_directory(Some("elsewhere".into())), None);
        assert_eq!(runtime_directory(Some("".into())), None);
        assert_eq!(runtime_directory(None), None);
    }
}
