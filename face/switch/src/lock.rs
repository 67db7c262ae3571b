//! One daemon for each switch: a lock on the directory of its pinned tables.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock, fstat, open, stat};
use rustix::io::Errno;
use rustix::process::geteuid;
use spillway_bpf::switch::PINS;

use crate::start_error::StartError;

/// The directory of a switch's pinned tables.
pub(crate) fn pin_directory(name: &str) -> PathBuf {
    Path::new(PINS).join(name)
}

/// The lock of a switch's daemon. The kernel releases it when the process ends, also when it is killed. Dropping it removes
/// the directory if that is empty, as after a start that was refused.
#[derive(Debug)]
pub(crate) struct Lock {
    directory: PathBuf,
    file: OwnedFd,
}

/// Permissions of a directory by which users other than its owner could hold the lock, or add and remove pins.
const OTHERS: u32 = 0o077;

impl Lock {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    /// Another daemon has the lock, another user could have it, or the directory cannot be created.
    pub(crate) fn take(directory: &Path) -> Result<Lock, StartError> {
        let failed = |error: io::Error| StartError::Pins { directory: directory.to_owned(), error };
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
            match lock(directory, check_owner) {
                // Another process has removed the directory between the two steps.
                Err(StartError::Pins { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
                outcome => return outcome,
            }
        }
    }

    /// Locks the directory of a switch that exists.
    ///
    /// # Errors
    /// The directory does not exist, or another daemon has the lock.
    pub(crate) fn take_existing(directory: &Path) -> Result<Lock, StartError> {
        // Root detaches the switches of all users.
        lock(directory, |_, _| Ok(())).map_err(|error| match error {
            StartError::Pins { directory, error } if error.kind() == io::ErrorKind::NotFound => {
                StartError::NoSwitch { directory }
            }
            error => error,
        })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While this process has the lock, no other one uses this directory. Fails if it is not empty.
        if matches!(is_at(&self.file, &self.directory), Ok(true)) {
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

/// Locks a directory that `check` permits. The error has the kind `NotFound` if the directory does not exist, or was removed
/// before it was locked.
fn lock(
    directory: &Path,
    check: impl FnOnce(&Path, &Stat) -> Result<(), StartError>,
) -> Result<Lock, StartError> {
    let failed = |error: io::Error| StartError::Pins { directory: directory.to_owned(), error };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = open(directory, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    check(directory, &fstat(&file).map_err(|error| failed(error.into()))?)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(StartError::AnotherDaemon { directory: directory.to_owned() });
        }
        Err(error) => return Err(failed(error.into())),
    }
    // A lock on a removed directory does not exclude other daemons: the next one creates the directory again and locks it.
    match is_at(&file, directory) {
        Ok(true) => Ok(Lock { directory: directory.to_owned(), file }),
        Ok(false) => Err(failed(io::ErrorKind::NotFound.into())),
        Err(error) => Err(failed(error)),
    }
}

/// Whether an open directory is the one at a path.
fn is_at(file: &OwnedFd, path: &Path) -> io::Result<bool> {
    let (opened, present) = (fstat(file)?, stat(path)?);
    Ok((opened.st_dev, opened.st_ino) == (present.st_dev, present.st_ino))
}

/// Checks that only the process's user has access to a directory.
fn check_owner(directory: &Path, found: &Stat) -> Result<(), StartError> {
    let (owner, user) = (found.st_uid, geteuid().as_raw());
    let mode = found.st_mode & 0o7777;
    if owner == user && mode & OTHERS == 0 {
        return Ok(());
    }
    Err(StartError::Shared { directory: directory.to_owned(), owner, user, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused_until_the_first_has_ended() {
        let directory = std::env::temp_dir().join(format!("spillway-lock-{}/switch", std::process::id()));
        let first = Lock::take(&directory).unwrap();
        let error = Lock::take(&directory).unwrap_err();
        assert!(matches!(error, StartError::AnotherDaemon { .. }), "{error}");
        assert!(
            error.to_string().contains("another daemon") && error.to_string().contains("name ="),
            "{error}"
        );
        drop(first);
        assert!(Lock::take(&directory).is_ok());
        std::fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    /// Threads take the lock, remove the directory, and release the lock, as `--detach` does. No two threads may have the lock at once.
    #[test]
    fn the_lock_of_a_removed_directory_is_not_taken() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let directory = std::env::temp_dir().join(format!("spillway-relock-{}/switch", std::process::id()));
        let (holders, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 2000 {
                        let Ok(lock) = Lock::take(&directory) else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two locks at once");
                        taken.fetch_add(1, Ordering::Relaxed);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        // From here on another thread can create and lock a new directory.
                        std::fs::remove_dir(&directory).unwrap();
                        drop(lock);
                    }
                });
            }
        });
        std::fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_directory_of_other_users_is_refused_and_an_empty_one_removed_with_the_lock() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("spillway-shared-{}", std::process::id()));
        drop(Lock::take(&directory).unwrap());
        assert!(!directory.exists());
        for mode in [0o750, 0o701, 0o777] {
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            let error = Lock::take(&directory).unwrap_err();
            assert!(matches!(error, StartError::Shared { .. }), "{error}");
            assert!(error.to_string().contains("chmod 0700"), "{error}");
            drop(Lock::take_existing(&directory).unwrap());
        }
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        if std::os::unix::fs::chown(&directory, Some(65_534), None).is_ok() {
            let error = Lock::take(&directory).unwrap_err().to_string();
            assert!(error.contains("belongs to the user 65534") && error.contains("--detach"), "{error}");
        }
        let lock = Lock::take_existing(&directory).unwrap();
        fs::write(directory.join("file"), "").unwrap();
        drop(lock);
        fs::remove_dir_all(&directory).expect("a directory that is not empty stays");
    }

    #[test]
    fn a_switch_that_does_not_exist_is_not_created() {
        let directory = std::env::temp_dir().join(format!("spillway-absent-{}", std::process::id()));
        let error = Lock::take_existing(&directory).unwrap_err();
        assert!(matches!(error, StartError::NoSwitch { .. }) && !directory.exists(), "{error}");
        assert!(error.to_string().contains("name ="), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error_with_the_next_step() {
        let error = Lock::take(Path::new("/proc/spillway/switch")).unwrap_err().to_string();
        assert!(error.contains("mount -t bpf"), "{error}");
    }
}
