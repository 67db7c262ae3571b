//! Where admin sockets are unless an option or a file says otherwise: `/run/spillway`, which units and root use, or
//! `spillway` in the user's own runtime directory.

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

/// The directory of services; their units create it.
const SERVICES: &str = "/run/spillway";

/// The directories in which a program that asks looks for admin sockets.
pub fn usual_directories() -> Vec<PathBuf> {
    let user = users_directory().filter(|directory| directory != Path::new(SERVICES));
    [PathBuf::from(SERVICES)].into_iter().chain(user).collect()
}

/// The admin socket of a daemon with this name, such as `helper`, that starts with the rights of this process.
pub fn usual_socket(name: &str) -> PathBuf {
    place(usual_directories(), |directory| access(directory, Access::WRITE_OK).is_ok()).join(file_name(name))
}

/// The admin socket of the daemon with this name, for a program that asks it.
pub fn find_usual_socket(name: &str) -> PathBuf {
    let is_socket = |path: &Path| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let sockets: Vec<PathBuf> =
        usual_directories().iter().map(|directory| directory.join(file_name(name))).collect();
    sockets.iter().find(|path| is_socket(path)).unwrap_or(&sockets[0]).clone()
}

/// How long another daemon may take from its choice of a socket until the socket is made.
const CHOICE_MAX: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// The lock on the directory of the socket that this process has chosen and not made yet.
static CHOICE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// The usual admin socket for a daemon that was given none, if its directory exists or is the user's own, and no
/// other daemon answers there. Without one a daemon that is started for a trial runs as well. Until
/// [`ControlPorts::bind`](crate::ControlPorts::bind) no other daemon chooses: of two that start together one would find its
/// socket taken.
pub fn free_usual_socket(name: &str) -> Option<PathBuf> {
    let path = usual_socket(name);
    let directory = path.parent()?;
    create_usual_directory(directory);
    let is_free = |path: &Path| match connect(path) {
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::TimedOut,
    };
    if access(directory, Access::WRITE_OK).is_err() {
        return None;
    }
    let lock = locked(directory)?;
    if !is_free(&path) {
        return None;
    }
    *CHOICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
    Some(path)
}

/// The socket of [`free_usual_socket`] is made, or will not be.
pub(crate) fn end_choice() {
    CHOICE.lock().unwrap_or_else(PoisonError::into_inner).take();
}

fn locked(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let began = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if began.elapsed() >= CHOICE_MAX {
            return None;
        }
        std::thread::sleep(LOOK);
    }
    Some(file)
}

/// Creates a user's own directory of admin sockets, with access for this user only. Other directories are created by
/// packages, units and operators.
pub(crate) fn create_usual_directory(directory: &Path) {
    if users_directory().as_deref() == Some(directory) {
        // What is wrong with the directory shows when the socket is made.
        let _ = DirBuilder::new().mode(0o700).create(directory);
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.sock")
}

fn users_directory() -> Option<PathBuf> {
    runtime_directory(std::env::var_os("XDG_RUNTIME_DIR"))
}

/// Our directory in the one that `XDG_RUNTIME_DIR` names, which must be absolute and the user's own (XDG Base Directory
/// Specification): in a directory of others, such as `/tmp` or that of the user who called `sudo -E`, they could put a
/// socket of theirs in our place.
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

/// The services' directory for a process that may write there, otherwise the user's own, if there is one.
fn place(mut directories: Vec<PathBuf>, may_write: impl Fn(&Path) -> bool) -> PathBuf {
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
        let both = || vec![PathBuf::from(SERVICES), PathBuf::from("/run/user/7/spillway")];
        assert_eq!(place(both(), |_| true), Path::new(SERVICES));
        assert_eq!(place(both(), |_| false), Path::new("/run/user/7/spillway"));
        assert_eq!(place(vec![SERVICES.into()], |_| false), Path::new(SERVICES));
    }

    #[test]
    fn only_an_absolute_runtime_directory_of_ones_own_counts() {
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
            "others could write there"
        );
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(65_534), None).unwrap();
            assert_eq!(found(0o700), None, "it is another user's");
        }
        std::fs::remove_dir(&own).unwrap();
        assert_eq!(runtime_directory(Some(own.into())), None, "it does not exist");
        assert_eq!(runtime_directory(Some("elsewhere".into())), None);
        assert_eq!(runtime_directory(Some("".into())), None);
        assert_eq!(runtime_directory(None), None);
    }
}
