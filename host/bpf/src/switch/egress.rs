//! The tc program at the egress of a server's own interface, in host mode. XDP has no egress: this program sees the frames
//! that the host's kernel sends.
//!
//! The kernel has no link for a filter of tc that could be pinned. A filter stays until it is removed, even if the process
//! that attached it ends, and any process with CAP_NET_ADMIN can remove it. So the state is always read from the kernel: a
//! filter of the switch is at a fixed place (priority and handle), and the programs that may be there are pinned.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, Object, OpenObject, Program, TC_EGRESS, TC_INGRESS, TcHook};

use crate::{BpfError, attach, object};

/// The program's name in `c/switch_egress.bpf.c`.
pub(super) const NAME: &str = "spillway_egress";

/// Priority of the filter among those of the interface: filters with lower numbers see a packet first, and hide it from this
/// one if they do not continue. Not 1, which other programs use.
const PRIORITY: u32 = 7;
/// Handle of the filter, which distinguishes it from other filters of its priority: "SW".
const HANDLE: u32 = 0x5357;
/// Start of the names of the pins of programs; the program's number follows.
const PIN: &str = "egress-program-";

/// The program of a switch for the egress of interfaces. It must be attached, and detached, in the network namespace of the
/// interfaces.
#[derive(Debug)]
pub(super) struct Egress {
    object: Object,
    id: u32,
}

impl Egress {
    /// Loads the program with the maps of the XDP program, whose object is loaded. With `pins`, a directory, the program is
    /// pinned there until [`forget_others`](Egress::forget_others) of a later one.
    pub(super) fn load(ingress: &Object, pins: Option<&Path>) -> Result<Egress, BpfError> {
        let object = object::load(NAME, open(ingress)?)?;
        let mut program = object::program(NAME, &object);
        let id = Program::id_from_fd(program.as_fd())
            .map_err(BpfError::of(format!("cannot read the number of the program `{NAME}`")))?;
        if let Some(directory) = pins {
            forget_unattached(directory)?;
            let path = directory.join(format!("{PIN}{id}"));
            program.pin(&path).map_err(BpfError::of(format!("cannot pin {}", path.display())))?;
        }
        Ok(Egress { object, id })
    }

    /// Attaches the program to an interface, in place of an earlier program of the switch. Each packet passes one of
    /// the two. Does nothing if the program is attached there.
    ///
    /// The caller holds the interface's XDP link, so that no other switch has a filter there.
    pub(super) fn attach(&self, index: u32) -> Result<(), BpfError> {
        if self.is_attached(index) {
            return Ok(());
        }
        let failed = || {
            BpfError::of(format!(
                "cannot attach a tc program to the egress of interface number {index}: it needs the queueing discipline \
                 `clsact` there, which excludes `ingress`, and which must not share its blocks (`tc qdisc show`)"
            ))
        };
        let program = object::program(NAME, &self.object);
        let mut hook = hook(program.as_fd(), index);
        hook.create().and_then(|mut hook| hook.replace(true).attach()).map_err(failed())?;
        // The discipline `ingress`, which excludes `clsact`, accepts the filter, and shows it packets that arrive.
        if with_hook(index, |hook| hook.attach_point(TC_INGRESS).query()).ok() != Some(self.id) {
            return Ok(());
        }
        detach(index)?;
        Err(failed()(io::Error::from(io::ErrorKind::AlreadyExists).into()))
    }

    /// Whether this program is attached to an interface.
    pub(super) fn is_attached(&self, index: u32) -> bool {
        program_at(index) == Some(self.id)
    }

    /// Detaches the programs of the switch from all interfaces of the network namespace but these. `pins`: the directory with
    /// the switch's pins, which an earlier process may have left.
    pub(super) fn keep_only(&self, kept: &BTreeSet<u32>, pins: Option<&Path>) -> Result<(), BpfError> {
        let mut ids = pins.map(pinned).transpose()?.unwrap_or_default();
        ids.insert(self.id);
        detach_all(&ids, kept)
    }

    /// Removes the pins of earlier programs. They must be detached from all interfaces.
    pub(super) fn forget_others(&self, pins: &Path) -> Result<(), BpfError> {
        forget(pins, |id| id != self.id)
    }
}

/// Opens the program's object, with the maps of the XDP program, whose object is loaded.
pub(super) fn open(ingress: &Object) -> Result<OpenObject, BpfError> {
    let mut object = object::open(NAME, object::SWITCH_EGRESS)?;
    object::set_constant(&mut object, ".rodata.mode");
    for mut map in object.maps_mut() {
        // The map with the constants belongs to each object; the other maps are shared.
        let is_shared = !map.name().to_string_lossy().contains(".rodata");
        let shared = ingress.maps().find(|shared| is_shared && shared.name() == map.name());
        let Some(shared) = shared else { continue };
        map.reuse_fd(shared.as_fd()).map_err(BpfError::of(format!("cannot use a map in `{NAME}`")))?;
    }
    Ok(object)
}

/// Removes the pins of programs that are attached nowhere: starts that failed have left them, and each one would leave another.
fn forget_unattached(pins: &Path) -> Result<(), BpfError> {
    let attached: BTreeSet<u32> = interfaces()?.into_iter().filter_map(program_at).collect();
    forget(pins, |id| !attached.contains(&id))
}

/// Removes the pins of the programs whose numbers are to be forgotten.
fn forget(pins: &Path, is_forgotten: impl Fn(u32) -> bool) -> Result<(), BpfError> {
    for (_, path) in pin_paths(pins)?.into_iter().filter(|(id, _)| is_forgotten(*id)) {
        fs::remove_file(&path)
            .map_err(libbpf_rs::Error::from)
            .map_err(BpfError::of(format!("cannot remove {}", path.display())))?;
    }
    Ok(())
}

/// Detaches the programs of a switch that no process uses from all interfaces of the network namespace. `pins`: the directory
/// with its pins.
pub(super) fn detach_pinned(pins: &Path) -> Result<(), BpfError> {
    let ids = pinned(pins)?;
    if ids.is_empty() { Ok(()) } else { detach_all(&ids, &BTreeSet::new()) }
}

/// Whether a directory has pins of egress programs.
pub(super) fn has_pins(pins: &Path) -> bool {
    pin_paths(pins).is_ok_and(|paths| !paths.is_empty())
}

/// Detaches the switch's filter from an interface, if it has one.
pub(super) fn detach(index: u32) -> Result<(), BpfError> {
    if program_at(index).is_none() {
        return Ok(());
    }
    match with_hook(index, TcHook::detach) {
        // The filter, or the interface, may have been removed just now.
        Err(error) if program_at(index).is_some() => Err(BpfError::of(format!(
            "cannot detach the tc program from the egress of interface number {index}"
        ))(error)),
        _ => Ok(()),
    }
}

/// The number of the program of the switch's filter at an interface. `None`: no such filter, or no such interface.
fn program_at(index: u32) -> Option<u32> {
    with_hook(index, TcHook::query).ok()
}

fn detach_all(ids: &BTreeSet<u32>, kept: &BTreeSet<u32>) -> Result<(), BpfError> {
    let is_stray =
        |index: &u32| !kept.contains(index) && program_at(*index).is_some_and(|id| ids.contains(&id));
    interfaces()?.into_iter().filter(is_stray).try_for_each(detach)
}

/// The indexes of all interfaces of the calling thread's network namespace.
fn interfaces() -> Result<Vec<u32>, BpfError> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")
        .map_err(libbpf_rs::Error::from)
        .map_err(BpfError::of("cannot list interfaces"))?;
    // After two lines of titles, each line has a name before a colon. An interface that has been removed since has no index.
    let names = text.lines().skip(2).filter_map(|line| line.split_once(':'));
    Ok(names.filter_map(|(name, _)| attach::index_of(name.trim()).ok()).map(i32::unsigned_abs).collect())
}

/// The numbers of the pinned programs.
fn pinned(pins: &Path) -> Result<BTreeSet<u32>, BpfError> {
    Ok(pin_paths(pins)?.into_iter().map(|(id, _)| id).collect())
}

/// The pins of programs, with the programs' numbers. The kernel does not reuse a number while its program exists.
pub(super) fn pin_paths(pins: &Path) -> Result<Vec<(u32, PathBuf)>, BpfError> {
    let failed = || BpfError::of(format!("cannot read the pins in {}", pins.display()));
    let mut paths = Vec::new();
    for entry in fs::read_dir(pins).map_err(libbpf_rs::Error::from).map_err(failed())? {
        let path = entry.map_err(libbpf_rs::Error::from).map_err(failed())?.path();
        let id = path.file_name().and_then(|name| name.to_str()?.strip_prefix(PIN)?.parse().ok());
        paths.extend(id.map(|id| (id, path)));
    }
    Ok(paths)
}

/// The place of the switch's filter at an interface.
fn hook(program: BorrowedFd<'_>, index: u32) -> TcHook {
    let mut hook = TcHook::new(program);
    let index = i32::try_from(index).unwrap_or(i32::MAX);
    hook.ifindex(index).attach_point(TC_EGRESS).handle(HANDLE).priority(PRIORITY);
    hook
}

/// Makes a call that needs no program. The library's type needs a descriptor nevertheless: that of `/dev/null`.
fn with_hook<T>(index: u32, call: impl FnOnce(&mut TcHook) -> libbpf_rs::Result<T>) -> libbpf_rs::Result<T> {
    let none = File::open("/dev/null")?;
    call(&mut hook(none.as_fd(), index))
}
