//! Pins of maps and links in a BPF file system: the switch forwards while its daemon restarts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};
use spillway_rules::{Mode, PortId};

use super::attachment::{Attachment, attachment, attachment_of};
use super::egress;
use super::layout::{self, LAYOUT_VERSION, ONLY, Settings};
use super::open_ports;
use crate::attach::Mode as AttachMode;
use crate::{BpfError, object};

/// The directory below which each switch of a host has a directory with its pins.
pub const PINS: &str = "/sys/fs/bpf/spillway";

/// `BPF_FS_MAGIC` in <linux/magic.h>.
const BPF_FS: u32 = 0xcafe_4a11;
/// The map with the program behind the switch's, in host mode: its name in `c/switch.bpf.c`.
pub(super) const NEXT_PROGRAM: &str = "next_program";
/// The directory beside the pins that the process of this program locks.
pub(super) const NEXT_PROGRAM_LOCK: &str = "next-program";
/// The maps that are pinned: all but the constants and the program's working memory (`scratch` and `error_scratch`).
const MAPS: [&str; 17] = [
    "settings",
    "shared",
    "interfaces",
    "interface_slots",
    "ports",
    "stations",
    "own_addresses",
    "places",
    "homes",
    "servers",
    "owners",
    "flows",
    "service_flows",
    "prefixes",
    "egress",
    "verdicts",
    NEXT_PROGRAM,
];

/// Why pins cannot be used.
#[derive(Debug)]
pub enum PinError {
    /// The directory is in no BPF file system.
    NotMounted(PathBuf),
    /// The maps have another layout.
    Layout {
        /// The directory.
        directory: PathBuf,
        /// The layout of the pinned maps.
        found: u32,
    },
    /// The maps are those of a switch in the other mode.
    Mode(PathBuf),
    /// The switch forwards in another network namespace.
    Namespace {
        /// The directory.
        directory: PathBuf,
        /// A port whose interface is in that namespace.
        port: PortId,
    },
    /// The directory has no pins of a switch.
    Absent(PathBuf),
    /// The system has failed.
    System {
        /// What failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// A pinned map or link cannot be read.
    Bpf(BpfError),
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::NotMounted(directory) => write!(
                f,
                "{} is in no BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf`",
                directory.display()
            ),
            PinError::Layout { directory, found } => write!(
                f,
                "the maps in {} have layout {found}, this program needs layout {LAYOUT_VERSION}: start the version of \
                 Spillway that created them, or remove them, which ends all moved connections",
                directory.display()
            ),
            PinError::Mode(directory) => write!(
                f,
                "the maps in {} are those of a switch in the other mode: remove them with `spillway switch --config FILE \
                 --detach`, which ends all moved connections, or give this switch another name",
                directory.display()
            ),
            PinError::Namespace { directory, port } => write!(
                f,
                "the switch with the pins in {} forwards in another network namespace, which has the interface of its port \
                 {port}: start it there, give this switch another name, or remove the other one with `spillway switch \
                 --config FILE --detach`",
                directory.display()
            ),
            PinError::Absent(directory) => {
                write!(f, "there is no switch with this name: {} has no pins of one", directory.display())
            }
            PinError::System { action, source } => write!(f, "cannot {action}: {source}"),
            PinError::Bpf(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PinError {}

impl From<BpfError> for PinError {
    fn from(error: BpfError) -> PinError {
        PinError::Bpf(error)
    }
}

/// Checks that a directory for pins is, or would be, in a BPF file system. Creates nothing.
///
/// # Errors
/// It is in another file system, or the system has failed.
pub fn check_file_system(directory: &Path) -> Result<(), PinError> {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let found = rustix::fs::statfs(existing)
        .map_err(|source| system(format!("inspect {}", existing.display()), source.into()))?;
    // The type's sign and width depend on the architecture; the number has 32 bits.
    if found.f_type as u32 == BPF_FS { Ok(()) } else { Err(PinError::NotMounted(directory.to_owned())) }
}

/// Detaches the program of a switch that no process uses from all its interfaces, and removes its pins.
///
/// # Errors
/// The directory has no pins of a switch, or the system has failed.
pub fn remove(directory: &Path) -> Result<(), PinError> {
    // A filter that does not exist is no news.
    object::silence();
    let pins = Pins(directory.to_owned());
    let has_map = MAPS.iter().any(|name| pins.map(name).exists());
    if !has_map && pins.link_paths().next().is_none() {
        return Err(PinError::Absent(directory.to_owned()));
    }
    pins.remove()
}

/// The directory with a switch's pins.
#[derive(Clone, Debug)]
pub(super) struct Pins(PathBuf);

impl Pins {
    /// Creates the directory if necessary.
    pub(super) fn new(directory: &Path) -> Result<Pins, PinError> {
        check_file_system(directory)?;
        fs::create_dir_all(directory)
            .map_err(|source| system(format!("create {}", directory.display()), source))?;
        Ok(Pins(directory.to_owned()))
    }

    /// The directory as it is, also if it does not exist.
    pub(super) fn existing(directory: &Path) -> Pins {
        Pins(directory.to_owned())
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    /// A pinned map; `None` if it does not exist.
    pub(super) fn open_map(&self, name: &str) -> Result<Option<MapHandle>, BpfError> {
        let path = self.map(name);
        path.exists().then(|| open(&path)).transpose()
    }

    /// The layout's version of the pinned maps, and their epoch; `None` without the map `settings`. An interrupted start
    /// leaves version 0.
    pub(super) fn version_and_epoch(&self) -> Result<Option<(u32, u64)>, BpfError> {
        let settings = self.settings()?;
        Ok(settings.map(|value| Settings::version_and_epoch(&value).unwrap_or((u32::MAX, 0))))
    }

    /// Whether the pinned maps are complete, and have the layout of this version.
    pub(super) fn has_present_layout(&self) -> Result<bool, BpfError> {
        Ok(matches!(self.version_and_epoch()?, Some((LAYOUT_VERSION, _))))
    }

    /// The pinned settings; `None` without the map `settings`.
    fn settings(&self) -> Result<Option<Vec<u8>>, BpfError> {
        let Some(settings) = self.open_map("settings")? else { return Ok(None) };
        let value = settings
            .lookup(&ONLY, MapFlags::ANY)
            .map_err(BpfError::of(format!("cannot read the map `settings` in {}", self.0.display())))?;
        Ok(Some(value.unwrap_or_default()))
    }

    /// The epoch of the pinned maps; `None` without pinned maps. Removes maps that an interrupted start has left behind:
    /// those whose settings have no layout version. No program uses them yet.
    pub(super) fn epoch(&self) -> Result<Option<u64>, PinError> {
        match self.version_and_epoch()? {
            Some((LAYOUT_VERSION, epoch)) => return Ok(Some(epoch)),
            None | Some((0, _)) => {}
            Some((found, _)) => return Err(PinError::Layout { directory: self.0.clone(), found }),
        }
        self.clear()?;
        Ok(None)
    }

    /// Checks that pinned maps are those of a switch in this mode.
    pub(super) fn check_mode(&self, mode: Mode) -> Result<(), PinError> {
        match self.mode()? {
            Some(found) if found != mode => Err(PinError::Mode(self.0.clone())),
            _ => Ok(()),
        }
    }

    /// The mode of the switch; `None` without pinned settings.
    pub(super) fn mode(&self) -> Result<Option<Mode>, BpfError> {
        Ok(self.settings()?.as_deref().and_then(Settings::mode))
    }

    /// Makes an object use the pinned maps, and pin those that it creates when it is loaded.
    pub(super) fn attach_maps(&self, object: &mut OpenObject) -> Result<(), PinError> {
        for mut map in object.maps_mut() {
            let Some(name) = MAPS.into_iter().find(|name| map.name() == *name) else { continue };
            let path = self.map(name);
            if name == "flows" && path.exists() {
                map.set_max_entries(open(&path)?.max_entries())
                    .map_err(BpfError::of("cannot set the size of the map `flows`"))?;
            }
            map.set_pin_path(&path)
                .map_err(BpfError::of(format!("cannot use the pin {}", path.display())))?;
        }
        Ok(())
    }

    fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path of the pinned link of a port.
    pub(super) fn link(&self, port: PortId) -> PathBuf {
        self.0.join(format!("port-{port}"))
    }

    /// The ports with pinned links, and the links' paths.
    fn link_paths(&self) -> impl Iterator<Item = (PortId, PathBuf)> + '_ {
        open_ports().map(|port| (port, self.link(port))).filter(|(_, path)| path.exists())
    }

    /// The pinned links.
    pub(super) fn open_links(&self) -> Result<BTreeMap<PortId, Link>, BpfError> {
        let open = |(port, path): (PortId, PathBuf)| {
            let link = Link::open(&path)
                .map_err(BpfError::of(format!("cannot open the pinned link {}", path.display())))?;
            Ok((port, link))
        };
        self.link_paths().map(open).collect()
    }

    /// Where the programs of the pinned links run.
    ///
    /// # Errors
    /// The switch forwards in another network namespace: a link has its interface there, and the map `egress` still leads
    /// to the interface. If only the interface has gone to another namespace, the kernel has removed it from the map.
    pub(super) fn attachments(&self) -> Result<BTreeMap<PortId, Attachment>, PinError> {
        let links = self.open_links()?;
        let egress = self.open_map("egress")?;
        let mut attachments = BTreeMap::new();
        for port in links.keys() {
            let leads_to = match &egress {
                Some(map) => map
                    .lookup(&layout::port_key(*port), MapFlags::ANY)
                    .map_err(BpfError::of(format!("cannot read the map {}", self.map("egress").display())))?,
                None => None,
            };
            let leads_to = leads_to.as_deref().and_then(layout::index);
            let attachment = attachment_of(*port, &links, leads_to)?;
            if attachment == Attachment::Elsewhere && leads_to.is_some() {
                return Err(PinError::Namespace { directory: self.0.clone(), port: *port });
            }
            attachments.insert(*port, attachment);
        }
        Ok(attachments)
    }

    /// The directory of another switch whose pinned link has attached a program to the interface with this index.
    pub(super) fn other_switch_at(&self, interface: u32) -> Option<PathBuf> {
        let mut others = switches_at(self.0.parent()?, interface).into_iter().map(|(pins, ..)| pins.0);
        others.find(|directory| *directory != self.0)
    }

    /// Detaches the program from all interfaces, and removes the switch's pins; other files in the directory stay. The kernel
    /// ends maps that no process uses.
    fn clear(&self) -> Result<(), PinError> {
        self.remove_filters()?;
        for (_, link) in self.open_links()? {
            // The kernel ends an unpinned link some time later: without this, frames could pass after the return.
            // Fails only if the interface was removed, and the program with it.
            let _ = link.detach();
        }
        // First the map by which the next start recognizes pins as complete: this process may be killed between two.
        remove_file(&self.map("settings"))?;
        MAPS.iter().try_for_each(|name| remove_file(&self.map(name)))?;
        open_ports().try_for_each(|port| self.unpin(port))?;
        remove_directory(&self.0.join(NEXT_PROGRAM_LOCK))?;
        egress::pin_paths(&self.0)?.iter().try_for_each(|(_, path)| remove_file(path))
    }

    /// Removes the pin of a port's link, if there is one.
    pub(super) fn unpin(&self, port: PortId) -> Result<(), PinError> {
        remove_file(&self.link(port))
    }

    /// Detaches the programs at the egress of interfaces, in host mode.
    ///
    /// # Errors
    /// The interfaces are in another network namespace, or the system has failed.
    fn remove_filters(&self) -> Result<(), PinError> {
        if !egress::has_pins(&self.0) {
            return Ok(());
        }
        for attachment in self.attachments()?.into_values() {
            if let Attachment::Here { index, .. } = attachment {
                egress::detach(index)?;
            }
        }
        Ok(egress::detach_pinned(&self.0)?)
    }

    /// Removes the switch's pins, and the directory if nothing else is in it.
    pub(super) fn remove(&self) -> Result<(), PinError> {
        self.clear()?;
        match fs::remove_dir(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                Err(system(format!("remove {}", self.0.display()), error))
            }
            _ => Ok(()),
        }
    }
}

/// The switches with pins below `directory` whose links have attached a program to the interface with this index, with the link and
/// the mode in which the program runs. A directory that this process must not read is not examined.
pub(super) fn switches_at(directory: &Path, interface: u32) -> Vec<(Pins, Link, AttachMode)> {
    let directories = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| Pins(entry.path()));
    let at_interface = |pins: Pins| {
        let mut links = pins.open_links().unwrap_or_default().into_values();
        let (link, mode) = links.find_map(|link| match attachment(&link) {
            Ok(Attachment::Here { index, mode }) if index == interface => Some((link, mode)),
            _ => None,
        })?;
        Some((pins, link, mode))
    };
    directories.filter_map(at_interface).collect()
}

/// The directory with pins of switches that this process must not read; `None` if it may read all of them. `directory`: the one below
/// which each switch has its own.
pub(crate) fn unreadable(directory: &Path) -> Option<PathBuf> {
    let is_denied =
        |path: &Path| fs::read_dir(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    if is_denied(directory) {
        return Some(directory.to_owned());
    }
    let mut paths = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    paths.find(|path| is_denied(path))
}

/// Removes an empty directory, if it exists.
fn remove_directory(path: &Path) -> Result<(), PinError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(system(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

/// Removes a file, if it exists.
fn remove_file(path: &Path) -> Result<(), PinError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(system(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<MapHandle, BpfError> {
    MapHandle::from_pinned_path(path).map_err(BpfError::of(format!("cannot open {}", path.display())))
}

fn system(action: String, source: io::Error) -> PinError {
    PinError::System { action, source }
}
