//! The place behind the program of a switch in host mode, for another program at the same interface.
//!
//! An interface has one XDP program. What a switch in host mode passes to its host goes to the program in the map
//! `next_program`, and to the kernel if the map is empty. So a server on the user-level stack can run on the interface
//! whose switch is the arbiter of its flows.
//!
//! Unlike a link, the map keeps a program after the end of its process. So the process locks a directory beside the pins:
//! the kernel releases the lock when the process ends, and the switch's daemon then removes the program.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use rustix::fs::{FlockOperation, Mode as Permissions, OFlags, flock, open};
use rustix::io::Errno;
use spillway_rules::Mode as SwitchMode;

use super::layout::ONLY;
use super::pins::{NEXT_PROGRAM, NEXT_PROGRAM_LOCK, PINS, Pins, switches_at};
use crate::BpfError;
use crate::attach::Mode;

/// Attempts to lock the directory, and the pause before each further one. The daemon of the switch has the lock for
/// microseconds.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// Why a program was not placed behind a switch.
#[derive(Debug)]
pub(crate) enum NextProgramError {
    /// Another process has a program behind the switch with these pins.
    Occupied(PathBuf),
    /// The directory cannot be locked.
    Lock(PathBuf, io::Error),
    /// The system has failed.
    Bpf(BpfError),
}

impl From<BpfError> for NextProgramError {
    fn from(error: BpfError) -> NextProgramError {
        NextProgramError::Bpf(error)
    }
}

/// A program behind that of a switch. Dropping it removes the program from there.
#[derive(Debug)]
pub(crate) struct NextProgram {
    map: MapHandle,
    /// The link of the switch's program.
    link: Link,
    program_id: u32,
    mode: Mode,
    _lock: OwnedFd,
}

/// What is behind the switch.
pub(crate) enum Present {
    /// The program that was placed there.
    Own,
    /// Another one.
    Other(u32),
    /// None, or the switch's program is not at the interface any more.
    None,
}

impl NextProgram {
    /// Places a program behind that of a switch in host mode at an interface of the calling thread's network namespace.
    /// `None`: the interface has no such switch, or this process cannot read its pins.
    pub(crate) fn place(
        program: BorrowedFd<'_>,
        program_id: u32,
        index: u32,
    ) -> Result<Option<NextProgram>, NextProgramError> {
        let Some((pins, link, mode)) = switch_at(index) else { return Ok(None) };
        let Some(map) = pins.open_map(NEXT_PROGRAM)? else { return Ok(None) };
        let lock = lock(pins.directory())?;
        // Replaces the program of a process that has ended.
        map.update(&ONLY, &program.as_raw_fd().to_ne_bytes(), MapFlags::ANY).map_err(BpfError::of(
            format!("cannot place a program behind the switch in {}", pins.directory().display()),
        ))?;
        Ok(Some(NextProgram { map, link, program_id, mode, _lock: lock }))
    }

    /// The mode in which the switch's program runs, and so this one.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// What is behind the switch now. Works in any network namespace.
    pub(crate) fn present(&self) -> Result<Present, BpfError> {
        let link = self.link.info().map_err(BpfError::of("cannot read the link of the switch's program"))?;
        if matches!(&link.info, LinkTypeInfo::Xdp(at) if at.ifindex == 0) {
            return Ok(Present::None);
        }
        Ok(match program_in(&self.map)? {
            Some(program_id) if program_id == self.program_id => Present::Own,
            Some(program_id) => Present::Other(program_id),
            None => Present::None,
        })
    }
}

impl Drop for NextProgram {
    fn drop(&mut self) {
        // The kernel drops the program's reference with the map, too, if this fails.
        if matches!(program_in(&self.map), Ok(Some(program_id)) if program_id == self.program_id) {
            let _ = self.map.delete(&ONLY);
        }
    }
}

/// Removes the program of a process that has ended. Returns its number.
///
/// # Errors
/// The system has failed.
pub(super) fn remove_orphan(map: &MapHandle, pins: &Path) -> Result<Option<u32>, BpfError> {
    if program_in(map)?.is_none() {
        return Ok(None);
    }
    let directory = pins.join(NEXT_PROGRAM_LOCK);
    let failed = |error: io::Error| {
        let action =
            format!("cannot lock {}, which must belong to the user of this daemon", directory.display());
        // As another kind of error: of one about permissions the text would suspect the kernel's verifier.
        BpfError::of(action)(io::Error::other(error).into())
    };
    // Held until the program is removed: a server that starts now waits, and its program stays.
    let _lock = match try_lock(&directory) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(None),
        // Without the directory nothing shows that the process has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let Some(program_id) = program_in(map)? else { return Ok(None) };
    map.delete(&ONLY).map_err(BpfError::of(format!("cannot change the map `{NEXT_PROGRAM}`")))?;
    Ok(Some(program_id))
}

/// The number of the program behind a switch in host mode, if its process lives.
///
/// # Errors
/// The system has failed.
pub(super) fn of_living_process(pins: &Pins) -> Result<Option<u32>, BpfError> {
    let Some(map) = pins.open_map(NEXT_PROGRAM)? else { return Ok(None) };
    // The lock, if it was free, is released at once. A server that starts meanwhile tries again.
    match try_lock(&pins.directory().join(NEXT_PROGRAM_LOCK)) {
        Ok(Some(_)) => Ok(None),
        _ => program_in(&map),
    }
}

/// The pins of the switch in host mode whose program is at the interface with this index, and the link of the program.
fn switch_at(index: u32) -> Option<(Pins, Link, Mode)> {
    switches_at(Path::new(PINS), index).into_iter().find(|(pins, ..)| {
        matches!(pins.has_present_layout(), Ok(true)) && matches!(pins.mode(), Ok(Some(SwitchMode::Host)))
    })
}

/// The number of the program in the map.
pub(super) fn program_in(map: &MapHandle) -> Result<Option<u32>, BpfError> {
    let value = map
        .lookup(&ONLY, MapFlags::ANY)
        .map_err(BpfError::of(format!("cannot read the map `{NEXT_PROGRAM}`")))?;
    Ok(value.as_deref().and_then(|value| value.first_chunk()).map(|bytes| u32::from_ne_bytes(*bytes)))
}

/// Takes the lock of the place behind the switch with these pins.
fn lock(pins: &Path) -> Result<OwnedFd, NextProgramError> {
    let directory = pins.join(NEXT_PROGRAM_LOCK);
    let failed = |error| NextProgramError::Lock(directory.clone(), error);
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        create(&directory, pins).map_err(failed)?;
        if let Some(lock) = try_lock(&directory).map_err(failed)? {
            return Ok(lock);
        }
    }
    Err(NextProgramError::Occupied(pins.to_owned()))
}

/// Creates the directory that is locked, if it does not exist. It belongs to the user of the switch's daemon, who must be able
/// to open it, also if this process is root's.
fn create(directory: &Path, pins: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(error),
    }
    let owner = fs::metadata(pins)?;
    chown(directory, Some(owner.uid()), Some(owner.gid()))
}

/// `None`: another process has the lock.
fn try_lock(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = open(directory, flags, Permissions::empty())?;
    match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
