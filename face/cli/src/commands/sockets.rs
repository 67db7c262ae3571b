//! Admin sockets of the helpers, sidecars and switches of this host, for commands without `--socket`.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Prefix of the runtime directory in the unit template of sidecars, and the name of its admin socket.
const UNIT_PREFIX: &str = "spillway-sidecar-";
const UNIT_SOCKET: &str = "status.sock";

/// Admin sockets in the runtime directories of services and of this user, sorted. May include sockets of killed
/// daemons.
pub(crate) fn all() -> Vec<PathBuf> {
    spillway_daemon::default_directories()
        .iter()
        .filter_map(|directory| directory.parent())
        .flat_map(sockets_below)
        .collect()
}

pub(crate) fn helper() -> PathBuf {
    spillway_daemon::find_default_socket("helper")
}

pub(crate) fn switch() -> PathBuf {
    spillway_daemon::find_default_socket("switch")
}

pub(crate) fn server() -> PathBuf {
    spillway_daemon::find_default_socket("server")
}

fn sockets_below(run: &Path) -> Vec<PathBuf> {
    let is_unit =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UNIT_PREFIX));
    // Only UNIT_SOCKET: other sockets in a unit's directory accept clients, and a request there would reach the server.
    let units = entries(run).into_iter().filter(is_unit).map(|directory| directory.join(UNIT_SOCKET));
    let is_socket = |path: &PathBuf| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let mut sockets: Vec<PathBuf> =
        entries(&run.join("spillway")).into_iter().chain(units).filter(is_socket).collect();
    sockets.sort();
    sockets
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| file.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn admin_sockets_are_found_and_sockets_for_clients_are_not() {
        let run = std::env::temp_dir().join(format!("spillway-sockets-{}", std::process::id()));
        let admin = ["spillway/helper.sock", "spillway/sidecar.sock", "spillway-sidecar-a/status.sock"];
        let others = ["spillway-sidecar-a/redis.sock", "other/x.sock"];
        let listeners = admin.iter().chain(&others).map(|file| {
            fs::create_dir_all(run.join(file).parent().unwrap()).unwrap();
            UnixListener::bind(run.join(file)).unwrap()
        });
        let listeners: Vec<UnixListener> = listeners.collect();
        fs::write(run.join("spillway/note.sock"), "").unwrap();
        let found = sockets_below(&run);
        drop(listeners);
        fs::remove_dir_all(&run).unwrap();
        assert_eq!(found, admin.map(|file| run.join(file)));
        assert!(sockets_below(Path::new("/no/such/place")).is_empty());
    }
}
