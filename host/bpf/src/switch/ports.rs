//! The interfaces of the switch's ports.

use std::collections::BTreeMap;
use std::fmt;

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, Object, ProgramMut};
use spillway_rules::PortId;
use spillway_rules::config::{Config, PORTS_MAX};

use super::pins::{PinError, Pins};
use super::{LOOPBACK, run};
use crate::BpfError;
use crate::attach::{self, AttachError, Mode};
use crate::map::Map;

/// Why a port was not attached or detached.
#[derive(Debug)]
pub enum PortError {
    /// The program was not attached to the interface.
    Attach(AttachError),
    /// The kernel refused a change of a map or a link.
    Bpf(BpfError),
    /// A pin cannot be changed.
    Pins(PinError),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Attach(error) => error.fmt(f),
            PortError::Bpf(error) => error.fmt(f),
            PortError::Pins(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PortError {}

impl From<AttachError> for PortError {
    fn from(error: AttachError) -> PortError {
        PortError::Attach(error)
    }
}

impl From<BpfError> for PortError {
    fn from(error: BpfError) -> PortError {
        PortError::Bpf(error)
    }
}

impl From<PinError> for PortError {
    fn from(error: PinError) -> PortError {
        PortError::Pins(error)
    }
}

/// The state of an attached port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The program is attached.
    Attached {
        /// The index of the interface.
        interface: u32,
        /// Where the program runs.
        mode: Mode,
    },
    /// The interface was removed, or another process has detached the program.
    Detached,
}

/// The links to interfaces, and the maps that translate between interfaces and ports.
#[derive(Debug)]
pub(super) struct Ports {
    interfaces: Map,
    egress: Map,
    links: BTreeMap<PortId, Link>,
    pins: Option<Pins>,
}

impl Ports {
    pub(super) fn of(object: &Object, pins: Option<Pins>) -> Result<Ports, BpfError> {
        let (interfaces, egress) = (Map::of(object, "interfaces")?, Map::of(object, "egress")?);
        Ok(Ports { interfaces, egress, links: BTreeMap::new(), pins })
    }

    /// Makes frames of this interface index arrive at the daemon's port.
    pub(super) fn add_daemon(&self, interface: u32) -> Result<(), BpfError> {
        self.add(interface, PortId::DAEMON)
    }

    /// Makes test runs arrive at all ports. The egress of each port is the loopback interface, because a redirect needs
    /// one; in a test run the kernel sends nothing.
    pub(super) fn open_for_tests(&self, config: &Config) -> Result<(), BpfError> {
        for port in &config.ports {
            self.add(run::test_interface(port.id), port.id)?;
            self.egress.set(&key(port.id), &LOOPBACK.to_ne_bytes())?;
        }
        self.add(run::test_interface(PortId::DAEMON), PortId::DAEMON)
    }

    fn add(&self, interface: u32, port: PortId) -> Result<(), BpfError> {
        self.interfaces.set(&interface.to_ne_bytes(), &key(port))
    }

    /// Gives the pinned links a new program. Links whose interface was removed are unpinned.
    pub(super) fn adopt(&mut self, program: &ProgramMut<'_>) -> Result<(), BpfError> {
        let Some(pins) = &self.pins else { return Ok(()) };
        for port in (0..PORTS_MAX as u8).filter_map(PortId::new) {
            let path = pins.link(port);
            if !path.exists() {
                continue;
            }
            let mut link = Link::open(&path)
                .map_err(BpfError::of(format!("cannot open the pinned link {}", path.display())))?;
            match state(&link)? {
                PortState::Attached { .. } => {
                    link.update_prog(program)
                        .map_err(BpfError::of(format!("cannot replace the program of port {port}")))?;
                    self.links.insert(port, link);
                }
                PortState::Detached => {
                    link.unpin().map_err(BpfError::of(format!("cannot remove {}", path.display())))?;
                    self.forget(port)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn attach(
        &mut self,
        program: &ProgramMut<'_>,
        port: PortId,
        interface: &str,
    ) -> Result<(), PortError> {
        let index = attach::index_of(interface)?;
        if let Some(link) = self.links.get(&port) {
            if matches!(state(link)?, PortState::Attached { interface, .. } if i32::try_from(interface) == Ok(index))
            {
                return Ok(());
            }
            self.detach(port)?;
        }
        attach::check_free(interface)?;
        // The maps first: the program runs as soon as it is attached.
        self.egress.set(&key(port), &index.to_ne_bytes())?;
        self.interfaces.set(&index.to_ne_bytes(), &key(port))?;
        match self.link(program, port, interface) {
            Ok(link) => {
                self.links.insert(port, link);
                Ok(())
            }
            Err(error) => {
                self.forget(port)?;
                Err(error)
            }
        }
    }

    fn link(&self, program: &ProgramMut<'_>, port: PortId, interface: &str) -> Result<Link, PortError> {
        let mut link = attach::link(program, interface)?;
        if let Some(pins) = &self.pins {
            let path = pins.link(port);
            link.pin(&path).map_err(BpfError::of(format!("cannot pin the link {}", path.display())))?;
        }
        Ok(link)
    }

    pub(super) fn detach(&mut self, port: PortId) -> Result<(), PortError> {
        let Some(mut link) = self.links.remove(&port) else { return Ok(()) };
        // Fails only if the interface was removed, and the program with it.
        let _ = link.detach();
        if self.pins.is_some() {
            link.unpin().map_err(BpfError::of(format!("cannot remove the pin of port {port}")))?;
        }
        self.forget(port)?;
        Ok(())
    }

    /// Removes a port's interface from the maps.
    fn forget(&self, port: PortId) -> Result<(), BpfError> {
        self.egress.remove(&key(port))?;
        let keys: Vec<_> = self.interfaces.handle().keys().collect();
        for interface in keys {
            if self.interfaces.value(&interface, libbpf_rs::MapFlags::ANY)?.as_deref() == Some(&key(port)) {
                self.interfaces.remove(&interface)?;
            }
        }
        Ok(())
    }

    pub(super) fn states(&self) -> Result<Vec<(PortId, PortState)>, PortError> {
        self.links.iter().map(|(port, link)| Ok((*port, state(link)?))).collect()
    }

    pub(super) fn remove(mut self) -> Result<(), PortError> {
        for port in self.links.keys().copied().collect::<Vec<_>>() {
            self.detach(port)?;
        }
        if let Some(pins) = self.pins.take() {
            pins.remove()?;
        }
        Ok(())
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        if self.pins.is_none() {
            // Closing the descriptors is not enough: a child that was just forked has copies until it calls exec.
            // Fails only if the interface was removed, and the program with it.
            self.links.values().for_each(|link| drop(link.detach()));
        }
    }
}

fn key(port: PortId) -> [u8; 4] {
    u32::from(port.number()).to_ne_bytes()
}

fn state(link: &Link) -> Result<PortState, BpfError> {
    let info = link.info().map_err(BpfError::of("cannot read the link of the switch's program"))?;
    Ok(match info.info {
        // The kernel reports index 0 for a link without an interface.
        LinkTypeInfo::Xdp(at) if at.ifindex != 0 => {
            PortState::Attached { interface: at.ifindex, mode: attach::mode_of(at.ifindex)? }
        }
        _ => PortState::Detached,
    })
}
