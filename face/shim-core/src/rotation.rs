//! Key rotation: changed key files are read again when a peer opens a link.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use spillway_auth::KeyRing;
use spillway_batch::{Role, ServerConfig};
use spillway_keys::read_key_file;

use crate::{lock, log, sys};

/// The configuration for accepting links, and the files of its keys.
#[derive(Debug)]
pub(crate) struct Keys {
    files: Vec<(Role, String)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    server: Arc<ServerConfig>,
    /// The stamp of each file when it was last read.
    stamps: Vec<Option<Stamp>>,
}

/// Distinguishes versions of a file: inode, size, and time of the last change in seconds and nanoseconds.
type Stamp = (u64, u64, i64, i64);

impl Keys {
    /// `server` has the keys of these files.
    pub(crate) fn new(server: ServerConfig, files: Vec<(Role, String)>) -> Keys {
        let stamps = stamps(&files);
        Keys { files, state: Mutex::new(State { server: Arc::new(server), stamps }) }
    }

    /// The configuration for a link that is opened now. If a changed file has no key, or this process has no right to
    /// read it any more, the previous keys stay valid, which is logged once.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let mut state = lock(&self.state);
        // The file system calls below must not change the errno that the application sees.
        let before = sys::errno();
        let stamps = stamps(&self.files);
        if stamps != state.stamps {
            state.stamps = stamps;
            match read(&self.files) {
                Ok(ring) => {
                    log::line(format_args!(
                        "the key files have changed: the keys in them are accepted from now on"
                    ));
                    state.server = Arc::new(ServerConfig { ring, ..(*state.server).clone() });
                }
                Err(what) => log::line(format_args!("{what}; the previous keys stay accepted")),
            }
        }
        sys::set_errno(before);
        Arc::clone(&state.server)
    }
}

fn stamps(files: &[(Role, String)]) -> Vec<Option<Stamp>> {
    let stamp =
        |metadata: fs::Metadata| (metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec());
    files.iter().map(|(_, path)| fs::metadata(path).ok().map(stamp)).collect()
}

/// Reads the keys in all files.
pub(crate) fn read(files: &[(Role, String)]) -> Result<KeyRing, String> {
    let mut ring = KeyRing::new();
    for (role, path) in files {
        ring.accept(*role, read_key_file(path).map_err(|error| error.to_string())?);
    }
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use spillway_auth::Key;

    use super::*;

    #[test]
    fn changed_key_file_replaces_the_keys_and_an_invalid_one_does_not() {
        let path = std::env::temp_dir().join(format!("spillway-rotation-{}", std::process::id()));
        let write = |text: &str| {
            // Replaces the file in one step, as operators should.
            let new = path.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&new, &path).unwrap();
        };
        let [old, new] = [1, 2].map(|byte| Key::from_secret([byte; 32]));
        write(&old.to_text());
        let files = vec![(Role::Helper, path.to_str().unwrap().to_owned())];
        let keys = Keys::new(ServerConfig { ring: read(&files).unwrap(), ..ServerConfig::default() }, files);
        let accepts = |key: &Key| keys.server().ring.find(Role::Helper, key.id()).is_some();
        assert!(accepts(&old) && Arc::ptr_eq(&keys.server(), &keys.server()));
        write(&new.to_text());
        assert!(accepts(&new) && !accepts(&old));
        write("no key");
        assert!(accepts(&new), "the previous key should still be accepted");
        fs::remove_file(&path).unwrap();
        assert!(accepts(&new));
    }
}
