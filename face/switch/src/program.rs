//! The switch's XDP program with its tables in the kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use spillway_bpf::Mode;
use spillway_bpf::switch::{FlowEntry, OwnerEntry, Switch};
use spillway_rules::{Config, PortId, VerdictCounters};
use spillway_transport::Time;
use spillway_xdp::Interface;
use tracing::{info, warn};

use crate::config::{Port, SwitchConfig};
use crate::tables::Tables;

/// The program, pinned: it stays attached when the process ends.
pub(crate) struct Program {
    switch: RwLock<Switch>,
    epoch: u64,
    is_adopted: bool,
    flows_max: usize,
}

/// Whether the program runs on a port's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) number: u8,
    pub(crate) interface: String,
    /// `native`, `generic`, or empty if the program does not run there.
    pub(crate) mode: &'static str,
    /// Why the program does not run there.
    pub(crate) problem: Option<String>,
}

impl Program {
    /// Loads the program with the tables that are pinned at `directory`, or with new ones, which are then pinned there,
    /// and attaches it to all ports. A start that fails leaves nothing behind that was not there before.
    ///
    /// # Errors
    /// Says what failed, with the next step.
    pub(crate) fn start(directory: &Path, config: &SwitchConfig, rules: &Config) -> Result<Program, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let new_epoch = u64::try_from(now.as_nanos()).unwrap_or(0);
        let mut switch =
            Switch::open_or_create(directory, rules, new_epoch).map_err(|error| error.to_string())?;
        let epoch = switch.epoch();
        let is_adopted = epoch != new_epoch;
        if let Err(why) = attach_all(&mut switch, config) {
            if !is_adopted {
                switch.remove().map_err(|error| format!("{why}; and the tables stay: {error}"))?;
            }
            return Err(why);
        }
        let flows_max = switch.flows_max();
        if flows_max != config.flows_max {
            warn!(
                "the switch's table has room for {flows_max} flows, as before: flows_max = {} takes effect after `spillway \
                 switch --config FILE --detach`, which ends moved connections",
                config.flows_max
            );
        }
        Ok(Program { switch: RwLock::new(switch), epoch, is_adopted, flows_max })
    }

    /// Detaches the pinned program and removes the tables of a switch whose daemon does not run.
    ///
    /// # Errors
    /// The switch has no pins, or a pin cannot be removed.
    pub(crate) fn remove(directory: &Path) -> Result<(), String> {
        spillway_bpf::switch::remove(directory).map_err(|error| error.to_string())
    }

    /// Start time of the switch in nanoseconds since 1970: when the tables were created.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the tables existed before this process.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Maximum number of flows: that of the tables, if they existed before.
    pub(crate) fn flows_max(&self) -> usize {
        self.flows_max
    }

    /// Applies other settings, in which ports, services and servers have kept their numbers
    /// ([`SwitchConfig::keep_numbers`]). `old_rules` and `rules`: the two settings in the form of the rules.
    ///
    /// # Errors
    /// The settings cannot be applied; those before are in force again, as far as the system permits.
    pub(crate) fn change(
        &self,
        (before, old_rules): (&SwitchConfig, &Config),
        (after, rules): (&SwitchConfig, &Config),
    ) -> Result<(), String> {
        let mut switch = self.write();
        let applied = switch
            .configure(rules)
            .map_err(|error| error.to_string())
            .and_then(|()| attach_all(&mut switch, after));
        let Err(why) = applied else { return Ok(()) };
        let restored = switch
            .configure(old_rules)
            .map_err(|error| error.to_string())
            .and_then(|()| attach_all(&mut switch, before));
        if let Err(error) = restored {
            return Err(format!("{why}; and the settings before could not be restored: {error}"));
        }
        Err(why)
    }

    /// The state of each port.
    ///
    /// # Errors
    /// The system has failed.
    pub(crate) fn ports(&self, ports: &[Port]) -> Result<Vec<PortState>, String> {
        let attached: BTreeMap<PortId, _> =
            self.read().ports().map_err(|error| error.to_string())?.into_iter().collect();
        let state = |port: &Port| {
            use spillway_bpf::switch::PortState as State;
            let state = PortId::new(port.number).and_then(|number| attached.get(&number));
            let (mode, problem) = match state {
                Some(State::Attached { mode: Mode::Native, .. }) => ("native", None),
                Some(State::Attached { mode: Mode::Generic, .. }) => ("generic", None),
                Some(State::Detached) | None => (
                    "",
                    Some("the interface was removed, or another program has detached the switch".to_owned()),
                ),
            };
            PortState { number: port.number, interface: port.interface.clone(), mode, problem }
        };
        Ok(ports.iter().map(state).collect())
    }

    fn read(&self) -> RwLockReadGuard<'_, Switch> {
        self.switch.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Switch> {
        self.switch.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Detaches ports that are not configured any more, or have another interface now, and attaches the others.
fn attach_all(switch: &mut Switch, config: &SwitchConfig) -> Result<(), String> {
    let mut wanted: BTreeMap<PortId, (&str, u32)> = BTreeMap::new();
    for port in &config.ports {
        let index = Interface::find(&port.interface).map_err(|error| error.to_string())?.index;
        let number = PortId::new(port.number).ok_or("a port has no valid number")?;
        wanted.insert(number, (&port.interface, index));
    }
    // Detach before attaching: the interface of one port may have been that of another.
    for (number, state) in switch.ports().map_err(|error| error.to_string())? {
        use spillway_bpf::switch::PortState as State;
        let is_wanted = matches!(state, State::Attached { interface, .. }
            if wanted.get(&number).is_some_and(|(_, index)| *index == interface));
        if !is_wanted {
            switch.detach(number).map_err(|error| error.to_string())?;
            info!("port {number}: detached from its previous interface");
        }
    }
    for (number, (interface, _)) in &wanted {
        switch.attach(*number, interface).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Warns of ports on which the program runs in generic mode: behind the driver, not in it.
pub(crate) fn warn_of_generic_mode(ports: &[PortState]) {
    for port in ports.iter().filter(|port| port.mode == "generic") {
        warn!(
            "port {}: the driver has no XDP, so that the program runs behind it, slower; turn off generic receive offload \
             there, because joined packets are too long: ethtool -K {} gro off",
            port.interface, port.interface
        );
    }
}

impl Tables for Program {
    fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.read().control(frame).map_err(|error| error.to_string())
    }

    fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String> {
        let switch = self.read();
        let flows = switch.flows().map_err(|error| error.to_string())?;
        flows.for_each(|entry| visit(&entry));
        Ok(())
    }

    fn owners(&self) -> Result<Vec<OwnerEntry>, String> {
        self.read().owners(self.now()).map_err(|error| error.to_string())
    }

    fn counters(&self) -> Result<VerdictCounters, String> {
        self.read().counters().map_err(|error| error.to_string())
    }

    /// The program's clock is `bpf_ktime_get_ns`, which is CLOCK_MONOTONIC.
    fn now(&self) -> Time {
        let time = clock_gettime(ClockId::Monotonic);
        let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }
}
