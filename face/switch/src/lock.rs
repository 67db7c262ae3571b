//! One daemon for each switch: a lock on the directory of its pinned tables.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use spillway_bpf::switch::PINS;

use crate::start_error::StartError;

/// The directory of a switch's pinned tables.
pub(crate) fn pin_directory(name: &str) -> PathBuf {
    Path::new(PINS).join(name)
}

/// The lock of a switch's daemon. The kernel releases it when the process ends, also when it is killed.
#[derive(Debug)]
pub(crate) struct Lock {
    _directory: OwnedFd,
}

impl Lock {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    /// Another daemon has the lock, or the directory cannot be created.
    pub(crate) fn take(directory: &Path) -> Result<Lock, StartError> {
        let failed = |error: io::Error| StartError::Pins { directory: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = open(directory, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _directory: file }),
            Err(Errno::WOULDBLOCK) => Err(StartError::AnotherDaemon { directory: directory.to_owned() }),
            Err(error) => Err(failed(error.into())),
        }
    }
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

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error_with_the_next_step() {
        let error = Lock::take(Path::new("/proc/spillway/switch")).unwrap_err().to_string();
        assert!(error.contains("mount -t bpf"), "{error}");
    }
}
