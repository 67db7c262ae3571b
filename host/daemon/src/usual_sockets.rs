//! Default paths of admin sockets: in `/run/spillway` for services, otherwise in the user's runtime directory.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The directory of system services; their systemd units create it.
const SERVICES: &str = "/run/spillway";

/// The directories in which commands look for admin sockets, in this order.
pub fn usual_directories() -> Vec<PathBuf> {
    let user = runtime_directory(std::env::var_os("XDG_RUNTIME_DIR"));
    [PathBuf::from(SERVICES)].into_iter().chain(user).collect()
}

/// The admin socket that a daemon named `name`, such as `helper`, creates when it runs as this process's user.
pub fn usual_socket(name: &str) -> PathBuf {
    choose(usual_directories(), |directory| access(directory, Access::WRITE_OK).is_ok()).join(file_name(name))
}

/// The admin socket by which a command reaches the daemon `name`: the first that exists, otherwise that of services.
pub fn find_usual_socket(name: &str) -> PathBuf {
    let is_socket = |path: &Path| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let sockets: Vec<PathBuf> =
        usual_directories().iter().map(|directory| directory.join(file_name(name))).collect();
    sockets.iter().find(|path| is_socket(path)).unwrap_or(&sockets[0]).clone()
}

/// The default admin socket for a daemon without a configured one. `None` if another daemon answers there or its
/// directory is missing (the user's own is created): the daemon then runs without an admin socket.
pub fn free_usual_socket(name: &str) -> Option<PathBuf> {
    let path = usual_socket(name);
    let directory = path.parent()?;
    create_usual_directory(directory);
    (access(directory, Access::WRITE_OK).is_ok() && UnixStream::connect(&path).is_err()).then_some(path)
}

/// Creates the user's own directory of admin sockets, with access for this user only, and no other directory.
pub(crate) fn create_usual_directory(directory: &Path) {
    if runtime_directory(std::env::var_os("XDG_RUNTIME_DIR")).as_deref() == Some(directory) {
        // An error here shows when the socket is created.
        let _ = DirBuilder::new().mode(0o700).create(directory);
    }
}

fn file_name(name: &str) -> String {
    format!("{name}.sock")
}

/// `spillway` in the directory that `XDG_RUNTIME_DIR` names, which must be absolute (XDG Base Directory Specification).
fn runtime_directory(variable: Option<OsString>) -> Option<PathBuf> {
    variable.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join("spillway"))
}

/// The services' directory for a process that may write there, otherwise the user's own if it has one.
fn choose(mut directories: Vec<PathBuf>, may_write: impl Fn(&Path) -> bool) -> PathBuf {
    let chosen = if directories.len() > 1 && !may_write(&directories[0]) { 1 } else { 0 };
    directories.swap_remove(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_come_before_the_users_own_directory() {
        let both = || vec![PathBuf::from(SERVICES), PathBuf::from("/run/user/7/spillway")];
        assert_eq!(choose(both(), |_| true), Path::new(SERVICES));
        assert_eq!(choose(both(), |_| false), Path::new("/run/user/7/spillway"));
        assert_eq!(choose(vec![SERVICES.into()], |_| false), Path::new(SERVICES));
    }

    #[test]
    fn only_an_absolute_runtime_directory_counts() {
        assert_eq!(runtime_directory(Some("/run/user/7".into())), Some("/run/user/7/spillway".into()));
        assert_eq!(runtime_directory(Some("elsewhere".into())), None);
        assert_eq!(runtime_directory(Some("".into())), None);
        assert_eq!(runtime_directory(None), None);
    }
}
