use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use spillway_auth::Key;
use zeroize::Zeroizing;

use crate::error::{KeyFileError, Problem, SecretFileError};
use crate::random::fresh_key;

/// A key's text has 79 bytes and a line end; the other bytes allow white space around it.
const FILE_BYTES_MAX: usize = 256;
/// Mode bits that give access to users other than the owner.
const ACCESS_BY_OTHERS: u32 = 0o077;
/// Mode bit that a group may have on files of root.
const READ_BY_GROUP: u32 = 0o040;

/// Whether only the owner may use a file of this mode and owner. If the owner is root, the file's group may read it:
/// root and systemd give keys and credentials to services this way.
fn is_private(mode: u32, owner: u32) -> bool {
    let others = mode & ACCESS_BY_OTHERS;
    others == 0 || (owner == 0 && others == READ_BY_GROUP)
}

/// Reads a key. The file must be a regular one that only its owner may use (mode 0600 or 0400), or belong to root and
/// be readable by its group (0640 or 0440).
pub fn read_key_file(path: impl AsRef<Path>) -> Result<Key, KeyFileError> {
    let path = path.as_ref();
    read_key(path).map_err(|problem| KeyFileError { path: path.to_owned(), problem })
}

/// Reads another program's secret, such as a password, of at most `bytes_max` bytes. Fails unless the file is as
/// private as a key file.
pub fn read_secret_file(
    path: impl AsRef<Path>,
    bytes_max: usize,
) -> Result<Zeroizing<String>, SecretFileError> {
    let path = path.as_ref();
    let secret = open_private(path).and_then(|file| read_text(file, bytes_max)?.map_err(Problem::Read));
    secret.map_err(|problem| SecretFileError { path: path.to_owned(), problem })
}

/// Makes a new key and writes it to a new file with mode 0600.
pub fn write_new_key_file(path: impl AsRef<Path>) -> Result<Key, KeyFileError> {
    let path = path.as_ref();
    write_new_key(path).map_err(|problem| KeyFileError { path: path.to_owned(), problem })
}

fn read_key(path: &Path) -> Result<Key, Problem> {
    let text = read_text(open_private(path)?, FILE_BYTES_MAX)?;
    // A text that is not UTF-8 is not a key.
    let text = text.map_err(|_| Problem::Text(spillway_auth::KeyError::Prefix))?;
    Key::parse(&text).map_err(Problem::Text)
}

fn open_private(path: &Path) -> Result<File, Problem> {
    // O_NONBLOCK: opening a pipe without a writer must not hang.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(Problem::Read)?;
    // Metadata of the open file: the path may refer to another file by now.
    let metadata = file.metadata().map_err(Problem::Read)?;
    if !metadata.is_file() {
        return Err(Problem::NotAFile);
    }
    if !is_private(metadata.mode(), metadata.uid()) {
        return Err(Problem::Mode(metadata.mode()));
    }
    Ok(file)
}

/// Returns the text, or the inner error if it is not UTF-8.
fn read_text(file: File, bytes_max: usize) -> Result<io::Result<Zeroizing<String>>, Problem> {
    // Full capacity from the start: a string that grows leaves copies of the secret in memory.
    let mut text = Zeroizing::new(String::with_capacity(bytes_max + 1));
    match file.take(bytes_max as u64 + 1).read_to_string(&mut text) {
        Ok(length) if length > bytes_max => Err(Problem::TooLong),
        Ok(_) => Ok(Ok(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(error)),
        Err(error) => Err(Problem::Read(error)),
    }
}

fn write_new_key(path: &Path) -> Result<Key, Problem> {
    let key = fresh_key().map_err(Problem::Random)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(
        |error| match error.kind() {
            io::ErrorKind::AlreadyExists => Problem::Exists,
            _ => Problem::Write(error),
        },
    )?;
    let written = file.write_all(key.to_text().as_bytes()).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // Do not leave a truncated key file. The error of writing is reported, also if the removal fails.
        let _ = fs::remove_file(path);
        return Err(Problem::Write(error));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Directory {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("spillway-keys-{}-{count}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Directory(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn write(&self, name: &str, text: &[u8]) -> PathBuf {
            let path = self.path(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn written_key_can_be_read_back() {
        let directory = Directory::new();
        let path = directory.path("cache.key");
        let key = write_new_key_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(read_key_file(&path).unwrap().id(), key.id());
    }

    #[test]
    fn a_key_is_never_overwritten() {
        let directory = Directory::new();
        let path = directory.path("cache.key");
        let key = write_new_key_file(&path).unwrap();
        let error = write_new_key_file(&path).unwrap_err();
        assert!(matches!(error.problem, Problem::Exists), "{error}");
        assert_eq!(read_key_file(&path).unwrap().id(), key.id());
    }

    #[test]
    fn key_file_that_others_may_use_is_refused_with_the_next_step() {
        let directory = Directory::new();
        let path = directory.path("cache.key");
        write_new_key_file(&path).unwrap();
        for mode in [0o660, 0o604, 0o620, 0o601, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_key_file(&path).unwrap_err();
            assert!(matches!(error.problem, Problem::Mode(_)), "{error}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(read_key_file(&path).is_ok());
    }

    #[test]
    fn file_of_root_may_be_readable_by_its_group() {
        assert!(is_private(0o100_640, 0) && is_private(0o440, 0));
        assert!(!is_private(0o640, 1000) && !is_private(0o660, 0) && !is_private(0o644, 0));
    }

    #[test]
    fn each_kind_of_unusable_key_file_has_an_error_of_its_own() {
        let directory = Directory::new();
        let problem = |path: PathBuf| read_key_file(path).unwrap_err().problem;
        assert!(matches!(problem(directory.path("missing")), Problem::Read(_)));
        assert!(matches!(problem(directory.0.clone()), Problem::NotAFile));
        assert!(matches!(problem(directory.write("empty", b"")), Problem::Text(_)));
        assert!(matches!(problem(directory.write("binary", &[0xff; 80])), Problem::Text(_)));
        assert!(matches!(problem(directory.write("long", &[b' '; 257])), Problem::TooLong));
        assert!(matches!(problem(PathBuf::from("/dev/zero")), Problem::NotAFile));
    }

    #[test]
    fn a_secret_file_must_be_as_private_as_a_key_file() {
        let directory = Directory::new();
        let path = directory.write("password", b"open sesame\n");
        assert_eq!(read_secret_file(&path, 12).unwrap().as_str(), "open sesame\n");
        let error = |path: &Path, bytes_max| read_secret_file(path, bytes_max).unwrap_err().to_string();
        assert!(error(&path, 11).contains("is too long"));
        assert!(error(&directory.write("binary", &[0xff; 8]), 12).contains("UTF-8"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let public = error(&path, 12);
        assert!(public.contains("chmod 600") && !public.contains("sesame"), "{public}");
        let missing = error(&directory.path("missing"), 12);
        assert!(missing.contains("cannot read") && !missing.contains("key new"), "{missing}");
    }

    #[test]
    fn error_of_a_missing_key_file_names_the_command_that_makes_one() {
        let directory = Directory::new();
        let error = read_key_file(directory.path("missing")).unwrap_err();
        assert!(error.to_string().contains("spillway key new"), "{error}");
    }
}
