//! A change of the configuration and of the ports' interfaces, in an order in which no frame meets the numbers of two
//! configurations:
//!
//! 1. The program is attached to new interfaces. Their ports are closed: their frames are dropped.
//! 2. Ports that the new configuration does not have are closed.
//! 3. The tables are written.
//! 4. The new ports are opened.
//! 5. The program is detached from the interfaces of closed ports.
//! 6. In host mode: the filters at the egress of interfaces without a port are removed.
//!
//! In host mode the frames of a closed port pass to the kernel, and a new interface gets its filter in step 1.
//!
//! A failure before the tables are written leaves ports and tables as they were.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_rs::ProgramMut;
use spillway_rules::{Config, ConfigError, PortId};

use super::ports::{PortError, Ports};
use super::tables::ConfigureError;
use super::{NAME, Switch, SwitchError};
use crate::{attach, object};

/// How the ports change.
#[derive(Debug, Default)]
struct Change {
    /// Ports that keep their links.
    kept: BTreeSet<PortId>,
    /// Ports with new links.
    new: BTreeSet<PortId>,
    /// Ports whose links are removed at the end.
    unwanted: BTreeSet<PortId>,
    /// Links that were removed at once, with their interfaces: a port gets another interface, or an interface another
    /// port.
    removed: Vec<(PortId, u32)>,
}

impl Switch {
    /// Applies a configuration, except `flows_max`, and attaches the program to exactly these interfaces. State stays.
    /// A server that is not configured any more, or has another key, has lost its term.
    ///
    /// Returns the ports that could not be attached, with the reasons: such a port has no interface until
    /// [`attach`](Self::attach) succeeds, or a later call.
    ///
    /// # Errors
    /// The configuration has a fault, or the system has failed. Tables and ports are as before, unless the error is
    /// [`SwitchError::Mixed`].
    pub fn apply(
        &mut self,
        config: &Config,
        interfaces: &BTreeMap<PortId, String>,
    ) -> Result<Vec<(PortId, PortError)>, SwitchError> {
        config.check()?;
        if config.mode != self.mode {
            return Err(ConfigError::ModeChange.into());
        }
        let program = object::program(NAME, &self.object);
        if self.has_adopted_links {
            self.ports.update_program(&program)?;
            self.has_adopted_links = false;
        }
        let (change, failures) = prepare(&mut self.ports, &program, interfaces)?;
        let written = self
            .ports
            .open_only(|port| change.kept.contains(&port))
            .map_err(SwitchError::from)
            .and_then(|()| self.tables.configure(config, self.epoch).map_err(SwitchError::from));
        if let Err(cause) = written {
            return Err(match revert(&mut self.ports, &program, change) {
                Ok(()) => cause,
                Err(error) => SwitchError::Mixed { cause: cause.to_string(), restoring: error.to_string() },
            });
        }
        self.owner_timeout = config.owner_timeout;
        finish(&mut self.ports, &change).map_err(|error| SwitchError::Mixed {
            cause: error.to_string(),
            restoring: "the tables are written already".to_owned(),
        })?;
        Ok(failures)
    }
}

/// Attaches the program to new interfaces. Returns the change, and the ports that could not be attached.
fn prepare(
    ports: &mut Ports,
    program: &ProgramMut<'_>,
    interfaces: &BTreeMap<PortId, String>,
) -> Result<(Change, Vec<(PortId, PortError)>), PortError> {
    let mut failures = Vec::new();
    let mut wanted = BTreeMap::new();
    for (port, interface) in interfaces {
        match attach::index_of(interface) {
            Ok(index) => drop(wanted.insert(*port, index.unsigned_abs())),
            Err(error) => failures.push((*port, error.into())),
        }
    }
    let mut change = Change::default();
    for (port, index) in ports.linked()? {
        if wanted.get(&port) == Some(&index) {
            change.kept.insert(port);
            // The filter may be that of an earlier version of the program, or another program may have removed it.
            failures.extend(ports.repair_filter(port).err().map(|error| (port, error)));
        } else if wanted.contains_key(&port) || wanted.values().any(|one| *one == index) {
            ports.forget(port)?;
            ports.unlink(port)?;
            change.removed.push((port, index));
        } else {
            change.unwanted.insert(port);
        }
    }
    for port in wanted.keys().filter(|port| !change.kept.contains(port)) {
        match ports.link(program, *port, &interfaces[port]) {
            Ok(()) => drop(change.new.insert(*port)),
            Err(error) => failures.push((*port, error)),
        }
    }
    Ok((change, failures))
}

/// Takes [`prepare`] back.
fn revert(ports: &mut Ports, program: &ProgramMut<'_>, change: Change) -> Result<(), PortError> {
    change.new.into_iter().try_for_each(|port| ports.unlink(port))?;
    change.removed.into_iter().try_for_each(|(port, index)| ports.link_again(program, port, index))?;
    ports.open_only(|_| true)?;
    ports.remove_stray_filters()
}

/// Opens the ports of the change, and removes the links of others.
fn finish(ports: &mut Ports, change: &Change) -> Result<(), PortError> {
    ports.open_only(|port| !change.unwanted.contains(&port))?;
    change.unwanted.iter().try_for_each(|port| ports.unlink(*port))?;
    ports.remove_stray_filters()
}

impl From<ConfigureError> for SwitchError {
    fn from(error: ConfigureError) -> SwitchError {
        match error {
            ConfigureError::Unchanged(error) => SwitchError::Bpf(error),
            ConfigureError::Mixed { cause, restoring } => {
                SwitchError::Mixed { cause: cause.to_string(), restoring: restoring.to_string() }
            }
        }
    }
}
