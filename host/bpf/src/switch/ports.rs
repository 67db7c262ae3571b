//! The interfaces of the switch's ports.

pub(super) mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapCore, MapFlags, Object, ProgramMut};
use spillway_rules::PortId;
use spillway_rules::config::Config;

use super::attachment::{Attachment, attachment_of, is_at};
use super::egress::Egress;
use super::layout::{self, port_key as key};
use super::pins::{PinError, Pins};
use super::{LOOPBACK, open_ports, run};
use crate::BpfError;
use crate::attach::{self, AttachError};
use crate::map::Map;
use state::PortState;

/// Why a port was not attached or detached.
#[derive(Debug)]
pub enum PortError {
    /// The program was not attached to the interface.
    Attach(AttachError),
    /// The pins of another switch keep a program attached to the interface.
    OtherSwitch {
        /// The interface's name.
        interface: String,
        /// The directory of the other switch's pins.
        directory: PathBuf,
    },
    /// The kernel refused a change of a map or a link.
    Bpf(BpfError),
    /// A pin cannot be changed.
    Pins(PinError),
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Attach(error) => error.fmt(f),
            PortError::OtherSwitch { interface, directory } => {
                let name = directory.file_name().unwrap_or_default().to_string_lossy();
                write!(
                    f,
                    "interface {interface} belongs to the switch {name}, whose program is pinned in {}: detach it with \
                     `spillway switch --config FILE --detach` and a file that has name = \"{name}\"",
                    directory.display()
                )
            }
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

/// The links to interfaces, and the maps that translate between interfaces and ports.
///
/// A port with a link is *open* if the maps have its interface. The program drops the frames of an interface whose port
/// is closed (`drop_unknown_port`), and sends no frames there.
#[derive(Debug)]
pub(super) struct Ports {
    interfaces: Map,
    /// The same as `interfaces`, for a faster look-up. It never has an interface that `interfaces` lacks.
    interface_slots: Map,
    egress: Map,
    links: BTreeMap<PortId, Link>,
    /// Ports that have lost their links, until [`release_lost`](Ports::release_lost) returns them.
    lost: BTreeMap<PortId, PortState>,
    /// The program at the egress of the interfaces, in host mode.
    filter: Option<Egress>,
    pins: Option<Pins>,
}

impl Ports {
    /// `filter`: the program at the egress of the interfaces, in host mode.
    pub(super) fn of(object: &Object, filter: Option<Egress>, pins: Option<Pins>) -> Result<Ports, BpfError> {
        Ok(Ports {
            interfaces: Map::of(object, "interfaces")?,
            interface_slots: Map::of(object, "interface_slots")?,
            egress: Map::of(object, "egress")?,
            links: BTreeMap::new(),
            lost: BTreeMap::new(),
            filter,
            pins,
        })
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
        if config.mode == spillway_rules::Mode::Host {
            self.add(run::test_interface(PortId::LOCAL), PortId::LOCAL)?;
        }
        self.add(run::test_interface(PortId::DAEMON), PortId::DAEMON)
    }

    /// Makes the frames of an interface arrive at a port. Values that are right are not written.
    fn add(&self, interface: u32, port: PortId) -> Result<(), BpfError> {
        let index = interface.to_ne_bytes();
        if self.interfaces.value(&index, MapFlags::ANY)?.as_deref() != Some(&key(port)) {
            self.clear_slot(interface)?;
            self.interfaces.set(&index, &key(port))?;
        }
        let (at, slot) =
            (layout::interface_slot_key(interface), layout::interface_slot(Some((interface, port))));
        let present = self.interface_slots.value(&at, MapFlags::ANY)?.unwrap_or_default();
        // Of two interfaces with one slot the first one has it.
        if present == layout::interface_slot(None) { self.interface_slots.set(&at, &slot) } else { Ok(()) }
    }

    /// Makes the frames of an interface arrive at no port.
    fn remove_interface(&self, interface: u32) -> Result<(), BpfError> {
        self.clear_slot(interface)?;
        self.interfaces.remove(&interface.to_ne_bytes())
    }

    /// Empties the slot of an interface, if it is this interface's.
    fn clear_slot(&self, interface: u32) -> Result<(), BpfError> {
        let at = layout::interface_slot_key(interface);
        let present = self.interface_slots.value(&at, MapFlags::ANY)?.unwrap_or_default();
        if layout::is_slot_of(&present, interface) {
            self.interface_slots.set(&at, &layout::interface_slot(None))?;
        }
        Ok(())
    }

    /// Takes the pinned links over, with the programs that they have. Links without an interface in this network namespace
    /// are removed.
    pub(super) fn adopt(&mut self) -> Result<(), PortError> {
        if let Some(pins) = &self.pins {
            self.links = pins.open_links()?;
        }
        self.linked().map(drop)
    }

    /// Gives all links a program.
    pub(super) fn update_program(&mut self, program: &ProgramMut<'_>) -> Result<(), PortError> {
        // A link that has lost its interface takes no program.
        self.linked()?;
        for (port, link) in &mut self.links {
            link.update_prog(program)
                .map_err(BpfError::of(format!("cannot replace the program of port {port}")))?;
        }
        Ok(())
    }

    /// The interface of each link. Links without an interface in this network namespace are removed.
    pub(super) fn linked(&mut self) -> Result<BTreeMap<PortId, u32>, PortError> {
        let mut linked = BTreeMap::new();
        for port in self.links.keys().copied().collect::<Vec<_>>() {
            match self.attachment(port)? {
                Attachment::Here { index, .. } => drop(linked.insert(port, index)),
                Attachment::Elsewhere => self.release(port, PortState::Elsewhere)?,
                Attachment::Nowhere => self.release(port, PortState::Detached)?,
            }
        }
        Ok(linked)
    }

    /// The interface to which a port's link has attached the program.
    fn index(&self, port: PortId) -> Result<Option<u32>, BpfError> {
        Ok(match self.attachment(port)? {
            Attachment::Here { index, .. } => Some(index),
            Attachment::Elsewhere | Attachment::Nowhere => None,
        })
    }

    fn attachment(&self, port: PortId) -> Result<Attachment, BpfError> {
        attachment_of(port, &self.links, self.leads_to(port)?)
    }

    /// The index of the interface to which frames for a port are sent.
    fn leads_to(&self, port: PortId) -> Result<Option<u32>, BpfError> {
        Ok(self.egress.value(&key(port), MapFlags::ANY)?.as_deref().and_then(layout::index))
    }

    /// Attaches the program to an interface without a program; in host mode also the filter at its egress. The port stays
    /// closed.
    pub(super) fn link(
        &mut self,
        program: &ProgramMut<'_>,
        port: PortId,
        interface: &str,
    ) -> Result<(), PortError> {
        self.link_ingress(program, port, interface)?;
        self.repair_filter(port).inspect_err(|_| {
            // Fails only if the pin cannot be removed; the next attempt reports that.
            let _ = self.unlink(port);
        })
    }

    /// Attaches the filter to the egress of a port's interface, in host mode. Does nothing if it is attached.
    pub(super) fn repair_filter(&self, port: PortId) -> Result<(), PortError> {
        match (&self.filter, self.index(port)?) {
            (Some(filter), Some(index)) => Ok(filter.attach(index)?),
            _ => Ok(()),
        }
    }

    /// Removes the filters from the egress of all interfaces without a link, also those of earlier processes. Called last:
    /// while a link is being replaced, the filter still drops what this host may not send in connections that moved away, and
    /// gives replies the service's address.
    pub(super) fn remove_stray_filters(&self) -> Result<(), PortError> {
        let Some(filter) = &self.filter else { return Ok(()) };
        let mut linked = BTreeSet::new();
        for port in self.links.keys() {
            linked.extend(self.index(*port)?);
        }
        let pins = self.pins.as_ref().map(Pins::directory);
        filter.keep_only(&linked, pins)?;
        Ok(pins.map_or(Ok(()), |pins| filter.forget_others(pins))?)
    }

    fn link_ingress(
        &mut self,
        program: &ProgramMut<'_>,
        port: PortId,
        interface: &str,
    ) -> Result<(), PortError> {
        if let Err(error) = attach::check_free(interface) {
            let other = match &self.pins {
                Some(pins) if matches!(error, AttachError::Occupied { .. }) => {
                    pins.other_switch_at(attach::index_of(interface)?.unsigned_abs())
                }
                _ => None,
            };
            return Err(match other {
                Some(directory) => PortError::OtherSwitch { interface: interface.to_owned(), directory },
                None => error.into(),
            });
        }
        let link = attach::link(program, interface)?;
        let index = attach::index_of(interface)?.unsigned_abs();
        // The interface had no program: a link with its index belongs to another network namespace.
        for other in self.links.keys().copied().collect::<Vec<_>>() {
            if is_at(&self.links[&other], index)? {
                self.release(other, PortState::Elsewhere)?;
            }
        }
        self.keep(port, link)
    }

    /// As [`link`](Self::link), for the interface with this index, which had the program before.
    pub(super) fn link_again(
        &mut self,
        program: &ProgramMut<'_>,
        port: PortId,
        index: u32,
    ) -> Result<(), PortError> {
        let failed = BpfError::of(format!("cannot attach the program again to the interface of port {port}"));
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        let link = program.attach_xdp(index).map_err(failed)?;
        self.keep(port, link)
    }

    /// Pins a new link, if this switch has pins.
    fn keep(&mut self, port: PortId, mut link: Link) -> Result<(), PortError> {
        if let Some(pins) = &self.pins {
            let path = pins.link(port);
            link.pin(&path).map_err(BpfError::of(format!("cannot pin the link {}", path.display())))?;
        }
        self.links.insert(port, link);
        Ok(())
    }

    /// Detaches the program from a port's interface. Does not change the maps; a filter at the egress stays.
    pub(super) fn unlink(&mut self, port: PortId) -> Result<(), PortError> {
        let Some(link) = self.links.remove(&port) else { return Ok(()) };
        // Fails only if the interface was removed, and the program with it.
        let _ = link.detach();
        Ok(self.pins.as_ref().map_or(Ok(()), |pins| pins.unpin(port))?)
    }

    /// Opens the linked ports for which `is_open` is true, and closes all others, also ports that are in the maps and have
    /// no link: an earlier process may have been killed between two steps.
    pub(super) fn open_only(&self, is_open: impl Fn(PortId) -> bool) -> Result<(), BpfError> {
        let mut open = BTreeMap::from([(PortId::DAEMON, LOOPBACK)]);
        for port in self.links.keys().copied().filter(|port| is_open(*port)) {
            open.extend(self.index(port)?.map(|index| (port, index)));
        }
        let indexes: Vec<_> = self.interfaces.handle().keys().collect();
        for index in indexes {
            let port = self.interfaces.value(&index, MapFlags::ANY)?;
            let is_right =
                |(one, at): (&PortId, &u32)| port.as_deref() == Some(&key(*one)) && index == at.to_ne_bytes();
            if let (false, Some(interface)) = (open.iter().any(is_right), layout::index(&index)) {
                self.remove_interface(interface)?;
            }
        }
        open_ports().filter(|port| !open.contains_key(port)).try_for_each(|port| self.close_egress(port))?;
        open.iter().try_for_each(|(port, index)| self.open(*port, *index))
    }

    /// Removes the interface of a port to which frames would be sent.
    fn close_egress(&self, port: PortId) -> Result<(), BpfError> {
        self.leads_to(port)?.map_or(Ok(()), |_| self.egress.remove(&key(port)))
    }

    /// Makes the maps lead to and from a port's interface. Values that are right are not written.
    fn open(&self, port: PortId, index: u32) -> Result<(), BpfError> {
        if port != PortId::DAEMON && self.leads_to(port)? != Some(index) {
            self.egress.set(&key(port), &index.to_ne_bytes())?;
        }
        self.add(index, port)
    }

    /// Attaches the program to the interface of a port, and opens the port.
    pub(super) fn attach(
        &mut self,
        program: &ProgramMut<'_>,
        port: PortId,
        interface: &str,
    ) -> Result<(), PortError> {
        let index = attach::index_of(interface)?.unsigned_abs();
        if self.index(port)? != Some(index) {
            self.detach(port)?;
            self.link(program, port, interface)?;
        }
        self.repair_filter(port)?;
        if let Err(error) = self.open(port, index) {
            self.detach(port)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Closes a port, and detaches the program from its interface.
    pub(super) fn detach(&mut self, port: PortId) -> Result<(), PortError> {
        if !self.links.contains_key(&port) {
            return Ok(());
        }
        self.forget(port)?;
        self.unlink(port)?;
        self.remove_stray_filters()
    }

    /// Removes a port's interface from the maps.
    pub(super) fn forget(&self, port: PortId) -> Result<(), BpfError> {
        self.close_egress(port)?;
        let keys: Vec<_> = self.interfaces.handle().keys().collect();
        for interface in keys {
            let is_ports = self.interfaces.value(&interface, MapFlags::ANY)?.as_deref() == Some(&key(port));
            if let (true, Some(index)) = (is_ports, layout::index(&interface)) {
                self.remove_interface(index)?;
            }
        }
        Ok(())
    }

    /// The directory with the switch's pins.
    pub(super) fn pins(&self) -> Option<&Path> {
        self.pins.as_ref().map(Pins::directory)
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
            self.links.clear();
            // A filter outlives this process. Fails only without CAP_NET_ADMIN.
            let _ = self.remove_stray_filters();
        }
    }
}
