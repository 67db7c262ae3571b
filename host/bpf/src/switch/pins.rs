//! Pins of maps and links in a BPF file system: the switch forwards while its daemon restarts.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};
use spillway_rules::PortId;
use spillway_rules::config::PORTS_MAX;

use super::layout::{LAYOUT_VERSION, ONLY, Settings};
use crate::BpfError;

/// The directory below which each switch of a host has a directory with its pins.
pub const PINS: &str = "/sys/fs/bpf/spillway";

/// `BPF_FS_MAGIC` in <linux/magic.h>.
const BPF_FS: u32 = 0xcafe_4a11;
/// The maps that are pinned: all but the constants and the program's working memory (`scratch`).
const MAPS: [&str; 15] = [
    "settings",
    "shared",
    "interfaces",
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

/// Detaches the program of a switch that no process uses from all its interfaces, and removes its pins.
///
/// # Errors
/// The directory has no pins of a switch, or the system has failed.
pub fn remove(directory: &Path) -> Result<(), PinError> {
    let pins = Pins(directory.to_owned());
    for link in pins.links().filter(|link| link.exists()) {
        let link = Link::open(&link)
            .map_err(BpfError::of(format!("cannot open the pinned link {}", link.display())))?;
        // The kernel ends an unpinned link some time later: without this, frames could pass after the return.
        // Fails only if the interface was removed, and the program with it.
        let _ = link.detach();
    }
    pins.remove()
}

/// The directory with a switch's pins.
#[derive(Clone, Debug)]
pub(super) struct Pins(PathBuf);

impl Pins {
    /// Creates the directory if necessary.
    pub(super) fn new(directory: &Path) -> Result<Pins, PinError> {
        let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
        let system = rustix::fs::statfs(existing)
            .map_err(|source| system(format!("inspect {}", existing.display()), source.into()))?;
        // The type's sign and width depend on the architecture; the number has 32 bits.
        if system.f_type as u32 != BPF_FS {
            return Err(PinError::NotMounted(directory.to_owned()));
        }
        fs::create_dir_all(directory)
            .map_err(|source| self::system(format!("create {}", directory.display()), source))?;
        Ok(Pins(directory.to_owned()))
    }

    /// The epoch of the pinned maps; `None` without pinned maps. Removes maps that an interrupted start has left behind:
    /// those whose settings have no layout version. No program uses them yet.
    pub(super) fn epoch(&self) -> Result<Option<u64>, PinError> {
        let settings = self.map("settings");
        if settings.exists() {
            let value = open(&settings)?
                .lookup(&ONLY, MapFlags::ANY)
                .map_err(BpfError::of(format!("cannot read {}", settings.display())))?;
            let (found, epoch) =
                value.as_deref().and_then(Settings::version_and_epoch).unwrap_or((u32::MAX, 0));
            if found == LAYOUT_VERSION {
                return Ok(Some(epoch));
            }
            if found != 0 {
                return Err(PinError::Layout { directory: self.0.clone(), found });
            }
        }
        self.clear()?;
        Ok(None)
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

    fn links(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..PORTS_MAX as u8).filter_map(PortId::new).map(|port| self.link(port))
    }

    /// Removes all pins. The kernel ends maps and links that no process uses.
    fn clear(&self) -> Result<(), PinError> {
        let failed = |source| system(format!("remove the pins in {}", self.0.display()), source);
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes all pins and the directory.
    pub(super) fn remove(&self) -> Result<(), PinError> {
        self.clear()?;
        fs::remove_dir(&self.0).map_err(|source| system(format!("remove {}", self.0.display()), source))
    }
}

fn open(path: &Path) -> Result<MapHandle, BpfError> {
    MapHandle::from_pinned_path(path).map_err(BpfError::of(format!("cannot open {}", path.display())))
}

fn system(action: String, source: io::Error) -> PinError {
    PinError::System { action, source }
}
